"""A start that is interrupted while the server has the request leaves nothing, not even of what is detached."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.matrices import every

STARTS = {
    "run": "aviato.Sandbox.run(tags=[MARK], detached=True)",
    "with": "with aviato.Sandbox(tags=[MARK], detached=True): pass",
    "async with": ("async def main():\n    async with aviato.Sandbox(tags=[MARK], detached=True): pass\nasyncio.run(main())"),
    "a session": "with session:\n    aviato.wait([session.sandbox(tags=[MARK]) for _ in range(5)])",
    "a session with a limit": (
        "with aviato.Session(max_concurrency=2) as limited:\n    aviato.wait([limited.sandbox(tags=[MARK]) for _ in range(5)])"
    ),
}


@pytest.mark.parametrize(
    ("how", "number"),
    every(3, [*((how, signal.SIGINT) for how in STARTS), *((how, signal.SIGTERM) for how in STARTS if "session" in how)]),
)
def test_an_interrupted_start(trainer: Any, make_server: Any, how: str, number: int) -> None:
    """By SIGTERM only what has a lease: what is detached belongs to nobody but its `with`, which a signal does not leave."""
    server = make_server()
    one = trainer(
        f"aviato.stop_on_sigterm()\nsession = aviato.Session()\naviato.Sandbox.list().result()\nsay('up')\n{STARTS[how]}",
        server,
    )
    one.says()
    server.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(0.5)  # until its requests lie at the server
        one.send(number)
        time.sleep(0.3)
        assert number == signal.SIGTERM or one.process.poll() is None
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert one.end()[0] == -number
    deadline = time.monotonic() + 8
    while one.living():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_same_orphan_in_two_trainers(trainer: Any, patient: Any, tmp_path: Path) -> None:
    """Both use it; whoever ends first stops it, and the other ends as silently."""
    with aviato.Sandbox(base_url=patient.url, detached=True) as orphan:
        orphan.wait()
        source = f"""
        session = aviato.Session()
        found = session.from_id({orphan.sandbox_id!r}).result()
        say(found.exec(["echo", "up"]).result(10).stdout.strip())
        while not os.path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.01)
        session.close().result()
        assert found.get_status() in ("terminated", "terminating")
        """
        both = [trainer(source), trainer(source)]
        for one in both:
            one.says()
        (tmp_path / "go").touch()
        assert [one.end() for one in both] == [(0, "", "")] * 2
        assert orphan.get_status() == "terminated"


def test_an_adopted_sandbox_of_another_process_ends_with_either(trainer: Any, patient: Any) -> None:
    one = trainer("hold()\nsay('up')\ntime.sleep(60)")
    one.says()
    with aviato.Session(aviato.SandboxDefaults(base_url=patient.url)) as session:
        first, second = session.list(tags=[one.mark], adopt=True).result()
        first.stop().result()
        assert first.get_status() == "terminated" and second.exec(["true"]).result().returncode == 0
        one.send(signal.SIGKILL)
        assert second.wait_until_complete(raise_on_termination=False).result(20).status_reason == "lease_expired"
