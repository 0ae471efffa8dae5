"""What objects say of themselves: who they are and the beginning of what they hold, and no secret.

And a status that follows.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import pickle
import re
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import aviato
from aviato.core import following
from aviato.exceptions import AviatoError
from aviato.rl import CallCase, ProgramCase, Task, TestCase, evaluate
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict

SECRET = "s3cr3t-value"
LONG = "word " * 5000
MOST_CHARACTERS = 300


@pytest.fixture(scope="module")
def things(server: Any) -> Iterator[SimpleNamespace]:
    """One of each that needs a server."""
    defaults = aviato.SandboxDefaults(base_url=server.url, environment_variables={"TOKEN": SECRET})
    session = aviato.Session(defaults, max_concurrency=4)
    sandbox = session.sandbox(secrets=[aviato.Secret(store="env", name="HF_TOKEN")])
    process = sandbox.exec(["sh", "-c", "echo begun; cat; exit 3", LONG], stdin=True, env={"OTHER": SECRET})
    assert process.stdin is not None
    process.stdin.write(b"x" * 100_000).result()
    process.stdin.close().result()
    process.wait()
    terminal = sandbox.shell(["sh", "-c", "exit 4"])
    terminal.result()
    made = SimpleNamespace(session=session, sandbox=sandbox, process=process, terminal=terminal, defaults=defaults)
    yield made
    session.close().result()


RESULT = aviato.ProcessResult(
    returncode=137,
    command=("sh", "-c", LONG),
    stdout_bytes=LONG.encode(),
    stdout_bytes_total=len(LONG),
    stderr_bytes=b"\x1b[2J" * 400,
    timed_out=True,
    signal=9,
)
CASES = [aviato.GradeCase(name=f"test_{number}", passed=number % 3 > 0, message=LONG) for number in range(500)]
ONE_OF_EACH: dict[str, tuple[Callable[[Any], Any], str]] = {
    "AsyncClient": (lambda t: aviato.AsyncClient(defaults=t.defaults), r"<AsyncClient of unix://\S+: not entered>"),
    "FileInfo": (
        lambda t: t.sandbox.stat("/tmp").result(),
        r"FileInfo\(path='/tmp', size_bytes=\d+, mode=0o1777, .*'directory'.*",
    ),
    "GradeCase": (lambda _: CASES[0], r"GradeCase\(name='test_0', passed=False, status=.*failed.*, message='word .*…'\)"),
    "GradeResult": (
        lambda _: aviato.GradeResult(passed=False, cases=CASES, exec_result=RESULT, mode="separate", message=LONG),
        r"GradeResult\(passed=False, cases=<333 of 500 passed>, mode='separate', message='word .*…'\)",
    ),
    "Image": (lambda _: aviato.Image.from_("host").run(LONG), r"Image\(base='host', steps=.*"),
    "ImageInfo": (
        lambda _: aviato.ImageInfo(reference="debian:12", status="failed", message=LONG),
        r"ImageInfo\(reference='debian:12', status='failed', image_id=None, size_bytes=0, message='word .*…'\)",
    ),
    "PushInfo": (
        lambda _: aviato.PushInfo(reference="ghcr.io/a/b:1", status="pushing", layers_total=2),
        r"PushInfo\(reference='ghcr.io/a/b:1', status='pushing', layers_done=0, layers_total=2, .*\)",
    ),
    "Snapshot": (
        lambda _: aviato.Snapshot(
            snapshot_id="sn-1", name=LONG, sandbox_id="sb-1", image="host", image_id="sha256:1", size_bytes=5, created_at=0.0
        ),
        r"Snapshot\(snapshot_id='sn-1', sandbox_id='sb-1', name='word .*…', size_bytes=5\)",
    ),
    "NetworkOptions": (
        lambda _: aviato.NetworkOptions(egress_mode=[f"{n}.example.org" for n in range(60)]),
        r"NetworkOptions\(egress_mode=\('0\.exa.*",
    ),
    "OperationRef": (lambda t: t.sandbox.remove(LONG[:200]), r"<OperationRef remove .*>"),
    "Process": (lambda t: t.process, r"<Process exec 'sh -c echo begun; cat; .*…' in sb-\w+: returncode 3>"),
    "ProcessResult": (
        lambda t: t.process.result(),
        r"ProcessResult\(returncode=3, command='sh -c .*', stdout='begun\\nxxx.*…' of 100006 bytes, .*",
    ),
    "RemoteFunction": (
        lambda t: t.session.function()(test_one_of_each_says_who_it_is),
        r"<RemoteFunction .*\.test_one_of_each_says_who_it_is>",
    ),
    "ResourceOptions": (
        lambda _: aviato.ResourceOptions(limits={"memory": "1Gi"}),
        r"ResourceOptions\(limits={'memory': '1Gi'}\)",
    ),
    "Pool": (lambda t: t.session.pool(2), r"<Pool of 2 sandboxes>"),
    "ResourceUsage": (lambda t: t.process.result().usage, r"ResourceUsage\(cpu_seconds=.*"),
    "Sandbox": (lambda t: t.sandbox, r"<Sandbox sb-\w+ running>"),
    "SandboxDefaults": (
        lambda t: t.defaults,
        r"SandboxDefaults\(container_image=<the server's default>, .*environment_variables={'TOKEN': …}\)",
    ),
    "SandboxStatus": (lambda t: t.sandbox.status, r"<SandboxStatus.RUNNING: 'running'>"),
    "Secret": (
        lambda _: aviato.Secret(store="env", name="HF_TOKEN"),
        r"Secret\(store='env', name='HF_TOKEN', env_var='HF_TOKEN'\)",
    ),
    "Serialization": (lambda _: aviato.Serialization.JSON, r"<Serialization.JSON: 'json'>"),
    "Session": (lambda t: t.session, r"<Session of unix://\S+: 1 sandbox, at most 4 at once>"),
    "StreamReader": (lambda t: t.process.stdout, r"<StreamReader stdout of ex-\w+: 100006 bytes, ended>"),
    "StreamWriter": (lambda t: t.process.stdin, r"<StreamWriter stdin of ex-\w+: 100000 bytes, closed>"),
    "TerminalResult": (lambda t: t.terminal.result(), r"TerminalResult\(returncode=4, .*"),
    "TerminalSession": (lambda t: t.terminal, r"<TerminalSession terminal ex-\w+ in sb-\w+: returncode 4>"),
}
CLASSES = {name for name in aviato.__all__ if inspect.isclass(getattr(aviato, name))}
ERRORS = sorted(name for name in CLASSES if issubclass(getattr(aviato, name), AviatoError))
WARNINGS = {"AsyncUsageWarning"}


def test_every_public_class_is_in_the_table() -> None:
    assert {*ONE_OF_EACH, *ERRORS, *WARNINGS} == CLASSES


def check(said: str) -> None:
    assert said.isprintable() and len(said) <= MOST_CHARACTERS and SECRET not in said, (len(said), said)
    assert " object at 0x" not in said, said


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_one_of_each_says_who_it_is(things: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, pattern = ONE_OF_EACH[name]
    thing = make(things)
    assert isinstance(thing, getattr(aviato, name))
    gc.collect()  # What tests before have left is let go by the call that is replaced here.
    with monkeypatch.context() as patch:
        patch.setattr("aviato.bridge.operation.loop_thread", lambda *_: pytest.fail("a repr asks nobody"))
        for said in (repr(thing), str(thing) if not isinstance(thing, str) else repr(thing)):
            check(said)
            assert re.fullmatch(pattern, said), said
    if isinstance(thing, aviato.OperationRef):
        thing.exception()  # seen


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    error = getattr(aviato, name)(LONG)
    check(repr(error))
    assert repr(error).startswith(f"{name}('word word") and str(error) == LONG
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)
    assert repr(getattr(aviato, name)("it's\nso")) == f'{name}("it\'s\\nso")'


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (aviato.SandboxDefaults(), "SandboxDefaults(container_image=<the server's default>)"),
        (aviato.SandboxDefaults(container_image="python:3.11"), "SandboxDefaults(container_image='python:3.11')"),
        (
            aviato.SandboxDefaults().with_overrides(tags=["a"]),
            "SandboxDefaults(container_image=<the server's default>, tags=('a',))",
        ),
        (
            aviato.SandboxDefaults(base_url=f"http://me:{SECRET}@host"),
            "SandboxDefaults(container_image=<the server's default>, base_url='http://…@host')",
        ),
        (aviato.NetworkOptions(), "NetworkOptions()"),
        (
            aviato.ProcessResult(returncode=0, command=("true",)),
            "ProcessResult(returncode=0, command='true', stdout='', stderr='', duration_seconds=0)",
        ),
        (RESULT, None),
        (aviato.FileInfo(path=LONG, size_bytes=1, mode=0, mtime=0.0, type="file"), None),
        (aviato.Session(), "<Session of the embedded server: 0 sandboxes>"),
        (aviato.Sandbox(environment_variables={"A": SECRET}), None),
        (
            Outcome(
                verdict=Verdict.FAILED,
                message=LONG,
                cases=tuple(CaseOutcome(name=LONG, passed=False, reason="killed") for _ in range(99)),
            ),
            None,
        ),
        (CaseOutcome(name=LONG, passed=False, reason="assertion", message=LONG), None),
        (Task(code=LONG, tests=["assert f(1) == 2  # " + LONG] * 50), None),
        (TestCase(source=LONG), None),
        (ProgramCase(LONG, LONG, files={"a": b"x" * 100_000}), None),
        (CallCase("f", [LONG] * 50, [list(range(10_000))]), None),
        (aviato.as_completed([]), "<AsCompleted: 0 of 0 to come>"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_more_of_them(thing: Any, said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    check(repr(thing))
    assert said is None or repr(thing) == said


def test_a_result_begins_with_what_was_said() -> None:
    said = repr(RESULT)
    assert said.startswith("ProcessResult(returncode=137, timed_out=True, signal=9, command='sh -c word"), said
    assert "stdout='word word" in said and f"…' of {len(LONG)} bytes, stderr='\\x1b[2J\\x1b" in said, said
    assert said.endswith("duration_seconds=0)")
    assert "oom_killed=True" in repr(aviato.ProcessResult(returncode=137, command=("x",), oom_killed=True))


def test_those_of_an_async_client(server: Any) -> None:
    async def main() -> None:
        async with aviato.AsyncClient(base_url=server.url) as client:
            assert repr(client) == f"<AsyncClient of {server.url}: open>"
            sandbox = await client.sandbox(environment_variables={"A": SECRET})
            process = sandbox.spawn(["sh", "-c", "exit 3"], env={"B": SECRET})
            running, terminal = repr(process), sandbox.shell(["true"])
            await process
            await terminal
            for said in (running, repr(process), repr(terminal), repr(sandbox)):
                check(said)
            assert running.endswith(": running>") and repr(process).endswith(
                "'sh -c exit 3' in " + f"{sandbox.sandbox_id}: returncode 3>"
            )
            assert repr(sandbox) == f"<AsyncSandbox {sandbox.sandbox_id} running>"
            cancelled = sandbox.spawn(["sleep", "9"])
            cancelled.cancel()
            await asyncio.wait([cancelled._task])
            check(repr(cancelled))

    asyncio.run(main())


def test_an_evaluation(things: Any) -> None:
    found = evaluate([Task(code="x = 1", tests=["assert x == 1", "assert x == 2"])], session=things.session)
    [outcome] = found.result(30)
    check(repr(found))
    check(repr(found.items[0]))
    assert repr(outcome).startswith("Outcome(verdict='failed', message='test_2: assertion failed', cases=<1 of 2 passed>, ")


# -- a status that follows


def until(status: str, sandbox: Any, seconds: float = 20) -> None:
    """Look, and ask nobody."""
    deadline = time.monotonic() + seconds
    while sandbox.status != status:
        assert time.monotonic() < deadline, sandbox
        time.sleep(0.01)
    assert f" {status}" in repr(sandbox)


@pytest.fixture
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


ENDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a lifetime": ({"max_lifetime_seconds": 0.5}, "terminated", "lifetime"),
    "an idle timeout": ({"idle_timeout_seconds": 0.5}, "terminated", "idle"),
    "a main command": ({"command": "sh", "args": ["-c", "exit 3"]}, "failed", "exited"),
    "one that ends well": ({"command": "true"}, "completed", "exited"),
}


def test_one_that_nobody_uses_is_seen_to_run(session: aviato.Session) -> None:
    alone = aviato.Sandbox.run(base_url=session._connection.base_url)
    of_a_session = [session.sandbox() for _ in range(following.AT_A_TIME + 2)]
    for sandbox in [alone, *of_a_session]:
        until("running", sandbox)
        assert sandbox.started_at is not None
    alone.stop().result()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("used", [False, True])
def test_its_end_is_seen(session: aviato.Session, end: str, used: bool) -> None:
    options, status, reason = ENDS[end]
    sandbox = session.sandbox(**options)
    if used and "command" not in options:
        sandbox.exec(["true"]).wait()
        assert sandbox.status == "running"
    until(status, sandbox)
    assert sandbox.status_reason == reason and sandbox.returncode == {"failed": 3, "completed": 0}.get(status)


def test_one_that_is_used_on_is_not_idle(session: aviato.Session) -> None:
    sandbox = session.sandbox(idle_timeout_seconds=0.5)
    assert sandbox.exec(["sleep", "1.2"]).wait() == 0
    assert sandbox.status == "running"
    until("terminated", sandbox)


def test_an_end_that_a_call_ran_into_is_seen(session: aviato.Session) -> None:
    sandbox, other = session.sandbox(), session.sandbox()
    for each, call in ((sandbox, lambda: sandbox.exec(["sleep", "60"])), (other, lambda: other.read_file("/etc/passwd"))):
        assert each.exec(["true"]).wait() == 0
        ended = aviato.Sandbox.from_id(each.sandbox_id, base_url=session._connection.base_url).result()
        ended.stop().result()
        with pytest.raises(AviatoError):
            call().result(20)
        until("terminated", each)


def test_an_end_under_way_that_a_call_ran_into_is_seen_to_its_end(session: aviato.Session) -> None:
    """Its command has ended, of it there is something left: it is `terminating`, and does not stay so."""
    sandbox = session.sandbox()
    process = sandbox.exec(["sh", "-c", "sleep 60"])
    trap = sandbox.exec(["sh", "-c", "trap 'sleep 1' TERM; echo ready; sleep 60 & wait; sleep 1"])
    assert next(iter(trap.stdout)) == "ready\n"
    ended = aviato.Sandbox.from_id(sandbox.sandbox_id, base_url=session._connection.base_url).result()
    ending = ended.stop(graceful_shutdown_seconds=10)
    with pytest.raises(AviatoError):
        process.result(20)
    ending.result()
    until("terminated", sandbox)
    assert sandbox.status_reason == "stopped"


def test_one_of_an_async_client_is_seen_too(server: Any) -> None:
    async def main() -> None:
        async with aviato.AsyncClient(base_url=server.url) as client:
            sandbox = await client.sandbox(max_lifetime_seconds=0.5)
            for status in ("running", "terminated"):
                async with asyncio.timeout(20):
                    while sandbox.info is None or sandbox.info.status != status:
                        await asyncio.sleep(0.01)
                assert repr(sandbox) == f"<AsyncSandbox {sandbox.sandbox_id} {status}>"
            await client.sandbox()  # what is followed still when the client leaves is no task that nobody ended

    asyncio.run(main(), debug=True)


def test_who_is_used_at_once_is_not_asked_about(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    poll = aviato.core.client.Client.poll  # type: ignore[attr-defined]

    async def counted(self: Any, sandbox_id: str, until: str) -> Any:
        asked.append(sandbox_id)
        return await poll(self, sandbox_id, until)

    monkeypatch.setattr("aviato.core.client.Client.poll", counted)
    used = session.sandbox()
    used.exec(["true"]).wait()
    idle = session.sandbox()
    until("running", idle)
    assert asked == [idle.sandbox_id]
