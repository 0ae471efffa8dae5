"""Which words of a command line are options of ours, and which are the program's; docker's options mean what docker's mean."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato

BOX = "sb-" + "0" * 26
NOWHERE = "unix:///nowhere/aviato.sock"


@pytest.fixture
def cli(server: Any, monkeypatch: pytest.MonkeyPatch, aviato_cli: Callable[..., Any]) -> Callable[..., Any]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return aviato_cli


@pytest.fixture(scope="module")
def box(server: Any) -> Iterator[str]:
    """A sandbox that exists."""
    with aviato.Sandbox(base_url=server.url) as sandbox:
        sandbox.wait()
        yield sandbox.sandbox_id


REFUSED = [
    # an option that there is not, before the program
    (["run", "--timout", "5", "--", "true"], ["--timout", "did you mean --timeout?"]),
    (["run", "--timout=5", "true"], ["--timout", "--timeout"]),
    (["run", "--timeout-seconds", "5", "true"], ["--timeout-seconds", "did you mean --timeout?"]),
    (["run", "--container-image", "host", "true"], ["did you mean --image?"]),
    (["run", "--envs", "A=b", "true"], ["did you mean --env?"]),
    (["run", "--cwd", "/tmp", "true"], ["did you mean --workdir?"]),
    (["run", "--zzz", "true"], ["--zzz", "behind `--`"]),
    (["run", "-X", "true"], ["-X"]),
    (["run", "-dX"], ["-X"]),
    (["run", "-i", "--detatch", "true"], ["did you mean --detach?"]),
    (["exec", "--timout", "5", BOX, "true"], ["did you mean --timeout?"]),
    (["exec", BOX, "--timout", "5", "true"], ["--timout", "before SANDBOX"]),
    (["exec", BOX, "-e", "A=b", "true"], ["-e", "before SANDBOX"]),
    (["exec", BOX, "--"], ["give a COMMAND"]),
    (["exec", BOX], ["COMMAND"]),
    (["sh", "--imag", "host"], ["did you mean --image?"]),
    (["sh", "--timeout", "5"], ["--timeout"]),
    (["sh", BOX, "--norc"], ["--norc", "before SANDBOX"]),
    (["sh", "-p", "80", BOX], ["new sandbox"]),
    (["sh", "--memory", "1g", BOX], ["new sandbox"]),
    (["attach", "--stdout-ofset", "1", BOX, "ex-" + "0" * 26], ["did you mean --stdout-offset?"]),
    # docker's that there are not, by name
    (["run", "--name", "web", "true"], ["--name", "--tag"]),
    (["run", "--name=web", "true"], ["--name", "--tag"]),
    (["run", "-d", "-u", "1000", "true"], ["--user", "foreground"]),
    (["run", "-u", "", "true"], ["user"]),
    (["exec", "--user", "a\nb", BOX, "true"], ["user"]),
    (["exec", "--privileged", BOX, "true"], ["--privileged"]),
    (["run", "--privileged", "true"], ["--privileged"]),
    (["run", "--gpus", "all", "true"], ["--gpus"]),
    (["run", "--entrypoint", "sh", "true"], ["--entrypoint", "COMMAND"]),
    (["run", "--mount", "type=bind,source=/a,target=/b", "true"], ["--mount", "-v"]),
    (["run", "-l", "a=b", "true"], ["-l", "--tag"]),
    (["run", "-P", "true"], ["-P", "-p PORT"]),
    (["run", "--restart", "always", "true"], ["--restart"]),
    (["run", "-itd", "true"], ["foreground"]),
    (["run", "-t", "true"], ["-it"]),
    (["exec", "-t", BOX, "true"], ["-it"]),
    (["run", "-it", "true"], ["terminal", "leave -t out"]),
    (["run", "-it", "--timeout", "5", "true"], ["--timeout", "leave -t out"]),
    # values that cannot be meant
    (["run", "-v", "/tmp:/data", "true"], ["/tmp", "directory", "tar"]),
    (["run", "-v", "/tmp:/data:ro", "true"], ["directory"]),
    (["run", "-v", "/etc/hostname:/data", "true"], [":ro"]),
    (["run", "-v", "/etc/hostname:data:ro", "true"], ["absolute"]),
    (["run", "-v", "/no/such:/data:ro", "true"], ["/no/such", "No such file"]),
    (["run", "-v", "name", "true"], ["FILE:PATH:ro"]),
    (["run", "-v", "/dev/zero:/data:ro", "true"], ["no regular file"]),
    (["run", "-p", "8080:80", "true"], ["8080:80", "give 80"]),
    (["run", "-p", "0.0.0.0:8080:80", "true"], ["give 80"]),
    (["run", "-p", "53/udp", "true"], ["TCP", "give 53"]),
    (["run", "-p", "70000", "true"], ["70000"]),
    (["run", "-p", "http", "true"], ["http"]),
    (["run", "--memory", "lots", "true"], ["--memory", "lots", "512m"]),
    (["run", "-m", "1", "true"], ["--memory"]),
    (["run", "--cpus", "two", "true"], ["--cpus", "two"]),
    (["run", "--cpus", "-1", "true"], ["--cpus"]),
    (["run", "--pids-limit", "0", "true"], ["--pids-limit"]),
    (["run", "--network", "host", "true"], ["--network", "host", "internet"]),
    (["run", "--network", "bridge", "true"], ["bridge", "internet"]),
    (["run", "--net=internt", "true"], ["internt", "did you mean internet?"]),
    (["run", "--network", "exa mple.org", "true"], ["exa mple.org"]),
    (["run", "-e", "=x", "true"], ["NAME=VALUE"]),
    (["run", "--env-file", "/no/such", "true"], ["--env-file", "/no/such"]),
    (["run", "--timeout", "soon", "true"], ["--timeout", "'soon' is no number of seconds, such as 30"]),
    (["run", "--timeout", "5s", "true"], ["--timeout", "'5s' is no number of seconds"]),
    (["run", "--timeout", "0", "true"], ["--timeout", "must be more than 0", "inf is no limit"]),
    (["run", "--timeout", "-1", "true"], ["--timeout", "must be more than 0"]),
    (["run", "--timeout", "nan", "true"], ["--timeout", "'nan' is no number of seconds"]),
    (["run", "--lifetime", "0", "true"], ["--lifetime", "must be more than 0"]),
    (["run", "--cpus", "nan", "true"], ["--cpus", "'nan' is no number of processors"]),
    (["run", "--cpus", "inf", "true"], ["--cpus", "'inf' is no number of processors"]),
    (["run", "--pids-limit", "1.5", "true"], ["--pids-limit", "'1.5' is no whole number"]),
    (["run", "--memory", "1Mi", "true"], ["--memory", "less than 4Mi"]),
    (["run", "--network", "none,internet", "true"], ["'none' stands alone"]),
    (["run", "--network", "example.org,internet", "true"], ["'internet' stands alone"]),
    (["run", ""], ["the first word of the COMMAND, its program, is empty"]),
    (["run", "--", ""], ["is empty"]),
    (["run", "-d", "", "x"], ["is empty"]),
    (["exec", BOX, ""], ["is empty"]),
    (["exec", BOX, "--", ""], ["is empty"]),
    (["sh", BOX, ""], ["is empty"]),
    (["sh", "--", ""], ["is empty"]),
    (["attach", "--stdout-offset", "x", BOX, "ex-" + "0" * 26], ["'x' is no number of bytes"]),
    (["run"], ["COMMAND"]),
    (["run", "--timeout", "5"], ["COMMAND"]),
]  # fmt: skip


RAW = re.compile(r"\bmath\.|\b(command|args)\[|\b(float|integer|range)\b")
"""What Python and click say of a value."""


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_refused_and_nothing_runs(
    aviato_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", NOWHERE)
    done = aviato_cli(*arguments)
    assert done.status == 125
    assert all(word in done.err for word in words), done.err
    assert "/nowhere" not in done.err and done.out == ""
    assert RAW.search(done.err) is None, done.err


def shows(what: str) -> list[str]:
    return ["sh", "-c", what]


MEANT = [
    # where the program begins
    (["echo", "--timout", "-n"], "--timout -n\n"),
    (["--", "echo", "--timout"], "--timout\n"),
    (["echo", "--", "x"], "-- x\n"),
    (["echo", "-it", "--rm", "-e", "A=b"], "-it --rm -e A=b\n"),
    (["--timeout", "20", "echo", "--timeout", "1"], "--timeout 1\n"),
    # docker's
    (["--rm", *shows("echo here")], "here\n"),
    (["-i", "cat"], ""),
    (["--rm", "-i", "--", "cat"], ""),
    (["-e", "A=b", *shows("echo $A")], "b\n"),
    (["-eA=b", *shows("echo $A")], "b\n"),
    (["-e=A=b", *shows("echo $A")], "b\n"),
    (["--env", "A=b", *shows("echo $A")], "b\n"),
    (["--env=A=b=c", *shows("echo $A")], "b=c\n"),
    (["-ie", "A=b", *shows("echo $A")], "b\n"),
    (["-e", "A=", *shows("echo ${A-unset}")], "\n"),
    (["-e", "OF_THE_CALLER", *shows("echo $OF_THE_CALLER")], "its value\n"),
    (["-e", "NOBODY_HAS_THIS", *shows("echo ${NOBODY_HAS_THIS-unset}")], "unset\n"),
    (["-w", "/tmp", "pwd"], "/tmp\n"),
    (["-w/tmp", "pwd"], "/tmp\n"),
    (["--workdir=/tmp", "pwd"], "/tmp\n"),
    (["-e", "A=1", "-e", "A=2", *shows("echo $A")], "2\n"),
]  # fmt: skip


@pytest.mark.parametrize("where", ["run", "exec"])
@pytest.mark.parametrize(("words", "output"), MEANT, ids=[" ".join(words) for words, _ in MEANT])
def test_what_a_command_line_means(
    cli: Callable[..., Any], box: str, monkeypatch: pytest.MonkeyPatch, where: str, words: list[str], output: str
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "its value")
    if where == "exec":  # the SANDBOX stands before the program
        first = next((i for i, word in enumerate(words) if word in ("echo", "sh", "cat", "pwd", "--")), 0)
        words = [word for word in words[:first] if word != "--rm"] + [box] + words[first:]
    done = cli(where, *words)
    assert (done.status, done.out, done.err) == (0, output, "")


LIMITS = [
    (["--memory", "512m"], "memory", 512 << 20),
    (["--memory=512m"], "memory", 512 << 20),
    (["-m", "1g"], "memory", 1 << 30),
    (["-m1g"], "memory", 1 << 30),
    (["-m", "0.5GiB"], "memory", 512 << 20),
    (["-m", "67108864"], "memory", 64 << 20),
    (["--memory", "100000k"], "memory", 100000 << 10),
    (["--cpus", "0.5"], "cpu", 0.5),
    (["--cpus=1"], "cpu", 1.0),
    (["--pids-limit", "77"], "processes", 77),
]  # fmt: skip


def record(cli: Callable[..., Any], made: str) -> dict[str, Any]:
    [found] = [one for one in map(json.loads, cli("ls", "--json").out.splitlines()) if one["sandbox_id"] == made]
    return dict(found)


@pytest.mark.parametrize(("words", "name", "value"), LIMITS, ids=[" ".join(words) for words, _, _ in LIMITS])
def test_limits_are_those_of_the_sandbox(cli: Callable[..., Any], words: list[str], name: str, value: float) -> None:
    done = cli("run", "-d", *words)
    limit = record(cli, done.out.strip())["limits"][name]
    assert limit["value"] == value
    assert ("--cpus is not kept" in done.err) == (name == "cpu" and limit["strength"] == "none")
    cli("stop", "--grace", "0", done.out.strip())


def test_variables_of_a_file(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "its value")
    file = tmp_path / "env"
    file.write_text('\ufeffA=one\n# B=two\n\n  C="quoted"  \nOF_THE_CALLER\nNOBODY_HAS_THIS\nD=x=y\n')
    show = shows("echo $A,${B-unset},$C,$OF_THE_CALLER,${NOBODY_HAS_THIS-unset},$D")
    assert cli("run", "--env-file", str(file), *show).out == 'one,unset,"quoted" ,its value,unset,x=y\n'
    assert cli("run", "-e", "A=mine", "--env-file", str(file), *shows("echo $A")).out == "mine\n", "-e goes before it"
    file.write_text("TWO WORDS=1\n")
    refused = cli("run", "--env-file", str(file), "true")
    assert refused.status == 125 and "line 1" in refused.err


def test_a_file_is_mounted_read_only(cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text("its content")
    done = cli("run", "-v", f"{file}:/data/given:ro", *shows("cat /data/given; echo x >> /data/given || echo kept"))
    assert done.out == "its contentkept\n"
    assert file.read_text() == "its content"


@pytest.mark.parametrize(
    "words", [["-p", "8000"], ["-p8000"], ["--publish=8000/tcp"], ["-p", "127.0.0.1::8000"], ["-p", ":8000"]]
)
def test_a_port_is_reached_where_it_says(cli: Callable[..., Any], words: list[str]) -> None:
    serve = "import http.server as h; h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    done = cli("run", "-d", "-w", "/tmp", *words, "--", "python3", "-c", serve)
    assert done.err.startswith("aviato: port 8000 is at http://")
    url, deadline = done.err.split()[-1], time.monotonic() + 20
    while True:
        try:
            assert urllib.request.urlopen(url, timeout=5).status == 200
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    cli("stop", "--grace", "0", done.out.strip())


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ([], "none"),
        (["--network", "none"], "none"),
        (["--network=internet"], "internet"),
        (["--net", "pypi.org,*.pythonhosted.org:443"], ["pypi.org", "*.pythonhosted.org:443"]),
    ],
)
def test_the_network_is_what_was_asked_for(cli: Callable[..., Any], words: list[str], mode: Any) -> None:
    made = cli("run", "-d", *words).out.strip()
    assert record(cli, made)["egress_mode"] == mode
    cli("stop", "--grace", "0", made)


@pytest.mark.parametrize("words", [["run", "-it"], ["run", "--rm", "-ti"], ["run", "-i", "-t"], ["exec", "-it"], ["sh", "-it"]])
def test_a_terminal_is_given(server: Any, box: str, words: list[str]) -> None:
    controller, terminal = pty.openpty()
    where = [box] if words[0] == "exec" else []
    environment = {**os.environ, "AVIATO_BASE_URL": server.url, "TERM": "vt220"}
    look = "test -t 0 && test -t 1 && read line && echo $TERM got $line; exit 3"
    command = [sys.executable, "-m", "aviato", *words, *where, *shows(look)]
    with subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE) as process:
        os.close(terminal)
        os.write(controller, b"typed\n")
        shown = b""
        while b"vt220 got typed" not in shown:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # nobody holds the other end
                break
        assert process.wait(30) == 3, shown
    os.close(controller)
    assert b"vt220 got typed" in shown


def test_an_image_in_front_of_the_command_is_told_its_flag(cli: Callable[..., Any]) -> None:
    version = f"python:3.{sys.version_info.minor}"
    done = cli("run", version, "python3", "-c", "print(1)")
    assert done.status == 127
    advice = re.search(r"given by (--image \S+)$", done.err)
    assert advice is not None, done.err
    assert cli("run", *advice[1].split(), "python3", "-c", "print(1)").out == "1\n"
    assert "--image" not in cli("run", "no-such-program").err


IN_FLAGS = [
    (["run", "-w", "here", "true"], "--workdir must be an absolute path"),
    (["run", "--tag", "", "true"], "--tag"),
    (["run", "--image", "", "true"], "--image must not be empty"),
    (["run", "--memory", "900t", "true"], "--memory: 900Ti are more than the"),
    (["run", "--cpus", "9999", "true"], "--cpus: 9999 are more than the"),
    (["run", "--pids-limit", "99999999", "true"], "--pids-limit: 99999999 are more than the"),
    (["run", "-e", "A\0=b", "true"], "--env"),
    (["run", "-v", "/etc/passwd:/proc/x:ro", "true"], "--volume"),
    (["run", "-v", "/etc/passwd:/a:ro", "-v", "/etc/passwd:/a:ro", "true"], "--volume"),
    (["run", "--base-url", "ftp://x", "true"], "--base-url is 'ftp://x'"),
    (["exec", "-w", "here", "BOX", "true"], "--workdir must be an absolute path"),
    (["exec", "--timeout", "0", "BOX", "true"], "it must be more than 0"),
    (["ls", "--tag", ""], "--tag"),
    (["ls", "--status", "sleeping"], "--status 'sleeping' is none of"),
    (["stop", "--grace", "-1", "BOX"], "it must be at least 0"),
    (["stop", "--grace", "nan", "BOX"], "'nan' is no number of seconds"),
    (["stop", "--grace", "soon", "BOX"], "'soon' is no number of seconds"),
    (["bench", "--rounds", "0", "latency"], "it must be at least 1"),
    (["bench", "--rounds", "x", "latency"], "'x' is no whole number"),
]
PARAMETERS = re.compile(
    r"\b(timeout_seconds|exec_timeout_seconds|max_lifetime_seconds|working_dir|cwd|container_image|mounted_files|base_url"
    r"|environment_variables|graceful_shutdown_seconds|egress_mode|resources|limits)\b|\b\w+=(?!\w*\.|DIR|VALUE)"
)


@pytest.mark.parametrize(("arguments", "words"), IN_FLAGS, ids=[" ".join(arguments) for arguments, _ in IN_FLAGS])
def test_the_command_line_speaks_of_its_flags(cli: Callable[..., Any], box: str, arguments: list[str], words: str) -> None:
    done = cli(*(box if word == "BOX" else word for word in arguments))
    assert done.status != 0
    assert words in done.err, done.err
    assert PARAMETERS.search(done.err) is None and RAW.search(done.err) is None, done.err


def test_a_command_that_finds_no_network_is_told_the_flag(cli: Callable[..., Any]) -> None:
    done = cli("run", "--", "sh", "-c", "pip install --retries 0 aviato-has-no-such-package")
    advice = re.search(r"`aviato (run --network \S+)`", done.err)
    assert done.status == 1 and advice is not None, done.err
    assert cli(*advice[1].split(), "true").status == 0
    assert "no network" not in cli("run", "--network", "internet", "--", "sh", "-c", "echo Could not resolve host; exit 1").err
