"""Advice that the command line gives is followed to the letter, and works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import aviato
from aviato.cli.command_line import REFUSED, SYNONYMS
from aviato.cli.main import cli as group


class Advice(NamedTuple):
    """A command line, what finds the advice in what it says, and the command line that follows it, `{}` for each group."""

    wrong: str
    said: str
    follow: str


ADVICE = [
    Advice("run --timout 5 true", r"did you mean (--\S+)\?", "run {} 5 true"),
    Advice("run --container-image host true", r"did you mean (--\S+)\?", "run {} host true"),
    Advice("run --working-dir /tmp true", r"did you mean (--\S+)\?", "run {} /tmp true"),
    Advice("run --environment A=b true", r"did you mean (--\S+)\?", "run {} A=b true"),
    Advice("run --mem 64m true", r"did you mean (--\S+)\?", "run {} 64m true"),
    Advice("run --port 80 true", r"did you mean (--\S+)\?", "run {} 80 true"),
    Advice("run --zzz true", r"behind `(--)`", "run {} true"),
    Advice("run --name web true", r"give (--tag) NAME", "run {} web true"),
    Advice("run --name web true", r"find it by `aviato (ls --tag) NAME`", "{} web"),
    Advice("run -v /etc/passwd:/data true", r"give (\S+)$", "run -v {} cat /data"),
    Advice("run -v /etc/passwd:/data:rw true", r"give (\S+)$", "run -v {} cat /data"),
    Advice("run -p 8080:80 true", r"give (\d+)$", "run -p {} true"),
    Advice("run -p 53/udp true", r"give (\d+)$", "run -p {} true"),
    Advice("run -P true", r"give (-p) PORT", "run {} 80 true"),
    Advice("run --network bridge true", r"give (\w+)$", "run --network {} true"),
    Advice("run --network none,internet true", r"give (\w+), or the hosts", "run --network {} true"),
    Advice("run --timeout 0 true", r"; (inf) is no limit", "run --timeout {} true"),
    Advice("run --network internt true", r"did you mean (\w+)\?", "run --network {} true"),
    Advice("run --memory lots true", r"such as (\w+) or", "run --memory {} true"),
    Advice("run --memory lots true", r"such as \w+ or (\w+)", "run --memory {} true"),
    Advice("run --memory 512 true", r"did you mean '(\w+)'", "run --memory {} true"),
    Advice("run --memory-swap 1g true", r"give (--memory)", "run {} 1g true"),
    Advice("run --label a=b true", r"give (--tag) TEXT", "run {} a=b true"),
    Advice("run", r"or (--detach)", "run {}"),
    Advice("run -t true", r"leave -t out", "run true"),
    Advice("run -it true", r"leave -t out", "run -i true"),
    Advice("run --stop-timeout 1 true", r"`aviato (stop --grace) S`", "{} 0 BOX2"),
    Advice("exec BOX --timeout 5 true", r"options come before SANDBOX", "exec --timeout 5 BOX true"),
    Advice("exec BOX --odd", r"behind `(--)`", "exec BOX {} true"),
    Advice("sh", r"use `aviato (run -i)`", "{} true"),
    Advice("sh", r"or `aviato (exec -i)`", "{} BOX true"),
    Advice("ps", r"did you mean `aviato (\w+)`", "{}"),
    Advice("rm BOX2", r"did you mean `aviato (\w+)`", "{} --grace 0 BOX2"),
    Advice("kill BOX2", r"did you mean `aviato (\w+)`", "{} --grace 0 BOX2"),
    Advice("create", r"did you mean `aviato ([\w -]+)`", "{}"),
    Advice("runn true", r"did you mean `aviato (\w+)`", "{} true"),
    Advice("ls --status runing", r"did you mean (\w+)\?", "ls --status {}"),
    Advice("bench speed", r"there are (\w+)", "bench --list {}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def boxes(server: Any) -> Iterator[dict[str, str]]:
    with aviato.Sandbox(base_url=server.url) as box, aviato.Sandbox(base_url=server.url) as other:
        yield {"BOX": box.sandbox_id, "BOX2": other.sandbox_id}


@pytest.mark.parametrize("advice", ADVICE, ids=[f"{one.wrong} → {one.follow}" for one in ADVICE])
def test_advice_works(
    server: Any,
    boxes: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    aviato_cli: Callable[..., Any],
    advice: Advice,
) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    wrong = aviato_cli(*(boxes.get(word, word) for word in advice.wrong.split()))
    assert wrong.status != 0
    found = re.search(advice.said, wrong.err, re.MULTILINE)
    assert found, wrong.err
    right = aviato_cli(*(boxes.get(word, word) for word in advice.follow.format(*found.groups()).split()))
    assert right.status == 0, right.err


def test_a_directory_is_copied_in_as_it_says(
    server: Any, aviato_cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("content")
    wrong = aviato_cli("run", "-v", f"{tmp_path}:/tmp/given", "true")
    line = wrong.err.partition("copy it: ")[2].strip().replace("…", "cat /tmp/given/file")
    command = f'aviato() {{ {shlex.quote(sys.executable)} -m aviato "$@"; }}; {line}'
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout) == (0, "content"), done.stderr


def flags(verb: str) -> set[str]:
    found = group.get_command(click.Context(group), verb)
    assert found is not None
    return {flag for parameter in found.params for flag in parameter.opts}


def test_what_is_said_of_dockers_options_names_options_that_there_are() -> None:
    for option, instead in REFUSED.items():
        assert option not in flags("run"), f"{option} is there"
        for flag in re.findall(r"(?<![\w`-])(-\w|--[\w-]+)", re.sub(r"`[^`]*`", "", instead)):
            assert flag in flags("run"), f"{option}: {flag}"
        for line in re.findall(r"`aviato ([^`]*)`", instead):
            verb, *words = line.split()
            assert {word for word in words if word.startswith("-")} <= flags(verb) | {"--help"}, f"{option}: {line}"


def test_every_synonym_is_of_an_option_that_there_is() -> None:
    for other, ours in SYNONYMS.items():
        assert ours in flags("run") and other not in flags("run")
