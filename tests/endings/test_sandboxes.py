"""Every row of the table of endings: what a sandbox that ended so tells, and what calls on it raise, in both worlds."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError, Session
from tests.conftest import RunningServer, start_server
from tests.endings.conftest import LEASE_SECONDS, until


@dataclass
class Place:
    """Where a sandbox lives: its server, and the process that it lives by."""

    server: RunningServer
    first_process: int = 0
    second_server: RunningServer | None = None

    def server_comes_again(self) -> None:
        self.second_server = start_server(Path(self.server.state_dir).parent)


def first_process(of: str) -> int | None:
    """On this machine, the process that is number 1 to a command; None while the command is no `sleep` yet."""
    wanted = f"sleep\0{of}\0".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = (entry / "cmdline").read_bytes() == wanted
        except OSError:
            continue
        while found:
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            if status["NSpid"].split()[-1] == "1":
                return int(entry.name)
            entry = Path("/proc") / status["PPid"]
    return None


# -- how it is brought about


def by_itself(sandbox: Sandbox, place: Place) -> None:
    pass


def main_command_ends(sandbox: Sandbox, place: Place) -> None:
    sandbox.write_file("/tmp/end", b"").result()


def deleted(sandbox: Sandbox, place: Place) -> None:
    Sandbox.delete(sandbox.sandbox_id, base_url=place.server.url).result()


def lost(sandbox: Sandbox, place: Place) -> None:
    """As by the machine's own OOM killer."""
    os.kill(place.first_process, signal.SIGKILL)


def shutdown(sandbox: Sandbox, place: Place) -> None:
    place.server.stop(signal.SIGINT)
    place.server_comes_again()


def orphaned(sandbox: Sandbox, place: Place) -> None:
    place.server.stop(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{place.first_process}").exists(), 20)
    place.server_comes_again()


def main_command(code: int) -> dict[str, Any]:
    """Ends when it is told to."""
    return {"command": "sh", "args": ["-c", f"while [ ! -e /tmp/end ]; do sleep 0.05; done; exit {code}"]}


@dataclass
class Row:
    """What is promised of one ending."""

    end: Callable[[Sandbox, Place], None]
    status: str
    reason: str
    error: type[aviato.SandboxError]
    infrastructure: bool = False
    returncode: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "exit 0": Row(main_command_ends, "completed", "exited", SandboxNotRunningError, returncode=0, options=main_command(0)),
    "exit 3": Row(main_command_ends, "failed", "exited", SandboxFailedError, returncode=3, options=main_command(3)),
    "lost": Row(lost, "failed", "lost", SandboxFailedError, True),
    "deleted": Row(deleted, "terminated", "stopped", SandboxNotRunningError),
    "lifetime": Row(by_itself, "terminated", "lifetime", SandboxTerminatedError, options={"max_lifetime_seconds": 2}),
    "shutdown": Row(shutdown, "terminated", "shutdown", SandboxTerminatedError, True, settings={"lease": 30}),
    "orphaned": Row(orphaned, "terminated", "orphaned", SandboxTerminatedError, True, settings={"orphan_timeout": 5}),
}


@pytest.fixture
def place(patient: RunningServer, make_server: Any, request: Any) -> Iterator[Place]:
    settings = request.param.settings
    made = Place(make_server(**settings) if settings else patient)
    yield made
    if made.second_server is not None:
        made.second_server.stop()


@pytest.mark.parametrize(("row", "place"), [(row, row) for row in ROWS.values()], ids=list(ROWS), indirect=["place"])
def test_the_table_of_endings(row: Row, place: Place) -> None:
    """Commands under way and calls afterwards raise the error of its row; their output up to then is whole."""
    sandbox = Sandbox.run(base_url=place.server.url, **row.options)
    mark = f"{200_000 + os.getpid()}.{id(row) % 10_000}"
    command = ["sh", "-c", f"echo up; sleep {mark} & wait"]
    running = [sandbox.exec(command) for _ in range(4)]
    for one in running:
        assert next(iter(one.stdout)) == "up\n"
    until(lambda: first_process(mark), 20)
    place.first_process = first_process(mark) or 0
    row.end(sandbox, place)

    def check(error: aviato.AviatoError) -> None:
        assert type(error) is row.error, repr(error)
        assert (error.reason, error.is_infrastructure) == (row.reason, row.infrastructure)
        assert sandbox.sandbox_id in str(error)

    with pytest.raises(row.error) as caught:
        running[0].result(30)
    check(caught.value)
    assert caught.value.started is True
    seen: list[str] = []
    with pytest.raises(row.error) as caught:
        seen.extend(running[1].stdout)
    assert seen == ["up\n"]
    check(caught.value)

    async def main() -> None:
        with pytest.raises(row.error) as caught:
            await running[2]
        check(caught.value)
        seen: list[str] = []
        with pytest.raises(row.error) as caught:
            seen.extend([line async for line in running[3].stdout])
        check(caught.value)
        with pytest.raises(row.error) as caught:
            await sandbox.exec(["true"])
        check(caught.value)
        assert caught.value.started is False

    asyncio.run(main())
    assert [(one.done(), one.poll(), one.returncode) for one in running] == [(True, None, None)] * 4
    for call in (
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.read_file("/etc/passwd"),
        lambda: sandbox.make_directory("/x"),
    ):
        with pytest.raises(row.error) as caught:
            call().result(30)
        check(caught.value)
    assert sandbox.get_status() in (row.status, "terminating")
    until(lambda: sandbox.get_status() == row.status, 10)
    found = Sandbox.from_id(sandbox.sandbox_id, base_url=place.server.url).result()
    for one in (sandbox, found):
        assert (one.status, one.status_reason, one.returncode) == (row.status, row.reason, row.returncode)
    with pytest.raises(row.error) as caught:
        found.exec(["true"]).result(30)
    check(caught.value)
    sandbox.stop().result()  # of one that has ended: fine
    complete = found.wait_until_complete(raise_on_termination=False)
    if row.reason == "lost":
        check(complete.exception(10))  # type: ignore[arg-type]
    else:
        assert complete.result(10) is found
    termination = found.wait_until_complete().exception(10)
    assert (termination is not None) == (row.status == "terminated" or row.reason == "lost")


def ended(sandbox: Sandbox, reason: str, error: type[aviato.SandboxError], *, infrastructure: bool) -> None:
    assert sandbox.wait_until_complete(raise_on_termination=False).result(20).status == "terminated"
    with pytest.raises(error) as caught:
        sandbox.exec(["true"]).result()
    assert type(caught.value) is error
    assert (sandbox.status_reason, caught.value.reason, caught.value.is_infrastructure) == (reason, reason, infrastructure)


def test_an_idle_sandbox(patient: Any) -> None:
    ended(Sandbox.run(base_url=patient.url, idle_timeout_seconds=0.3), "idle", SandboxTerminatedError, infrastructure=False)


def test_one_that_was_let_go_and_made_room(make_server: Any) -> None:
    defaults = aviato.SandboxDefaults(base_url=make_server(max_sandboxes=1).url)
    with Session(defaults) as session:
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result()
        name = sandbox.sandbox_id
        del sandbox
        gc.collect()
        session.sandbox().wait(20)
        ended(session.from_id(name, adopt=False).result(), "released", SandboxTerminatedError, infrastructure=True)


def test_one_whose_process_died(trainer: Any) -> None:
    """Seen from another process, which has a command running in it."""
    one = trainer("hold()\nsay('up')\ntime.sleep(60)")
    one.says()
    sandbox = one.living()[0]
    mine = sandbox.exec(["sleep", "60"])
    sandbox.exec(["true"]).result()
    one.send(signal.SIGKILL)
    with pytest.raises(SandboxTerminatedError) as caught:
        mine.result(LEASE_SECONDS + 10)
    assert (caught.value.reason, caught.value.is_infrastructure, caught.value.started) == ("lease_expired", True, True)
    ended(sandbox, "lease_expired", SandboxTerminatedError, infrastructure=True)


def test_the_caller_s_own_stop(patient: Any) -> None:
    sandbox = Sandbox.run(base_url=patient.url)
    running = sandbox.exec(["sleep", "60"])
    sandbox.exec(["true"]).result()
    sandbox.stop()
    with pytest.raises(SandboxNotRunningError) as caught:
        running.result(20)
    assert (caught.value.reason, caught.value.is_infrastructure) == ("stopped", False)
    ended(sandbox, "stopped", SandboxNotRunningError, infrastructure=False)
    sandbox.stop().result()


@pytest.mark.parametrize(
    ("options", "error", "code"),
    [
        ({"command": "/no/such/program"}, SandboxFailedError, 127),
        ({"container_image": "no/such:image"}, aviato.SandboxImageError, None),
        ({"max_lifetime_seconds": 0.000001}, SandboxTerminatedError, None),
    ],
    ids=["program", "image", "no time"],
)
def test_a_start_that_fails(patient: Any, options: Any, error: type[Exception], code: int | None) -> None:
    """Reaches the start, or else every command, and tells that it had not started."""
    sandbox = Sandbox(base_url=patient.url, **options)
    running = sandbox.exec(["true"])
    with pytest.raises(error) as caught:
        running.result(20)
    assert not getattr(caught.value, "started", False)
    if code is not None:
        assert sandbox.wait_until_complete().result(10).status == "failed"
        assert sandbox.returncode == code


def test_an_id_that_nobody_knows(patient: Any) -> None:
    name = Sandbox(base_url=patient.url).sandbox_id
    with pytest.raises(aviato.SandboxNotFoundError) as caught:
        Sandbox.from_id(name, base_url=patient.url).result()
    assert (caught.value.sandbox_id, caught.value.is_infrastructure) == (name, False)
