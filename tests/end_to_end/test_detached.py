"""Detached commands and `attach`, across processes, servers and full disks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from aviato.server.service.output import ring

UNKNOWN = "ex-" + "0" * 26
NUMBERS = "i=0; while [ $i -lt 300 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done"


@pytest.fixture
def box(served: Any) -> Iterator[Sandbox]:
    """A detached sandbox: it does not end with whoever made it."""
    made = Sandbox.run(detached=True)
    yield made
    made.stop(0.0, missing_ok=True).result()


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
    return value


def runs(box: Sandbox, word: str) -> bool:
    return box.exec(["sh", "-c", f"cat /proc/[0-9]*/cmdline | grep -q {word[0]}[{word[1]}]{word[2:]}"]).result().returncode == 0


def kept(server: Any, box: Sandbox) -> list[Path]:
    while True:
        try:
            return list(Path(server.state_dir).glob(f"*/log/execs/{box.sandbox_id}/*/*"))
        except FileNotFoundError:
            pass  # It is being removed.


def in_another_process(script: Any, box: Sandbox, expression: str) -> str:
    done = script(f"""
        import aviato
        box = aviato.Sandbox.from_id({box.sandbox_id!r}).result()
        print({expression})
    """)
    assert done.returncode == 0, done.stderr
    return done.stdout  # type: ignore[no-any-return]


def test_another_process_reads_it_from_an_offset_while_it_runs_and_afterwards(box: Sandbox, script: Any) -> None:
    process = box.exec(["sh", "-c", "echo one; echo two; read go; echo three; echo bad >&2; exit 3"], stdin=True, detach=True)
    lines = process.stdout.lines()
    assert (next(lines), next(lines)) == ("one", "two")
    assert in_another_process(script, box, f"next(box.attach({process.exec_id!r}, 4).stdout.lines())") == "two\n"
    assert process.poll() is None
    assert process.stdin is not None
    process.stdin.writeline("go").result()
    assert process.result().returncode == 3
    for _ in range(2):
        other = box.attach(process.exec_id, stdout_offset=8, stderr_offset=1)
        assert (list(other.stdout.lines()), list(other.stderr)) == (["three"], ["ad\n"])
        result = other.result()
        assert (result.returncode, result.stdout, result.stderr, result.command) == (3, "three\n", "ad\n", process.command)
        assert (result.stdout_bytes_total, result.stderr_bytes_total, result.stdout_truncated) == (14, 4, True)
        assert result.duration_seconds == process.result().duration_seconds
    expression = f"box.attach({process.exec_id!r}).result().stdout.split()"
    assert in_another_process(script, box, expression) == "['one', 'two', 'three']\n"


def test_async_form(box: Sandbox, served: Any) -> None:
    async def main() -> None:
        process = box.exec(["sh", "-c", "echo begun; sleep 0.3; echo done"], detach=True)
        readers = [box.attach(process.exec_id) for _ in range(5)]
        texts = await asyncio.gather(*(everything(reader) for reader in [process, *readers]))
        assert texts == ["begun\ndone\n"] * 6
        assert [(await reader).returncode for reader in readers] == [0] * 5
        async with AsyncClient() as client:
            found = await client.from_id(box.sandbox_id)
            begun = found.spawn(["sh", "-c", "echo begun; sleep 1000 & wait"], detach=True)
            assert await anext(aiter(begun.stdout)) == "begun\n"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(begun, 0.1)
        async with AsyncClient() as client:
            found = await client.from_id(box.sandbox_id)
            other = found.attach(begun.exec_id, 2)
            assert await anext(aiter(other.stdout)) == "gun\n"
            assert not other.done()
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            with pytest.raises(aviato.OperationCancelledError):
                await found.attach(begun.exec_id)

    async def everything(process: aviato.Process) -> str:
        return "".join([text async for text in process.stdout])

    asyncio.run(main(), debug=True)


def test_it_lives_on_when_its_process_has_gone_at_once(box: Sandbox, script: Any) -> None:
    done = script(f"""
        import aviato
        box = aviato.Sandbox.from_id({box.sandbox_id!r}).result()
        command = ["sh", "-c", "echo begun; sleep 0.7; echo lived; cat; echo never"]
        print(box.exec(command, detach=True, stdin=True).exec_id)
    """)
    assert done.returncode == 0, done.stderr
    process = box.attach(done.stdout.strip())
    lines = process.stdout.lines()
    assert [next(lines), next(lines)] == ["begun", "lived"]
    assert process.stdin is None
    with pytest.raises(aviato.OperationTimeoutError) as caught:  # Its input is open still.
        process.result(0.3)
    assert caught.value.status_reason is None and "pending" not in str(caught.value)
    assert process.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        process.result()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_it_lives_on_when_its_process_is_interrupted_or_killed(box: Sandbox, end: signal.Signals) -> None:
    source = f"""
import aviato
process = aviato.Sandbox.from_id({box.sandbox_id!r}).result().exec(["sh", "-c", "echo up; sleep 1; echo lived"], detach=True)
next(iter(process.stdout))
print(process.exec_id, flush=True)
process.result()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        exec_id = child.stdout.readline().strip()
        child.send_signal(end)
        child.wait(20)
    assert box.attach(exec_id).result().stdout == "up\nlived\n"


def test_cancelling_a_waiter_lets_go_and_cancel_kills(box: Sandbox) -> None:
    process = box.exec(["sh", "-c", "echo up; setsid sleep 4711"], detach=True)
    assert next(iter(process.stdout)) == "up\n"

    async def impatient() -> None:
        await asyncio.wait_for(process, 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert not process.done()
    assert runs(box, "4711")
    process.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        process.result()
    assert not runs(box, "4711")


def test_no_time_limit_unless_it_is_given(served: Any) -> None:
    with Sandbox(exec_timeout_seconds=0.3) as sandbox:
        assert sandbox.exec(["sleep", "0.8"], detach=True).result().returncode == 0
        process = sandbox.exec(["sh", "-c", "echo before; sleep 60"], detach=True, timeout_seconds=0.3)
        other = sandbox.attach(process.exec_id)
        for one in (process, other, sandbox.attach(process.exec_id)):
            with pytest.raises(aviato.SandboxCommandTimeoutError) as caught:
                one.result()
            assert caught.value.exec_result is not None
            assert (caught.value.exec_result.stdout, one.poll()) == ("before\n", 137)


def test_what_was_pushed_out_is_a_gap_that_is_named(box: Sandbox) -> None:
    size = 40_000_000
    process = box.exec(["sh", "-c", f"head -c {size} /dev/zero; echo end; echo small >&2"], detach=True)
    # Whoever reads along may be too slow on a busy machine.
    result = box.attach(process.exec_id, stdout_offset=size).result()
    assert (result.stdout_bytes_total, result.stdout) == (size + 4, "end\n")
    late = box.attach(process.exec_id, stdout_offset=5)
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        list(late.stdout)
    with pytest.raises(aviato.SandboxExecutionError) as again:
        late.result()
    first = size + 4 - ring.KEPT_BYTES
    for error in (caught.value, again.value):
        assert (error.reason, error.is_infrastructure, error.started) == ("output_gap", False, True)
        assert f"bytes 5 to {first} of the stdout" in str(error)
        assert f"stdout_offset={first}" in str(error)
    rest = box.attach(process.exec_id, stdout_offset=first).result()
    assert len(rest.stdout_bytes) == ring.KEPT_BYTES
    assert (rest.stdout[-5:], rest.stderr) == ("\0end\n", "small\n")
    assert "left out" not in rest.stdout


def test_nobody_holds_it_up_and_a_slow_reader_misses_something(box: Sandbox) -> None:
    process = box.exec(["sh", "-c", "head -c 100000000 /dev/zero; echo done > /tmp/done"], detach=True)
    slow = iter(process.stdout)
    next(slow)
    wait_for(lambda: box.exec(["test", "-e", "/tmp/done"]).result().returncode == 0)
    with pytest.raises(aviato.SandboxExecutionError, match="are gone"):
        list(slow)
    assert process.exception() is not None
    assert box.attach(process.exec_id, 100_000_000).result().returncode == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((7,), TypeError),
        ((UNKNOWN, "1"), TypeError),
        ((UNKNOWN, True), TypeError),
        ((UNKNOWN, -1), aviato.AviatoValidationError),
        ((UNKNOWN, 0, 1 << 63), aviato.AviatoValidationError),
    ],
)
def test_bad_arguments_are_refused_at_the_call(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Sandbox(base_url="unix:///nowhere").attach(*arguments)


def test_what_is_not_there(box: Sandbox, served: Any) -> None:
    fetched = box.exec(["true"])
    fetched.result()
    for exec_id in (UNKNOWN, "nonsense", "../" + UNKNOWN):
        with pytest.raises(aviato.SandboxExecutionError, match=re.escape(exec_id)) as caught:
            box.attach(exec_id).result()
        assert (caught.value.reason, caught.value.is_infrastructure) == ("exec_not_found", False)
    wait_for(lambda: isinstance(box.attach(fetched.exec_id).exception(), aviato.SandboxExecutionError))
    never = Sandbox()
    with pytest.raises(aviato.SandboxExecutionError, match="no command"):
        never.attach(UNKNOWN).result()
    assert never.status == "unspecified"
    ended = box.exec(["echo", "x"], detach=True)
    ended.result()
    with pytest.raises(aviato.AviatoValidationError, match="wrote only 2 bytes"):
        box.attach(ended.exec_id, 3).result()


def test_a_sandbox_takes_what_is_kept_with_it(served: Any) -> None:
    box = Sandbox.run(detached=True)
    ended, running = (box.exec(["sh", "-c", command], detach=True) for command in ("echo x", "echo x; exec sleep 1000"))
    ended.result()
    next(iter(running.stdout))
    assert kept(served, box)
    reader = box.attach(running.exec_id)
    next(iter(reader.stdout))
    box.stop(0.0).result()
    for process in (running, reader, box.attach(ended.exec_id)):
        with pytest.raises(aviato.SandboxNotRunningError):
            process.result()
    wait_for(lambda: not kept(served, box))


def test_a_foreground_command_has_one_reader_the_newest(box: Sandbox) -> None:
    first = box.exec(["sh", "-c", "echo one; read go; echo two; exit 4"], stdin=True)
    assert next(iter(first.stdout)) == "one\n"
    second = box.attach(first.exec_id)
    assert next(iter(second.stdout)) == "one\n"
    with pytest.raises(aviato.SandboxUnavailableError, match="another reader") as caught:
        first.result()
    assert (caught.value.reason, caught.value.is_infrastructure) == ("replaced", True)
    assert second.poll() is None
    third = box.attach(first.exec_id)
    with pytest.raises(aviato.SandboxUnavailableError):
        second.result()
    box.exec(["sh", "-c", "for p in /proc/[0-9]*; do grep -q 'read go' $p/cmdline && echo go > $p/fd/0; done; true"]).result()
    assert (third.result().stdout, third.result().returncode) == ("one\ntwo\n", 4)


def test_a_foreground_command_is_read_on_when_its_process_was_killed(box: Sandbox) -> None:
    source = f"""
import aviato
process = aviato.Sandbox.from_id({box.sandbox_id!r}).result().exec(["sh", "-c", "echo up; sleep 1; echo lived; exit 5"])
next(iter(process.stdout))
print(process.exec_id, flush=True)
process.result()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        exec_id = child.stdout.readline().strip()
        child.kill()
    result = box.attach(exec_id).result()
    assert (result.stdout, result.returncode) == ("up\nlived\n", 5)
    assert result.command[0] == "sh"


def test_the_next_server_goes_on_where_the_killed_one_was(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    box = Sandbox.run(detached=True)
    program = "import sys,time,os\nfor n in range(400):\n os.write(1, b'%07d' % n * 9000); os.write(2, b'e'); time.sleep(.005)"
    expected = b"".join(b"%07d" % n * 9000 for n in range(400))[20_000_000:]
    process = box.exec(["python", "-c", program], detach=True)
    early = box.exec(["sh", "-c", "echo early; exit 6"], detach=True)
    assert early.result().returncode == 6
    wait_for(lambda: process.stdout.total_bytes > 3_000_000)
    server.process.kill()
    server.process.wait()
    server.restart()
    result = process.result()
    assert (result.stdout_bytes_total, result.stderr) == (400 * 63_000, "e" * 400)
    rest = box.attach(process.exec_id, 20_000_000).result()
    assert hashlib.sha256(rest.stdout_bytes).digest() == hashlib.sha256(expected).digest()
    again = box.attach(early.exec_id).result()
    assert (again.stdout, again.returncode, again.command[0]) == ("early\n", 6, "sh")
    box.stop(0.0).result()
    wait_for(lambda: not kept(server, box))


def test_a_full_disk_is_a_gap_of_ours_and_stalls_nobody(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    [where] = Path(server.state_dir).glob("*/log/execs")
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", where], check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        box = Sandbox.run(detached=True)
        process = box.exec(["sh", "-c", "head -c 5000000 /dev/zero; exit 2"], detach=True)
        error = process.exception(30)
        assert isinstance(error, aviato.SandboxExecutionError)
        assert (error.reason, error.is_infrastructure) == ("output_gap", True)
        result = wait_for(lambda: (one := box.attach(process.exec_id, 5_000_000)).exception() is None and one.result())
        assert (result.returncode, result.stdout_bytes_total) == (2, 5_000_000)
        assert box.exec(["echo", "fine"]).result().stdout == "fine\n"
        box.stop(0.0).result()
    finally:
        server.stop()
        subprocess.run(["umount", where], check=True)
