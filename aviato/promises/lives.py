"""How sandboxes begin, what is told of them, and how they end."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime

import pytest

import aviato
from aviato import SandboxStatus
from aviato.wire.ids import new_sandbox_id


def test_it_starts_at_its_first_use(session: aviato.Session) -> None:
    """A sandbox does no I/O when it is made; its id is known from then on, and its first use starts it."""
    sandbox = aviato.Sandbox()
    sandbox_id = sandbox.sandbox_id
    assert sandbox_id and sandbox.started_at is None
    with sandbox:
        assert sandbox.exec(["echo", "here"]).result().stdout == "here\n"
        assert sandbox.get_status() == SandboxStatus.RUNNING == sandbox.status and sandbox.sandbox_id == sandbox_id
        assert sandbox.created_at is not None and sandbox.started_at is not None
        assert sandbox.created_at <= sandbox.started_at <= datetime.now(UTC)
    assert sandbox.get_status() == SandboxStatus.TERMINATED


def test_a_main_command_that_ends_well(session: aviato.Session) -> None:
    """Main command exits 0: `completed`, and calls afterwards raise SandboxNotRunningError."""
    sandbox = session.sandbox(command="sh", args=["-c", "echo said; exit 0"])
    assert sandbox.wait_until_complete().result() is sandbox
    assert (sandbox.status, sandbox.returncode) == (SandboxStatus.COMPLETED, 0)
    with pytest.raises(aviato.SandboxNotRunningError):
        sandbox.exec(["true"]).result()


def test_a_main_command_that_fails(session: aviato.Session) -> None:
    """Main command exits otherwise: `failed` with its returncode, and calls afterwards raise SandboxFailedError."""
    sandbox = session.sandbox(command="sh", args=["-c", "exit 7"])
    sandbox.wait_until_complete(raise_on_termination=False).result()
    assert (sandbox.status, sandbox.returncode) == (SandboxStatus.FAILED, 7)
    with pytest.raises(aviato.SandboxFailedError) as caught:
        sandbox.exec(["true"]).result()
    assert not caught.value.is_infrastructure


def test_the_main_command_s_end_is_that_of_others(session: aviato.Session) -> None:
    """The end of the main command ends the sandbox's other commands, which have no made-up exit code then."""
    sandbox = session.sandbox(command="sh", args=["-c", "while [ ! -e over ]; do sleep 0.02; done; exit 3"])
    other = sandbox.exec(["sh", "-c", "echo began; exec sleep 60"])
    assert next(iter(other.stdout)) == "began\n"
    sandbox.write_file("over", b"").result()
    with pytest.raises(aviato.SandboxFailedError):
        other.result()
    assert other.poll() is None or other.returncode is None


def test_what_the_main_command_prints(session: aviato.Session) -> None:
    """`stream_logs` has the main command's output, whole or its last lines, also while it runs."""
    sandbox = session.sandbox(command="sh", args=["-c", "for i in 1 2 3; do echo line $i; done; exec sleep 60"])
    assert next(sandbox.stream_logs(follow=True).lines()) == "line 1"
    deadline = time.monotonic() + 10
    while "".join(sandbox.stream_logs()) != "line 1\nline 2\nline 3\n":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "".join(sandbox.stream_logs(tail_lines=1)) == "line 3\n"


def test_a_stop(session: aviato.Session) -> None:
    """`stop()`: `terminated` with reason `stopped`; a second one is fine; calls afterwards raise SandboxNotRunningError."""
    sandbox = session.sandbox()
    running = sandbox.exec(["sleep", "60"])
    sandbox.exec(["true"]).result()
    sandbox.stop(graceful_shutdown_seconds=0).result()
    sandbox.stop().result()
    assert (sandbox.get_status(), sandbox.status_reason) == (SandboxStatus.TERMINATED, "stopped")
    for call in (running.result, lambda: sandbox.exec(["true"]).result(), lambda: sandbox.read_file("x").result()):
        with pytest.raises(aviato.SandboxNotRunningError) as caught:
            call()
        assert not caught.value.is_infrastructure


def test_a_stop_asks_first_and_kills_then(session: aviato.Session) -> None:
    """`stop()` gives SIGTERM to all commands, and after the grace SIGKILL: who listens has time, who does not holds nobody."""
    deaf = session.sandbox(command="sh", args=["-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"])
    assert next(iter(deaf.stream_logs(follow=True))) == "deaf\n"
    hears = deaf.exec(["sh", "-c", "trap 'echo heard; exit 5' TERM; echo ready; while :; do sleep 0.02; done"])
    lines = hears.stdout.lines()
    assert next(lines) == "ready"
    began = time.monotonic()
    stopping = deaf.stop(graceful_shutdown_seconds=1.0)
    assert next(lines) == "heard"
    stopping.result()
    assert 0.9 < time.monotonic() - began < 15
    assert deaf.get_status() == SandboxStatus.TERMINATED


def test_a_lifetime(session: aviato.Session) -> None:
    """`max_lifetime_seconds` ends it: `terminated`, reason `lifetime`, which is a matter of the task."""
    sandbox = session.sandbox(max_lifetime_seconds=1.0)
    with pytest.raises(aviato.SandboxTerminatedError) as caught:
        sandbox.exec(["sleep", "60"]).result()
    assert not caught.value.is_infrastructure
    sandbox.wait_until_complete(raise_on_termination=False).result()
    assert (sandbox.get_status(), sandbox.status_reason) == (SandboxStatus.TERMINATED, "lifetime")


def test_idleness(session: aviato.Session) -> None:
    """`idle_timeout_seconds` ends it after so long without a command or a call: reason `idle`."""
    sandbox = session.sandbox(idle_timeout_seconds=1.0)
    assert sandbox.exec(["sh", "-c", "sleep 1.5; echo done"]).result().stdout == "done\n", "a command is no idleness"
    sandbox.wait_until_complete(raise_on_termination=False).result()
    assert (sandbox.status, sandbox.status_reason) == (SandboxStatus.TERMINATED, "idle")


def test_an_id_that_nobody_knows(session: aviato.Session) -> None:
    """The server does not know the id: SandboxNotFoundError, unless it may be missing."""
    unknown = new_sandbox_id()
    with pytest.raises(aviato.SandboxNotFoundError) as caught:
        aviato.Sandbox.from_id(unknown).result()
    assert caught.value.sandbox_id == unknown
    with pytest.raises(aviato.SandboxNotFoundError):
        aviato.Sandbox.delete(unknown).result()
    aviato.Sandbox.delete(unknown, missing_ok=True).result()


def test_by_its_id(session: aviato.Session) -> None:
    """`from_id` gives a handle of a running sandbox with its tags, annotations and limits."""
    tags, annotations = ("a tag", "step=7"), {"note": "kept"}
    sandbox = session.sandbox(tags=tags, annotations=annotations).wait()
    sandbox.write_file("f", b"x").result()
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.get_status() == SandboxStatus.RUNNING
    assert (again.tags, again.annotations, again.limits) == (tags, annotations, sandbox.limits)
    assert again.read_file("f").result() == b"x"


def test_lists(session: aviato.Session) -> None:
    """`Sandbox.list`: all tags must match; ended ones stay on record and are listed when asked for."""
    common, own = f"all-{uuid.uuid4().hex}", f"own-{uuid.uuid4().hex}"
    first, second = session.sandbox(tags=[common, own]).wait(), session.sandbox(tags=[common]).wait()

    def ids(**asked: object) -> set[str]:
        return {one.sandbox_id for one in aviato.Sandbox.list(**asked).result()}  # type: ignore[arg-type]

    assert ids(tags=[common]) == {first.sandbox_id, second.sandbox_id}
    assert ids(tags=[common, own]) == {first.sandbox_id}
    first.stop(graceful_shutdown_seconds=0).result()
    assert ids(tags=[common]) == {second.sandbox_id}
    assert ids(tags=[common], include_stopped=True) == {first.sandbox_id, second.sandbox_id}
    assert ids(tags=[common], status="terminated") == {first.sandbox_id}


def test_several_at_once(session: aviato.Session) -> None:
    """Sandboxes of a session start side by side, and each is a place of its own."""
    sandboxes = [session.sandbox(environment_variables={"NUMBER": str(number)}) for number in range(6)]
    written = [one.exec(["sh", "-c", "echo $NUMBER | tee own; ls"]) for one in sandboxes]
    assert [one.result().stdout for one in written] == [f"{number}\nown\n" for number in range(6)]


def test_one_that_is_given_up_while_it_starts(session: aviato.Session) -> None:
    """A stop of a sandbox that starts ends its start."""
    for _ in range(3):
        sandbox = session.sandbox()
        sandbox.stop(graceful_shutdown_seconds=0).result()
        assert sandbox.get_status() == SandboxStatus.TERMINATED
