"""Commands against a real server, in blocking and in async form."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from aviato import Sandbox
from aviato.transport.http import HttpTransport


def test_output_and_returncode(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"]).result()
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 3)
    assert result.command == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert 0 < result.duration_seconds < 5


def test_async_form(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            assert (await sandbox.exec(["echo", "hi"])).stdout == "hi\n"
            assert (await sandbox.exec(["cat"], stdin="sent")).stdout == "sent"
        assert sandbox.status == "terminated"

    asyncio.run(main(), debug=True)


@pytest.mark.parametrize(
    ("command", "returncode"),
    [(["no-such-program"], 127), (["/etc"], 126), (["sh", "-c", "kill -TERM $$"], 143), (["true"], 0)],
)
def test_returncodes_are_results(sandbox: Sandbox, command: list[str], returncode: int) -> None:
    process = sandbox.exec(command)
    assert process.result().returncode == process.poll() == process.returncode == process.wait() == returncode


def test_a_command_as_long_as_linux_takes(sandbox: Sandbox) -> None:
    words = ["x" * (64 << 10)] * 25
    assert sandbox.exec(["printf", "%s", *words]).result().stdout == "".join(words)
    assert sandbox.exec(["printf", "%s", *words, *words]).result().returncode == 126
    with pytest.raises(aviato.AviatoValidationError, match="fit a request"):
        sandbox.exec(["printf", "%s", *words, *words, *words]).result()
    assert sandbox.exec(["true"]).result().returncode == 0


def test_environment_and_directory(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "pwd; echo $NAME"], cwd="/tmp", env={"NAME": "é"}).result()
    assert result.stdout == "/tmp\né\n"


def test_missing_directory(sandbox: Sandbox) -> None:
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.exec(["true"], cwd="/no/such").result()
    assert caught.value.filepath == "/no/such"
    assert not caught.value.is_infrastructure


def test_timeout_keeps_what_was_printed(sandbox: Sandbox) -> None:
    begin = time.monotonic()
    process = sandbox.exec(["sh", "-c", "echo before; sleep 60 & setsid sleep 60; wait"], timeout_seconds=1)
    with pytest.raises(aviato.SandboxTimeoutError) as caught:
        process.result()
    assert 1.0 <= time.monotonic() - begin < 1.7
    assert isinstance(caught.value, aviato.SandboxCommandTimeoutError)
    assert isinstance(caught.value, TimeoutError)
    result = caught.value.exec_result
    assert result is not None
    assert (result.stdout, result.returncode, result.signal, result.timed_out) == ("before\n", 137, 9, True)
    assert process.poll() == 137
    assert not caught.value.is_infrastructure
    with pytest.raises(aviato.SandboxCommandTimeoutError):
        list(process.stdout)
    assert "sleep" not in sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"]).result().stdout


def test_no_limit(sandbox: Sandbox) -> None:
    assert sandbox.exec(["true"], timeout_seconds=math.inf).result().returncode == 0


def test_check(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "echo shown; echo why >&2; exit 4"], check=True)
    assert "".join(process.stdout) == "shown\n"  # iterating raises nothing
    with pytest.raises(aviato.SandboxExecutionError, match="why") as caught:
        process.result()
    assert caught.value.exec_result is not None
    assert caught.value.exec_result.returncode == 4 == process.poll()


def test_stdin(sandbox: Sandbox) -> None:
    assert sandbox.exec(["cat"], stdin=b"\x00bytes").result().stdout_bytes == b"\x00bytes"
    assert sandbox.exec(["cat"]).result().stdout == ""
    process = sandbox.exec(["cat"], stdin=True)
    assert process.stdin is not None
    process.stdin.write(b"one ")
    process.stdin.writeline("two")
    process.stdin.close().result()
    process.stdin.close().result()
    assert process.result().stdout == "one two\n"
    with pytest.raises(aviato.SandboxExecutionError, match="closed"):
        process.stdin.write(b"late")


def test_input_larger_than_any_window_comes_back_whole(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * (5 << 12)
    assert sandbox.exec(["cat"], stdin=content).result().stdout_bytes == content


def test_a_command_that_does_not_read_its_input(sandbox: Sandbox) -> None:
    assert sandbox.exec(["true"], stdin=b"x" * (3 << 20)).result().returncode == 0
    # What comes with the request, what is one byte too long for that, and what fills a pipe that nobody reads.
    for size in (0, 1, 65536, 65537):
        assert sandbox.exec(["wc", "-c"], stdin=b"x" * size).result().stdout == f"{size}\n"
    assert sandbox.exec(["sh", "-c", "sleep 0.2"], stdin=b"x" * 65536).result().returncode == 0


def test_iterating_is_live(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done"])
    arrivals = [(line, time.monotonic()) for line in process.stdout.lines()]
    assert [line for line, _ in arrivals] == ["1", "2", "3"]
    assert arrivals[2][1] - arrivals[0][1] > 0.3
    assert process.result().stdout == "1\n2\n3\n"


def test_async_iterating_is_live_and_whole(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            process = sandbox.exec(["sh", "-c", r"printf '\303'; sleep 0.2; printf '\251\n'; sleep 0.2; echo end"])
            seen = [(text, time.monotonic()) async for text in process.stdout]
            assert "".join(text for text, _ in seen) == "é\nend\n"
            assert seen[-1][1] - seen[0][1] > 0.1
            assert (await process).stdout == "é\nend\n"

    asyncio.run(main())


def test_leaving_a_loop_early_hangs_nothing(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "head -c 20000000 /dev/zero; echo done >&2"])
    for _ in process.stdout:
        break
    result = process.result(20)
    assert (result.stdout_bytes_total, result.stderr, result.stdout_truncated) == (20_000_000, "done\n", True)
    assert len(result.stdout_bytes) == 16 << 20


MUCH = ["sh", "-c", "echo first; read go; head -c 8000000 /dev/zero"]


@pytest.mark.parametrize("how", ["wait", "wait for what is left", "as_completed"])
def test_waiting_for_what_is_held_half_read_ends(sandbox: Sandbox, how: str) -> None:
    """As its `result()` does: the iterator that a variable still holds does not hold the command back."""
    process = sandbox.exec(MUCH, stdin=True)
    assert process.stdin is not None
    pending = aviato.wait([process], timeout=0.01)[1] if how == "wait for what is left" else [process]
    lines = process.stdout.lines()
    assert next(lines) == "first"
    process.stdin.writeline("go")
    if how == "as_completed":
        assert list(aviato.as_completed([process], timeout=20)) == [process]
    else:
        assert aviato.wait(pending, timeout=20) == ([process], [])
    assert sum(map(len, lines)) == 8_000_000


def test_async_waiting_for_what_is_held_half_read_ends(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            process = sandbox.exec(MUCH, stdin=True)
            assert process.stdin is not None
            lines = process.stdout.lines()
            assert await anext(lines) == "first"
            await process.stdin.writeline("go")
            assert [one.returncode async for one in aviato.as_completed([process], timeout=20)] == [0]
            assert sum([len(line) async for line in lines]) == 8_000_000

    asyncio.run(main())


def test_a_loop_that_is_cancelled_leaves_the_stream_to_the_next_one(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            process = sandbox.exec(MUCH, stdin=True)
            assert process.stdin is not None
            for _ in range(2):
                seen = []
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(20) as limit:
                        async for line in process.stdout.lines():
                            seen.append(line)
                            limit.reschedule(asyncio.get_running_loop().time() + 0.05)
                assert seen == ["first"]
            await process.stdin.writeline("go")
            # Each in a task of its own, which is not the one that has read.
            (result,) = await asyncio.wait_for(asyncio.gather(process), 20)
            assert result.stdout_bytes_total == 8_000_006

    asyncio.run(main())


def test_a_slow_reader_stops_the_writer_and_not_the_other_stream(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "(head -c 9000000 /dev/zero; touch /tmp/written) & echo first >&2; wait"])
    reader = iter(process.stdout)
    received = len(next(reader))
    assert next(iter(process.stderr)) == "first\n"
    assert sandbox.exec(["sh", "-c", "sleep 0.5; test -e /tmp/written"]).result().returncode == 1
    received += sum(map(len, reader))
    assert received == 9_000_000
    assert process.result().returncode == 0


def test_output_cap(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "printf aaaaaaaaaabbbbbbbbbb"], max_output_bytes=8).result()
    assert result.stdout_bytes == b"aaaabbbb"
    assert result.stdout == "aaaa\n[… 12 bytes left out …]\nbbbb"


def test_cancelling_kills_the_tree_before_it_is_done(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "echo up; setsid sleep 61 & sleep 62"])
    assert next(iter(process.stdout)) == "up\n"
    assert process.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        process.result(10)
    assert process.poll() is None
    assert process.done()
    assert "sleep" not in sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"]).result().stdout
    with pytest.raises(aviato.OperationCancelledError):
        list(process.stderr)


def test_wait_for_kills(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            process = sandbox.exec(["sleep", "60"])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(process, 0.3)
            assert process.done()
            comms = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"])
            assert "sleep" not in comms.stdout

    asyncio.run(main())


def test_cancelled_at_once_ends_everything(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sleep", "60"])
    process.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        process.result(10)
    with pytest.raises(aviato.OperationCancelledError):
        list(process.stdout)
    assert sandbox.exec(["true"]).result().returncode == 0


def test_signal(sandbox: Sandbox) -> None:
    process = sandbox.exec(["sh", "-c", "trap 'exit 7' USR1; echo ready; while :; do sleep 0.05; done"])
    assert next(iter(process.stdout)) == "ready\n"
    process.send_signal(10).result()
    assert process.result(10).returncode == 7
    process.send_signal(10).result()


def test_ten_at_once_do_not_cross(sandbox: Sandbox) -> None:
    sandbox.wait()
    begin = time.monotonic()
    processes = [sandbox.exec(["sh", "-c", f"sleep 0.2; echo {n}"]) for n in range(10)]
    assert [result.stdout for result in aviato.results(processes)] == [f"{n}\n" for n in range(10)]
    assert time.monotonic() - begin < 1.5


def test_task_group(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(wait(sandbox.exec(["sleep", "60"])))
                    group.create_task(wait(sandbox.exec(["false"], check=True)))
            assert caught.group_contains(aviato.SandboxExecutionError)
            comms = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"])
            assert "sleep" not in comms.stdout

    async def wait(ref: Any) -> Any:
        return await ref

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"command": "echo hi"}, TypeError, r"\['echo', 'hi'\]"),
        ({"command": []}, ValueError, "empty"),
        ({"command": ["echo", 1]}, TypeError, "1"),
        ({"command": ["echo", "a\0b"]}, ValueError, "NUL"),
        ({"command": ["true"], "cwd": "relative"}, ValueError, "absolute"),
        ({"command": ["true"], "timeout_seconds": 0}, ValueError, "timeout_seconds"),
        ({"command": ["true"], "timeout_seconds": -1}, ValueError, "timeout_seconds"),
        ({"command": ["true"], "timeout_seconds": math.nan}, ValueError, "timeout_seconds"),
        ({"command": ["true"], "timeout_seconds": True}, TypeError, "timeout_seconds"),
        ({"command": ["true"], "user": ""}, ValueError, "user"),
        ({"command": ["true"], "detach": 1}, TypeError, "detach"),
        ({"command": ["true"], "env": {"A=B": "c"}}, ValueError, "A=B"),
        ({"command": ["true"], "env": {"A": 1}}, TypeError, "A"),
        ({"command": ["true"], "max_output_bytes": 0}, ValueError, "max_output_bytes"),
        ({"command": ["true"], "stdin": 5}, TypeError, "stdin"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    sandbox = Sandbox(base_url="unix:///nowhere")
    with pytest.raises(error, match=message):
        sandbox.exec(**arguments)


USES_OF_A_DIRECTORY: dict[str, tuple[Callable[[Sandbox], Any], Any]] = {
    "a command": (lambda box: box.exec(["pwd"]).result().stdout, "/made/for/it\n"),
    "a command that is left running": (lambda box: box.exec(["pwd"], detach=True).result().stdout, "/made/for/it\n"),
    "a terminal": (lambda box: box.shell(["test", "-d", "."]).result().returncode, 0),
    "a listing": (lambda box: box.list_files().result(), []),
    "a look": (lambda box: box.stat(".").result().path, "/made/for/it"),
    "a file": (lambda box: box.write_file("x", b"1").result() or box.read_file("/made/for/it/x").result(), b"1"),
    "a command that goes elsewhere": (lambda box: box.exec(["sh", "-c", "cd .. && pwd"]).result().stdout, "/made/for\n"),
}


@pytest.mark.parametrize("use", USES_OF_A_DIRECTORY)
def test_a_working_directory_is_made(served: Any, use: str) -> None:
    act, expected = USES_OF_A_DIRECTORY[use]
    with Sandbox(working_dir="/made/for/it") as box:
        assert act(box) == expected


def test_the_main_command_has_the_working_directory_too(served: Any) -> None:
    sandbox = Sandbox.run("sh", "-c", "pwd; pwd > out", working_dir="/made/for/it")
    assert sandbox.wait_until_complete(20).result().returncode == 0
    assert "".join(sandbox.stream_logs()) == "/made/for/it\n"


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/usr/nope", "Read-only file system"),
        ("/etc/passwd", "Not a directory"),
        ("/etc/passwd/below", "Not a directory"),
        ("/proc/nope", "No such file or directory"),
    ],
)
def test_a_working_directory_that_cannot_be_made_is_named(served: Any, directory: str, why: str) -> None:
    with Sandbox(working_dir=directory) as box:
        for act in (lambda: box.exec(["pwd"]), lambda: box.shell(["pwd"])):
            with pytest.raises(aviato.SandboxFileError) as caught:
                act().result()
            assert str(caught.value) == f"{directory!r}: working_dir cannot be made: {why}"
            assert not caught.value.is_infrastructure and caught.value.filepath == directory
        with pytest.raises(aviato.SandboxFileError) as listed:
            box.list_files().result()
        assert "/." not in str(listed.value)
        assert box.exec(["pwd"], cwd="/tmp").result().stdout == "/tmp\n", "others have their own"


@pytest.mark.parametrize("error", [aviato.SandboxUnavailableError, aviato.AviatoValidationError])
def test_input_that_never_comes_is_no_time_limit(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, error: type[aviato.AviatoError]
) -> None:
    """A command waits for the rest: told as its own, that would be a verdict on it."""
    reach, kept = HttpTransport.open, []

    async def without_input(self: HttpTransport, method: str, path: str, *given: Any, **more: Any) -> Any:
        if "/stdin?" in path:
            kept.append(path)
            raise error("nobody is there", retryable=False)
        return await reach(self, method, path, *given, **more)

    monkeypatch.setattr(HttpTransport, "open", without_input)
    began = time.monotonic()
    with pytest.raises(error, match="nobody is there"):
        sandbox.exec(["sh", "-c", "cat; sleep 1000"], stdin="x" * 200_000, timeout_seconds=40).result()
    assert kept and time.monotonic() - began < 30
    assert sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).result().stdout.count("sleep") == 0

    async def many() -> list[Any]:
        async with aviato.AsyncClient() as client:
            other = await client.sandbox()
            given = [other.exec(["cat"], stdin="x" * 200_000, timeout_seconds=40) for _ in range(3)]
            return await asyncio.gather(*given, return_exceptions=True)

    assert [type(one) for one in asyncio.run(many())] == [error] * 3


def test_the_input_of_one_that_ends_meanwhile_is_closed_without_an_error(sandbox: Sandbox) -> None:
    for _ in range(60):
        process = sandbox.exec(["sh", "-c", "read line; echo $line"], stdin=True)
        assert process.stdin is not None
        writing = process.stdin.writeline("text")
        closing = process.stdin.close()
        writing.result()
        closing.result()
        assert process.result().stdout == "text\n"
