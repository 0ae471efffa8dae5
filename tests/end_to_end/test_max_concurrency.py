"""`Session(max_concurrency=N)`: at most N at once, the others in order, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox, Session
from aviato.core import following
from aviato.core.client import Client


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_further_ones_wait_in_order_and_say_where(served: Any) -> None:
    with Session(max_concurrency=2) as session:
        made = [session.sandbox() for _ in range(5)]
        aviato.wait(made[:2])
        for sandbox in made:
            sandbox.start().result(5)  # a place in the queue is acceptance
        assert [sandbox.status for sandbox in made] == ["running", "running", "pending", "pending", "pending"]
        assert [one.status_reason for one in made[2:]] == [f"queued: place {n} in its session's queue" for n in (1, 2, 3)]
        assert made[4].get_status() == "pending"
        assert session.sandbox_count == 5
        waiting = made[2].exec(["echo", "its turn"])
        with pytest.raises(aviato.OperationTimeoutError) as caught:
            waiting.result(0.3)
        assert caught.value.is_infrastructure
        assert caught.value.status_reason == "queued: place 1 in its session's queue"
        made[3].stop().result()
        assert (made[3].status, made[3].status_reason, made[3].get_status()) == ("terminated", "stopped", "terminated")
        with pytest.raises(aviato.SandboxNotRunningError):
            made[3].exec(["true"]).result()
        with pytest.raises(aviato.SandboxNotFoundError):
            Sandbox.from_id(made[3].sandbox_id).result()
        assert made[4].status_reason == "queued: place 2 in its session's queue"
        made[0].stop().result()
        assert waiting.result(10).stdout == "its turn\n"
        assert made[4].status == "pending"
        made[1].stop()
        made[4].wait(10)
        assert session.get_metrics()["aviato/max_startup_seconds"] > 0.3
    assert all(sandbox.status.is_terminal for sandbox in made)


def calls_on(session: Session, sandbox: Sandbox) -> dict[str, Callable[[float], object]]:
    """Ways to wait for something of a sandbox, each with a number of seconds."""

    @session.function()
    def function() -> int:
        return 1

    def command() -> aviato.Process:
        return sandbox.exec(["sleep", "60"])

    files = {"test_a.py": b"def test_a(): time.sleep(60)"}
    grading = sandbox.grade(files, ["python", "-m", "pytest", "test_a.py"])
    return {
        "exec": command().result,
        "write_file": sandbox.write_file("solution.py", b"x").result,
        "read_file": sandbox.read_file("solution.py").result,
        "upload": sandbox.upload(__file__, "copy").result,
        "Sandbox.wait": sandbox.wait,
        "wait_until_complete": lambda seconds: sandbox.wait_until_complete(seconds).result(),
        "wait_until_complete.result": sandbox.wait_until_complete().result,
        "as_completed, a sandbox": lambda seconds: list(aviato.as_completed([sandbox], seconds)),
        "as_completed, more": lambda seconds: list(aviato.as_completed([command(), sandbox, sandbox.stat(".")], seconds)),
        "function": function().result,
        "grade": grading.result,
        "snapshot": sandbox.snapshot().result,
    }


def test_who_waits_in_vain_for_a_place_does_not_blame_the_task(served: Any) -> None:
    with Session(max_concurrency=1) as session:
        holder = session.sandbox().wait()
        errors: dict[str, Any] = {}
        for what, call in calls_on(session, session.sandbox()).items():
            with pytest.raises(TimeoutError) as caught:
                call(0.05)
            errors[what] = caught.value
        assert {what: str(error) for what, error in errors.items() if "queued: place " not in str(error)} == {}
        assert [what for what, error in errors.items() if not error.is_infrastructure] == []
        assert holder.status == "running"


def test_who_waits_in_vain_for_a_place_on_the_server_does_not_blame_the_task(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=1).url)
    with Session() as session:
        first, second = session.sandbox().wait(), session.sandbox()
        writing = second.write_file("x", b"x")
        until(lambda: second.get_status() == "pending")
        for call in (writing.result, second.wait, lambda seconds: list(aviato.as_completed([writing, second], seconds))):
            with pytest.raises(aviato.OperationTimeoutError, match="place 1 in the server's queue") as caught:
                call(0.1)
            assert caught.value.is_infrastructure
        first.stop().result()


def test_who_waits_in_vain_for_what_runs_may_blame_the_task(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody has told this process yet that the sandbox runs: it is asked about then."""
    monkeypatch.setattr(following, "SOON_SECONDS", 60.0)
    with Session(max_concurrency=1) as session:
        sandbox = session.sandbox()
        ending = sandbox.wait_until_complete()
        until(lambda: sandbox.sandbox_id in [one.sandbox_id for one in Sandbox.list(status="running").result()])
        assert sandbox.status == "pending"
        queued = session.sandbox().exec(["true"])
        with pytest.raises(aviato.OperationTimeoutError, match="the first is pending") as caught:
            list(aviato.as_completed([queued, ending], 0.1))
        assert not caught.value.is_infrastructure
        with pytest.raises(aviato.OperationTimeoutError) as caught:
            ending.result(0.1)
        assert not caught.value.is_infrastructure and caught.value.status_reason is None


def test_every_end_makes_room(served: Any) -> None:
    """A stop of ours is one; an end that this process was not told of is noticed as soon as somebody waits."""
    with Session(max_concurrency=1) as session:
        for sandbox in (session.sandbox(max_lifetime_seconds=0.3), session.sandbox(command="true"), session.sandbox()):
            sandbox.wait(10)
        subprocess.run([sys.executable, "-m", "aviato", "stop", sandbox.sandbox_id], check=True)
        failing = session.sandbox(container_image="no/such:image")
        assert isinstance(failing.start().exception(), (aviato.SandboxImageError, type(None)))
        with pytest.raises(aviato.SandboxImageError):
            failing.wait(10)
        session.sandbox().wait(10)


def test_a_batch_that_is_let_go_passes_through(served: Any) -> None:
    with Session(aviato.SandboxDefaults(tags=["let-go"]), max_concurrency=2) as session:
        most = [0]
        ended = threading.Event()

        def count() -> None:
            while not ended.wait(0.05):
                most[0] = max(most[0], len(Sandbox.list(tags=["let-go"]).result()))

        counting = threading.Thread(target=count)
        counting.start()
        try:
            results = aviato.results([session.sandbox().exec(["echo", str(n)]) for n in range(16)])
        finally:
            ended.set()
            counting.join()
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(16)]
        assert 1 <= most[0] <= 2
        reasons = {one.status_reason for one in Sandbox.list(tags=["let-go"], status="terminated").result()}
        assert reasons == {"released"}


def test_async_form(served: Any) -> None:
    async def main() -> None:
        async with Session(max_concurrency=2) as session:

            async def episode(n: int) -> str:
                async with session.sandbox() as sandbox:
                    return (await sandbox.exec(["echo", str(n)])).stdout

            assert await asyncio.gather(*map(episode, range(10))) == [f"{n}\n" for n in range(10)]

    asyncio.run(main())


def test_what_may_still_be_used_is_not_released(served: Any) -> None:
    with Session(max_concurrency=3) as session:
        kept = session.sandbox().wait()
        copied = session.sandbox().wait()
        other = pickle.loads(pickle.dumps(copied))
        busy = session.sandbox().exec(["sh", "-c", "echo up; read _"], stdin=True)
        assert next(iter(busy.stdout)) == "up\n"
        del copied
        gc.collect()
        waiting = session.sandbox()
        with pytest.raises(aviato.OperationTimeoutError):
            waiting.wait(0.5)
        busy.stdin.close().result()
        waiting.wait(30)
        assert kept.exec(["true"]).result().returncode == 0
        assert other.exec(["true"]).result().returncode == 0
        assert busy.result(0).returncode != 0  # It has read the end of its input.


def test_one_that_another_process_uses_is_not_released(served: Any) -> None:
    """Only the server knows of that; the session asks again until it is so."""

    async def main() -> None:
        async with Session(max_concurrency=1) as session, AsyncClient(base_url=served.url) as client:
            sandbox = await session.sandbox()
            process = (await client.from_id(sandbox.sandbox_id)).spawn(["sh", "-c", "sleep 1.5; echo whole"])
            while not process._execution.started:
                await asyncio.sleep(0.02)
            del sandbox
            gc.collect()
            await session.sandbox()
            assert (await process).stdout == "whole\n"

    asyncio.run(main())


def test_a_main_command_that_was_let_go_runs_to_its_end(served: Any) -> None:
    with Session(max_concurrency=1) as session:
        sandbox_id = session.sandbox(command="sh", args=["-c", "sleep 0.5; exit 7"]).sandbox_id
        gc.collect()
        session.sandbox().wait(10)
        assert Sandbox.from_id(sandbox_id).result().returncode == 7


def test_adopted_ones_count(served: Any) -> None:
    with Sandbox() as first, Sandbox() as second, Session(max_concurrency=1) as session:
        session.adopt(first.wait())
        assert session.from_id(second.sandbox_id).result() is not None
        waiting = session.sandbox()
        until(lambda: waiting.status == "pending")
        first.stop().result()
        time.sleep(0.2)
        assert waiting.status_reason == "queued: place 1 in its session's queue"
        second.stop().result()
        waiting.wait(10)


def test_closing_ends_who_waits(served: Any) -> None:
    session = Session(aviato.SandboxDefaults(tags=["closing"]), max_concurrency=1)
    made = [session.sandbox() for _ in range(40)]
    commands = [sandbox.exec(["sleep", "60"]) for sandbox in made]
    made[0].wait()
    session.close().result(20)
    for command in commands:
        with pytest.raises(aviato.SandboxNotRunningError):
            command.result(5)
    assert {sandbox.status for sandbox in made} == {"terminated"}
    assert len(Sandbox.list(tags=["closing"], include_stopped=True).result()) == 1


def test_a_cancelled_waiter_leaves_the_queue_as_it_is(served: Any) -> None:
    with Session(max_concurrency=1) as session:
        first = session.sandbox().wait()
        second, third = session.sandbox(), session.sandbox()
        command = second.exec(["touch", "/tmp/ran"])

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(third, 0.2)

        asyncio.run(main())
        assert command.cancel()
        assert isinstance(command.exception(5), aviato.OperationCancelledError)
        assert second.status_reason == "queued: place 1 in its session's queue"
        first.stop().result()
        assert second.exec(["test", "-e", "/tmp/ran"]).result(10).returncode == 1
        second.stop().result()
        third.wait(10)


def test_from_threads(served: Any) -> None:
    with Session(max_concurrency=3) as session:
        said: list[str] = []

        def work(n: int) -> None:
            said.extend(session.sandbox().exec(["echo", f"{n}.{step}"]).result(40).stdout for step in range(3))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(said) == sorted(f"{n}.{step}\n" for n in range(6) for step in range(3))


def test_room_is_made_however_much_is_told_of_others(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that is far away there is always something of theirs that was not told yet."""
    acknowledge = Client.acknowledge

    async def from_afar(client: Client, told: Any) -> None:
        await asyncio.sleep(0.2)
        await acknowledge(client, told)

    monkeypatch.setattr(Client, "acknowledge", from_afar)
    with Session(max_concurrency=2) as session:
        busy, over = session.sandbox(), threading.Event()

        def work() -> None:
            while not over.is_set():
                busy.exec(["true"]).result(20)

        threads = [threading.Thread(target=work) for _ in range(4)]
        try:
            session.sandbox().exec(["true"]).result(20)
            gc.collect()
            for thread in threads:
                thread.start()
            session.sandbox().wait(10)
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_a_forked_child_has_a_queue_of_its_own(served: Any, script: Any) -> None:
    done = script("""
        import os, aviato
        with aviato.Session(max_concurrency=1) as session:
            first, second = session.sandbox().wait(), session.sandbox()
            pid = os.fork()
            if pid == 0:
                assert session.sandbox().exec(["echo", "child"]).result(10).stdout == "child\\n"
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert second.status == "pending"
            first.stop().result()
            second.wait(10)
        print("ok")
    """)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_who_holds_the_places_is_said_where_nothing_can_be_freed(
    served: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aviato.core.concurrency_slots.WARNING_SECONDS", 0.3)
    caplog.set_level(logging.INFO, "aviato")
    with Session(max_concurrency=2) as session:
        kept, busy = aviato.wait([session.sandbox(), session.sandbox()])[0]
        running = busy.exec(["sleep", "60"])
        waiting = [session.sandbox(), session.sandbox()]
        until(lambda: sum("max_concurrency=2" in message for message in caplog.messages) >= 2)
        running.cancel()
    told = [record for record in caplog.records if "max_concurrency=2" in record.message]
    assert told[0].levelname == "WARNING"
    assert told[0].message.startswith("2 sandboxes wait for a slot in their session")
    assert f"1 running a command or call ({busy.sandbox_id}), 1 unused but kept ({kept.sandbox_id})" in told[0].message
    assert f"sandbox {waiting[1].sandbox_id} waits: place 2 in its session's queue, 2 of 2 in use" in caplog.messages


def test_who_waits_for_a_server_that_died_hears_of_it(make_server: Any) -> None:
    server = make_server()
    defaults = aviato.SandboxDefaults(base_url=server.url, reconnect_timeout_seconds=1)
    session = Session(defaults, max_concurrency=1)
    session.sandbox().wait()
    kept = session.sandbox()
    waiting = session.sandbox().exec(["true"])
    kept.wait(10)
    server.process.kill()
    with pytest.raises(aviato.SandboxUnavailableError):
        waiting.result(30)
    session._made.clear()


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError), ("2", TypeError)]
)
def test_what_can_be_no_limit_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_concurrency must be"):
        Session(max_concurrency=value)
