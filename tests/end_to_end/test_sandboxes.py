"""A sandbox's life, as its user sees it."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import time
import weakref
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxDefaults, SandboxStatus


def test_construction_is_free_and_the_id_is_known(served: Any) -> None:
    sandbox = Sandbox(tags=["a"])
    assert sandbox.sandbox_id.startswith("sb-")
    assert sandbox.status == SandboxStatus.UNSPECIFIED
    assert sandbox.get_status() == SandboxStatus.UNSPECIFIED
    assert sandbox.tags == ("a",)
    sandbox.stop().result()
    with pytest.raises(aviato.SandboxNotRunningError):
        sandbox.exec(["true"]).result()


def _fails_to_start(of: aviato.Session) -> Sandbox:
    """Its errors have gone through a frame that has the sandbox in it, and are gone with that."""
    sandbox = of.sandbox(container_image="nowhere/nothing:1")
    for _ in range(2):
        with pytest.raises(aviato.SandboxImageError):
            sandbox.exec(["true"]).result()
    with pytest.raises(aviato.SandboxImageError):
        sandbox.wait()
    return sandbox


def test_a_start_that_failed_keeps_no_object_alive(served: Any) -> None:
    with aviato.Session() as session:
        sandbox = weakref.ref(_fails_to_start(session))
        gc.collect()
        assert sandbox() is None


def test_with_starts_and_stops(served: Any) -> None:
    with Sandbox(annotations={"who": "me"}) as sandbox:
        assert sandbox.wait().status == "running"
        assert sandbox.annotations == {"who": "me"}
        assert sandbox.created_at is not None
        assert sandbox.started_at is not None
        assert sandbox.limits["processes"].strength == "hard"
    assert (sandbox.get_status(), sandbox.status_reason) == ("terminated", "stopped")
    with pytest.raises(aviato.SandboxNotRunningError, match="stopped") as caught:
        sandbox.exec(["true"]).result()
    assert not caught.value.is_infrastructure
    assert caught.value.started is False


def test_await_gives_a_running_sandbox(served: Any) -> None:
    async def main() -> None:
        sandbox = await Sandbox()
        assert sandbox.status == "running"
        assert await sandbox is sandbox
        await sandbox.stop()

    asyncio.run(main())


def test_an_idle_sandbox_stops_at_once_and_stopping_twice_is_fine(served: Any) -> None:
    sandbox = Sandbox.run()
    sandbox.wait()
    begin = time.monotonic()
    stops = [sandbox.stop() for _ in range(3)]
    for stop in stops:
        stop.result()
    assert time.monotonic() - begin < 1
    sandbox.stop().result()


def test_stop_during_start_leaves_nothing(served: Any) -> None:
    tag = "stop-during-start"
    sandboxes = [Sandbox(tags=[tag]) for _ in range(10)]
    starts = [sandbox.start() for sandbox in sandboxes]
    for sandbox in sandboxes:
        sandbox.stop()
    for sandbox, start in zip(sandboxes, starts, strict=True):
        start.exception()
        sandbox.stop().result()
    assert Sandbox.list(tags=[tag]).result() == []


def test_a_command_running_at_the_stop_counts_as_cancelled(session: aviato.Session) -> None:
    sandbox = session.sandbox()
    process = sandbox.exec(["sleep", "60"])
    sandbox.wait()
    sandbox.stop(graceful_shutdown_seconds=0).result()
    with pytest.raises(aviato.SandboxNotRunningError):
        process.result(10)
    with pytest.raises(aviato.SandboxNotRunningError):
        list(process.stdout)
    assert process.poll() is None
    assert sandbox.execution_stats == {"total": 0, "successes": 0, "failures": 0, "errors": 0}
    assert session.get_metrics()["aviato/exec_cancelled"] == 1


def test_main_command(served: Any) -> None:
    sandbox = Sandbox.run("sh", "-c", "echo to-the-log; exit 3")
    assert sandbox.wait_until_complete(20).result() is sandbox
    assert (sandbox.status, sandbox.returncode, sandbox.status_reason) == ("failed", 3, "exited")
    assert "".join(sandbox.stream_logs()) == "to-the-log\n"
    with pytest.raises(aviato.SandboxFailedError) as caught:
        sandbox.exec(["true"]).result()
    assert not caught.value.is_infrastructure
    done = Sandbox.run("true")
    done.wait_until_complete(20).result()
    assert (done.status, done.returncode) == ("completed", 0)
    with pytest.raises(aviato.SandboxNotRunningError):
        done.exec(["true"]).result()


def test_logs_are_followed(served: Any) -> None:
    sandbox = Sandbox.run("sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert list(sandbox.stream_logs(follow=True).lines()) == ["1", "2", "3"]
    assert b"".join(sandbox.stream_logs(follow=True).raw()) == b"1\n2\n3\n"


def test_logs_whose_reader_has_left_do_not_end_without_a_word(served: Any) -> None:
    with Sandbox(command="sh", args=["-c", "echo 1; echo 2; exec sleep 60"]) as sandbox:
        logs = sandbox.stream_logs(follow=True)
        for line in logs.lines():
            if line == "2":
                break
        again = []
        with pytest.raises(RuntimeError, match="left before its end; it is fetched once; ask for it again"):
            for line in logs.lines():
                again.append(line)  # noqa: PERF402 - what came before the error counts
        assert again == ["1", "2"]
        assert next(sandbox.stream_logs(follow=True).lines()) == "1"


def test_waiting_for_the_end(served: Any) -> None:
    with Sandbox() as sandbox:
        with pytest.raises(aviato.SandboxTimeoutError) as caught:
            sandbox.wait_until_complete(0.2).result()
        assert not caught.value.is_infrastructure
        waiting = sandbox.wait_until_complete(raise_on_termination=False)
        raising = sandbox.wait_until_complete()
        sandbox.stop().result()
        assert waiting.result(10) is sandbox
        with pytest.raises(aviato.SandboxNotRunningError):
            raising.result(10)


def test_lifetime(served: Any) -> None:
    sandbox = Sandbox.run(max_lifetime_seconds=0.5)
    process = sandbox.exec(["sleep", "60"])
    with pytest.raises(aviato.SandboxTerminatedError) as caught:
        process.result(20)
    assert (caught.value.reason, caught.value.is_infrastructure) == ("lifetime", False)
    assert caught.value.started
    sandbox.wait_until_complete(10, raise_on_termination=False).result()
    assert (sandbox.get_status(), sandbox.status_reason) == ("terminated", "lifetime")


def test_listing(served: Any) -> None:
    tags = ["listing", "é"]
    with Sandbox(tags=tags) as first, Sandbox(defaults=SandboxDefaults(tags=tags)) as second:
        assert not Sandbox.list(tags=[*tags, "other"]).result()
        for status in ("running", SandboxStatus.RUNNING, ["pending", SandboxStatus.RUNNING]):
            first.wait()
            second.wait()
            found = Sandbox.list(tags=tags, status=status).result()
            assert [one.sandbox_id for one in found] == [first.sandbox_id, second.sandbox_id]
        first.stop().result()
        assert [one.sandbox_id for one in Sandbox.list(tags=tags).result()] == [second.sandbox_id]
        assert len(Sandbox.list(tags=tags, include_stopped=True).result()) == 2
        assert [one.status for one in Sandbox.list(tags=tags, status="terminated").result()] == ["terminated"]
    with pytest.raises(ValueError, match="valid are pending, creating, running"):
        Sandbox.list(status="runing")
    with pytest.raises(TypeError, match="list"):
        Sandbox.list(tags="one")


def test_by_id(served: Any) -> None:
    with Sandbox() as sandbox:
        found = Sandbox.from_id(sandbox.sandbox_id).result()
        assert found.exec(["echo", "found"]).result().stdout == "found\n"
        Sandbox.delete(sandbox.sandbox_id).result()
        Sandbox.delete(sandbox.sandbox_id).result()
        assert found.get_status() == "terminated"


@pytest.mark.parametrize("sandbox_id", ["sb-00000000000000000000000000", "../../etc", "nope"])
def test_unknown_ids(served: Any, sandbox_id: str) -> None:
    with pytest.raises(aviato.SandboxNotFoundError) as caught:
        Sandbox.from_id(sandbox_id).result()
    assert caught.value.sandbox_id == sandbox_id
    with pytest.raises(aviato.SandboxNotFoundError):
        Sandbox.delete(sandbox_id).result()
    Sandbox.delete(sandbox_id, missing_ok=True).result()


def test_a_pickled_sandbox_is_used_and_not_owned(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_API_KEY", "very-secret-key")
    with Sandbox(environment_variables={"NAME": "value"}) as sandbox:
        data = pickle.dumps(sandbox)
        assert b"very-secret-key" not in data
        copy = pickle.loads(data)
        assert copy.sandbox_id == sandbox.sandbox_id
        assert copy.exec(["sh", "-c", "echo $NAME"]).result().stdout == "value\n"
    unstarted = pickle.loads(pickle.dumps(Sandbox()))
    assert unstarted.exec(["true"]).result().returncode == 0
    unstarted.stop().result()


def test_reprs_and_errors_show_no_secret(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "s3cr3t-value"
    defaults = SandboxDefaults(environment_variables={"TOKEN": secret})
    with Sandbox(defaults=defaults) as sandbox:
        process = sandbox.exec(["false"], env={"OTHER": secret}, check=True)
        error = process.exception()
    shown = f"{defaults!r} {sandbox!r} {process!r} {error!r} {error} {caplog.text}"
    assert secret not in shown


@pytest.mark.parametrize("name", ["runway_ids", "tower_ids"])
def test_placement(name: str) -> None:
    with Sandbox(**{name: ["elsewhere", "local"]}) as sandbox:
        sandbox.wait()
        assert (sandbox.runway_id, sandbox.tower_id) == ("local", "local")
    with pytest.raises(aviato.AviatoValidationError, match=f"{name}.*'elsewhere'.*'local'"):
        Sandbox.run(defaults=aviato.SandboxDefaults(**{name: ["elsewhere"]}))
    with pytest.raises(TypeError, match=name):
        Sandbox(**{name: "local"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runtime", "runsc"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(aviato.AviatoValidationError, match=name) as caught:
        Sandbox(**{name: value})
    assert name in caught.value.field_violations
    with aviato.Session() as session, pytest.raises(aviato.AviatoValidationError, match=name):
        session.sandbox(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tags": "one"}, TypeError),
        ({"tags": [""]}, ValueError),
        ({"tags": ["a\nb"]}, ValueError),
        ({"tags": ["x" * 257]}, ValueError),
        ({"command": ["sh"]}, TypeError),
        ({"args": ["-c"]}, ValueError),
        ({"command": "sh", "args": "-c"}, TypeError),
        ({"max_lifetime_seconds": -1}, ValueError),
        ({"idle_timeout_seconds": 0}, ValueError),
        ({"idle_timeout_seconds": "5"}, TypeError),
        ({"exec_timeout_seconds": 0}, ValueError),
        ({"request_timeout_seconds": float("nan")}, ValueError),
        ({"working_dir": "relative"}, ValueError),
        ({"base_url": "ftp://x"}, ValueError),
        ({"base_url": "unix://relative"}, ValueError),
        ({"base_url": "http://user:pw@host"}, ValueError),
        ({"environment_variables": {"A": 1}}, TypeError),
        ({"annotations": {"A": 1}}, TypeError),
        ({"container_image": ""}, ValueError),
        ({"defaults": {"tags": []}}, TypeError),
        ({"s3_mount": "bucket"}, TypeError),
    ],
)
def test_bad_arguments_are_refused_at_the_call(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Sandbox(**arguments)


def test_unknown_image(served: Any) -> None:
    with pytest.raises(aviato.SandboxImageError) as caught:
        Sandbox(container_image="localhost:1/no/such:image").exec(["true"]).result()
    assert caught.value.is_infrastructure
    with pytest.raises(aviato.SandboxImageError, match=r"3\.\d+"):
        Sandbox.run("true", container_image="dir:python-3.99")


def test_an_unreachable_server_is_tried_for_five_seconds() -> None:
    begin = time.monotonic()
    with pytest.raises(aviato.SandboxUnavailableError, match=r"tried \d+ times in") as caught:
        Sandbox.run(base_url="unix:///nowhere/at/all.sock")
    assert 4 < time.monotonic() - begin < 7
    assert caught.value.is_infrastructure


def test_operations_of_one_sandbox_from_threads_and_loops(served: Any) -> None:
    with Sandbox() as sandbox:
        said: list[str] = []

        def blocking() -> None:
            said.append(sandbox.exec(["echo", "thread"]).result().stdout)

        def looping() -> None:
            async def main() -> None:
                said.append((await sandbox.exec(["echo", "loop"])).stdout)

            asyncio.run(main())

        threads = [threading.Thread(target=target) for target in (blocking, blocking, blocking, looping, looping)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(said) == ["loop\n"] * 2 + ["thread\n"] * 3


def test_one_ref_in_two_loops_and_a_thread(served: Any) -> None:
    with Sandbox() as sandbox:
        process = sandbox.exec(["echo", "once"])

        async def main() -> str:
            return (await process).stdout

        assert asyncio.run(main()) == asyncio.run(main()) == process.result().stdout == "once\n"
