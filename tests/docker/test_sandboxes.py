"""What containers have of their own beside the promises (`test_promises.py`): labels, images, what is left in the engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import NetworkOptions
from tests.docker.conftest import SMALL_USERS
from tests.docker.engines import Engine


@pytest.fixture
def session(make_docker: Callable[..., Any]) -> Iterator[aviato.Session]:
    make_docker()
    with aviato.Session() as made:
        yield made


def mine(engine: Engine) -> list[dict[str, Any]]:
    return [one for one in engine.containers() if "aviato.sandbox" in one["Labels"]]


def test_the_way_in_is_gone(session: aviato.Session) -> None:
    seen = session.sandbox().exec(["sh", "-c", "ls -a /; cat /proc/self/mountinfo"]).result().stdout
    assert "aviato-place" not in seen and "aviato-init" not in seen


def test_an_image_s_own_user_directory_and_variables(session: aviato.Session) -> None:
    sandbox = session.sandbox(container_image=SMALL_USERS)
    assert sandbox.exec(["sh", "-c", "id -un; pwd; echo $OF; echo $HOME"]).result().stdout.split() == [
        *("bob", "/home/bob", "the-image", "/home/bob"),
    ]
    assert sandbox.exec(["id", "-u"], user="root").result().stdout == "0\n"


def test_mounted_files(session: aviato.Session, tmp_path: Path) -> None:
    (tmp_path / "cases").write_text("1 2 3\n")
    given = [{"mount_path": "/data/cases", "file_content": b"1 2 3\n"}, {"mount_path": "/a:b", "file_content": b"4"}]
    sandbox = session.sandbox(mounted_files=given)
    assert sandbox.exec(
        ["sh", "-c", "cat /data/cases; echo x > /data/cases; rm /data/cases; cat /data/cases"]
    ).result().stdout == ("1 2 3\n1 2 3\n")
    with pytest.raises(aviato.AviatoValidationError, match="/proc/cases"):
        session.sandbox(mounted_files=[{"mount_path": "/proc/cases", "file_content": b""}]).wait()


def test_what_is_not_promised_is_so(session: aviato.Session) -> None:
    sandbox = session.sandbox(mounted_files=[{"mount_path": "/data/cases", "file_content": b"x"}]).wait()
    assert {line.partition(":")[0] for line in sandbox.unkept_promises} == {"disk", "mounted files"}
    assert sandbox.exec(["sh", "-c", "mv /data /other; ls /other"]).result().stdout == "cases\n"


def test_tags_are_labels(session: aviato.Session, engine: Engine) -> None:
    sandbox = session.sandbox(tags=["eval", "wandb-run:abc", "step=7"]).wait()
    for name, value in (("aviato.tag.eval", ""), ("aviato.tag.wandb-run:abc", ""), ("aviato.tag.step", "7")):
        found = engine.containers(**{name: value})
        assert [one["Labels"]["aviato.sandbox"] for one in found] == [sandbox.sandbox_id], name
    assert mine(engine)[0]["Labels"]["aviato.tags"] == '["eval", "wandb-run:abc", "step=7"]'


def test_there_is_no_network_but_by_the_proxy(make_docker: Callable[..., Any], python_image: str) -> None:
    make_docker(python_image)
    ask = "import urllib.request as u\ntry: u.urlopen('http://203.0.113.1/', timeout=3)\nexcept Exception as e: print(repr(e))"
    with aviato.Session() as session:
        alone = session.sandbox().exec(["python3", "-c", ask]).result().stdout
        assert "unreachable" in alone.lower()
        proxied = session.sandbox(network=NetworkOptions(egress_mode=["example.com"]))
        assert "403" in proxied.exec(["python3", "-c", ask]).result().stdout


def test_the_example(make_docker: Callable[..., Any], python_image: str) -> None:
    make_docker(python_image)
    example = Path(__file__).parents[2] / "examples" / "rl_training" / "reward_function.py"
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "Pass rate: 3/5" in done.stdout and "UNEXPECTED" not in done.stdout


def test_on_a_loop(make_docker: Callable[..., Any], engine: Engine) -> None:
    make_docker()

    async def main() -> list[str]:
        async with aviato.AsyncClient() as client, await client.sandbox() as one, await client.sandbox() as two:
            results = await asyncio.gather(*(sandbox.exec(["hostname"]) for sandbox in (one, two)))
            assert len(mine(engine)) == 2
            return [result.stdout.strip() for result in results]

    assert len(set(asyncio.run(main()))) == 2


def test_many_at_once_leave_nothing(make_docker: Callable[..., Any], engine: Engine) -> None:
    server = make_docker()
    with aviato.Session() as session:
        sandboxes = [session.sandbox() for _ in range(12)]
        results = [sandbox.exec(["echo", "here"]) for sandbox in sandboxes]
        assert [result.result().stdout for result in results] == ["here\n"] * 12
    assert mine(engine) == []
    assert os.listdir(Path(server.state_dir, "serve", "docker", "sandboxes")) == []


def test_a_sandbox_that_is_given_up_while_it_starts_leaves_nothing(make_docker: Callable[..., Any], engine: Engine) -> None:
    make_docker()
    with aviato.Session() as session:
        for _ in range(4):
            session.sandbox().stop().result()
    assert mine(engine) == []
