"""Builds and forks whose server or client dies at any point: the next one goes on with what is there, and all is whole."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Image, Sandbox, Session
from tests.endings.conftest import until
from tests.matrices import every

STEPS = 4
SHOWN = "cat /srv/log; cksum </srv/large | cmp - /srv/sum && echo whole"
ALL = [(after, sig) for after in range(2 * STEPS) for sig in (signal.SIGKILL, signal.SIGTERM)]
POINTS = every(9, ALL)


def image(mark: str) -> Image:
    """Of steps that each take a moment and write much."""
    made = Image.from_("host").run(f"echo {mark} >/srv/log")
    for number in range(1, STEPS):
        made = made.run(f"head -c 3000000 /dev/urandom >/srv/large; cksum </srv/large >/srv/sum; echo {number} >>/srv/log")
    return made


def is_right(sandbox: Sandbox, mark: str) -> bool:
    said = sandbox.exec(["sh", "-c", SHOWN], check=True).result(60).stdout.split()
    return bool(said == [mark, *map(str, range(1, STEPS)), "whole"])


def steps(caplog: pytest.LogCaptureFixture, how: str) -> int:
    return sum(record.getMessage().startswith(f"{how}: step") for record in caplog.records)


@pytest.mark.parametrize(("after", "sig"), POINTS)
def test_a_build_goes_on_with_the_next_server(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, after: int, sig: signal.Signals
) -> None:
    """In the middle of each step, and as it begins."""
    caplog.set_level(logging.INFO, logger="aviato")
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        box = session.sandbox(container_image=image("one"))
        until(lambda: steps(caplog, "building") > after // 2, 20)
        time.sleep(0.06 * (after % 2))  # another point of the step, not a wait
        server.stop(sig)
        server.restart()
        assert is_right(box, "one")
        assert steps(caplog, "building") <= STEPS + 1


BUILDS = """
import logging, sys
import aviato
from tests.end_to_end.test_killed_in_between import image
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
with aviato.Session() as session:
    session.sandbox(container_image=image(sys.argv[1])).wait()
    print("built", flush=True)
"""


@pytest.mark.parametrize("after", every(8, range(2 * STEPS)))
def test_the_next_client_goes_on_with_what_a_killed_one_has_built(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, after: int
) -> None:
    caplog.set_level(logging.INFO, logger="aviato")
    monkeypatch.setenv("AVIATO_BASE_URL", make_server().url)
    mark = tmp_path.name
    client = subprocess.Popen([sys.executable, "-c", BUILDS, mark], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    begun = 0
    for line in client.stdout:
        begun += line.startswith("building: step")
        if begun > after // 2:
            break
    time.sleep(0.06 * (after % 2))  # another point of the step, not a wait
    client.kill()
    client.communicate()
    with Session() as session:
        assert is_right(session.sandbox(container_image=image(mark)), mark)
    assert steps(caplog, "cached") >= after // 2 and steps(caplog, "building") + steps(caplog, "cached") == STEPS
    until(lambda: all(one.get_status().is_terminal for one in Sandbox.list().result()), 20)
    assert not [one for one in aviato.Sandbox.list_snapshots().result() if one.name and "build" in one.name]


@pytest.mark.parametrize(
    ("after_seconds", "sig", "busy"),
    every(16, [(0.02 * n, s, busy) for busy in (False, True) for n in range(4) for s in (signal.SIGKILL, signal.SIGTERM)]),
)
def test_children_of_a_fork_whose_server_dies(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, after_seconds: float, sig: signal.Signals, busy: bool
) -> None:
    """Each is whole, and so is one of a later fork: where its layer is moved, and where it is copied since a process runs."""
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        parent = session.sandbox(detached=True)
        parent.exec(["sh", "-c", "for n in $(seq 50); do head -c 100000 /dev/urandom >f$n; done; cat f* | cksum >sum"]).result(
            60
        )
        if busy:
            parent.exec(["sh", "-c", "(setsid sleep 1000 &) >/dev/null 2>&1"], check=True).result(60)
        children = parent.fork(8)
        calls = [child.exec(["sh", "-c", f"cat f* | cksum | cmp - sum && echo {n}"]) for n, child in enumerate(children)]
        time.sleep(after_seconds)  # the point of the kill, not a wait
        server.stop(sig)
        server.restart()
        for number, call in enumerate(calls):
            assert call.result(60).stdout == f"{number}\n"
        [child] = parent.fork()
        assert child.exec(["sh", "-c", "cat f* | cksum | cmp - sum && echo whole"]).result(60).stdout == "whole\n"
        for one in (parent, *children, child):
            one.stop(missing_ok=True).result(60)
        until(lambda: not Sandbox.list_snapshots().result(), 20)
