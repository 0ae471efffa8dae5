"""Sessions: many sandboxes, counted and stopped together."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import signal
import threading
import time
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxDefaults, SandboxUnavailableError, Session
from aviato.policy import reporting


def test_a_batch_starts_by_itself_and_ends_with_the_session(served: Any) -> None:
    with Session(SandboxDefaults(tags=["batch"])) as session:
        sandboxes = [session.sandbox(tags=[f"n-{n}"]) for n in range(8)]
        done, pending = aviato.wait(sandboxes)
        assert (done, pending) == (sandboxes, [])
        assert session.sandbox_count == 8
        assert len(session.list(status="running").result()) == 8
        sandboxes[0].stop().result()
        assert session.sandbox_count == 7
    assert Sandbox.list(tags=["batch"]).result() == []
    assert session.sandbox_count == 0
    with pytest.raises(aviato.AviatoValidationError, match="closed"):
        session.sandbox()
    session.close().result()


def test_what_has_ended_and_was_dropped_is_not_counted(session: Session) -> None:
    for _ in range(3):
        with session.sandbox() as sandbox:
            sandbox.wait()
    session.sandbox(start=False).stop().result()
    sandbox = session.sandbox(command="true")
    sandbox.wait_until_complete().result()
    sandbox = session.sandbox()
    gc.collect()
    assert session.sandbox_count == 1
    sandbox.stop().result()
    assert session.sandbox_count == 0


def test_more_than_are_stopped_one_by_one(served: Any) -> None:
    with Session(SandboxDefaults(tags=["many"])) as session:
        aviato.wait([session.sandbox() for _ in range(20)])
        lazy = session.sandbox(start=False)
        assert lazy.status == "unspecified"
    assert Sandbox.list(tags=["many"]).result() == []


def test_async_form(served: Any) -> None:
    async def main() -> None:
        async with Session() as session:
            results = await asyncio.gather(*(echo(session.sandbox(), n) for n in range(5)))
            assert results == [f"{n}\n" for n in range(5)]

    async def echo(sandbox: Sandbox, n: int) -> str:
        return (await sandbox.exec(["echo", str(n)])).stdout

    asyncio.run(main())


def test_adopting(served: Any) -> None:
    with Sandbox() as sandbox:
        with Session() as session:
            assert session.from_id(sandbox.sandbox_id, adopt=False).result().exec(["true"]).result().returncode == 0
            assert session.sandbox_count == 0
            session.adopt(sandbox)
            sandbox.exec(["true"]).result()
            assert session.get_metrics()["aviato/executions"] == 1
            assert session.sandbox_count == 1
        assert sandbox.get_status() == "terminated"


def test_a_detached_sandbox_outlives_its_session(served: Any) -> None:
    with Session() as session:
        sandbox = session.sandbox(detached=True, tags=["detached"])
        sandbox.wait()
    assert sandbox.get_status() == "running"
    with Session() as session:
        assert [one.sandbox_id for one in session.list(tags=["detached"], adopt=True).result()] == [sandbox.sandbox_id]
    assert sandbox.get_status() == "terminated"


def test_the_error_of_the_body_wins(served: Any) -> None:
    with pytest.raises(ZeroDivisionError), Session() as session:
        session.sandbox().wait()
        _ = 1 / 0


def test_metrics(session: Session) -> None:
    sandbox = session.sandbox()
    sandbox.exec(["true"]).result()
    assert session.get_metrics()["aviato/executions"] == 1
    sandbox.exec(["false"]).result()
    with pytest.raises(aviato.SandboxExecutionError):
        sandbox.exec(["false"], check=True).result()
    with pytest.raises(aviato.SandboxCommandTimeoutError):
        sandbox.exec(["sleep", "9"], timeout_seconds=0.2).result()
    cancelled = sandbox.exec(["sleep", "9"])
    cancelled.cancel()
    cancelled.exception()
    metrics = session.get_metrics()
    assert {name.removeprefix("aviato/"): metrics[name] for name in metrics if "exec" in name and "seconds" not in name} == {
        "executions": 4,
        "exec_successes": 1,
        "exec_completed_ok": 1,
        "exec_failures": 2,
        "exec_completed_nonzero": 2,
        "exec_errors": 1,
        "exec_cancelled": 1,
        "exec_timeouts": 1,
        "exec_completion_rate": 0.25,
        "exec_failure_rate": 0.25,
        "avg_execs_per_sandbox": 4,
        "min_execs_per_sandbox": 4,
        "max_execs_per_sandbox": 4,
    }
    assert metrics["aviato/sandboxes_created"] == metrics["aviato/startup_count"] == 1
    assert sandbox.exec_stats == {"exec_count": 4, "completed_ok": 1, "completed_nonzero": 2, "failures": 1}
    assert session.log_metrics(step=1) is False


def test_what_fails_while_a_session_closes_is_logged_though_its_server_is_gone(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []

    class Kept:
        name = "kept"

        def log(self, metrics: Any, step: int | None) -> bool:
            rows.append(metrics)
            return True

    monkeypatch.setitem(reporting._made, "kept", Kept())
    monkeypatch.setattr("aviato.api.session._ASK_FIRST", 0)  # It asks first which of many sandboxes live.
    server = make_server()
    session = Session(SandboxDefaults(base_url=server.url, reconnect_timeout_seconds=1.0), report_to=["kept"])
    running = session.sandbox().exec(["sh", "-c", "echo up; sleep 60"])
    assert next(iter(running.stdout)) == "up\n"
    server.stop(signal.SIGKILL)
    while not session.get_metrics()["aviato/retries"]:
        time.sleep(0.001)
    assert isinstance(session.close().exception(30), SandboxUnavailableError)
    assert isinstance(running.exception(30), SandboxUnavailableError)
    assert sum(row["aviato/infrastructure_errors"] for row in rows) == 1


def test_counters_are_exact_under_threads(session: Session) -> None:
    sandbox = session.sandbox()

    def work() -> None:
        for _ in range(5):
            sandbox.exec(["true"]).result()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.get_metrics()["aviato/exec_successes"] == 80


def test_a_full_server_releases_what_nobody_can_use(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=2).url)
    with Session() as session:
        results = aviato.results([session.sandbox().exec(["echo", str(n)]) for n in range(12)])
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(12)]
        kept = [session.sandbox(), session.sandbox()]
        aviato.results([sandbox.exec(["true"]) for sandbox in kept])
        waiting = session.sandbox().exec(["true"])
        with pytest.raises(aviato.OperationTimeoutError) as caught:
            waiting.result(1)
        assert caught.value.is_infrastructure
        assert caught.value.status_reason == "queued: place 1 in the server's queue"
        assert "(pending: queued: place 1" in str(caught.value)
        assert all(sandbox.get_status() == "running" for sandbox in kept)
        del kept[0]
        gc.collect()
        assert waiting.result(10).returncode == 0


@pytest.mark.parametrize("copy", ["found", "pickled"])
def test_a_copy_keeps_its_sandbox(make_server: Any, monkeypatch: pytest.MonkeyPatch, copy: str) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=1).url)
    with Session() as session:
        sandbox = session.sandbox().wait()
        other = Sandbox.from_id(sandbox.sandbox_id).result() if copy == "found" else pickle.loads(pickle.dumps(sandbox))
        del sandbox
        gc.collect()
        waiting = session.sandbox()
        with pytest.raises(aviato.OperationTimeoutError, match="place 1 in the server's queue") as caught:
            waiting.wait(0.5)
        assert pickle.loads(pickle.dumps(caught.value)).status_reason == waiting.status_reason
        assert other.exec(["echo", "x"]).result().stdout == "x\n"
        if copy == "found":
            del other
            gc.collect()
            waiting.wait(10)


def test_a_command_keeps_its_sandbox(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=1).url)
    with Session() as session:
        process = session.sandbox().exec(["sh", "-c", "echo up; sleep 1; echo whole"])
        assert next(iter(process.stdout)) == "up\n"  # Two creates at once may come in either order.
        gc.collect()
        assert session.sandbox().exec(["true"]).result(20).returncode == 0
        assert process.result(0.1).stdout == "up\nwhole\n"


def test_waiting_for_a_place_is_told(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from aviato.core.lease import Lease
    from aviato.wire.sandboxes import QueueInfo

    caplog.set_level(logging.WARNING)
    queue = QueueInfo(position=3, live=2, limit=2, holders={"pid 7": 2})
    here = Lease("unix:///nowhere", None)  # type: ignore[arg-type]
    here.waiting_in_queue(None)
    here.waiting_in_queue(queue)
    here.waiting_in_queue(queue)
    # A client of tests before may say that its server is gone.
    assert [said for said in caplog.messages if not said.startswith("the lease of")] == [
        "waiting for a sandbox: 2 of 2 are in use (pid 7 holds 2); place 3 in the queue"
    ]


def test_a_failed_start_reaches_the_command(caplog: pytest.LogCaptureFixture) -> None:
    defaults = SandboxDefaults(base_url="http://127.0.0.1:9", container_image="x")
    with Session(defaults, report_to=[]) as session:
        process = session.sandbox().exec(["true"])
        with pytest.raises(aviato.SandboxUnavailableError) as caught:
            process.result(20)
        assert caught.value.started is False
        session._made.clear()


def test_closed_by_many_threads_at_once(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One close, which logs each count once; what other threads make meanwhile is closed too, or refused."""
    rows: list[int] = []

    class Kept:
        name = "wandb"

        def log(self, metrics: Any, step: int | None) -> bool:
            rows.append(metrics["aviato/sandboxes_created"])
            return True

    monkeypatch.setitem(reporting._made, "wandb", Kept())
    session = Session(SandboxDefaults(tags=["closed-at-once"]))
    made: list[Sandbox] = []
    refused: list[Exception] = []
    session.sandbox().wait()

    deadline = time.monotonic() + 20

    def make() -> None:
        try:
            while time.monotonic() < deadline:
                made.append(session.sandbox())
                time.sleep(0.001)  # room for those that close
        except aviato.AviatoValidationError as error:
            refused.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    threads += [threading.Thread(target=lambda: session.close().result()) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3
    assert sum(rows) == len(made) + 1
    assert len(rows) <= 2
    assert session.sandbox_count == 0
    assert {sandbox.status for sandbox in made} <= {"terminated", "unspecified"}
    assert Sandbox.list(tags=["closed-at-once"]).result() == []
