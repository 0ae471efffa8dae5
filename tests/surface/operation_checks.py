"""Section 1: handles, streams, waiting."""

from __future__ import annotations

import signal
import time

import pytest

import aviato
from tests.surface.harness import Place, check


@check("OperationRef.result", "OperationRef.done", "OperationRef.exception")
def operation(place: Place) -> None:
    reading = place.box().exec(["true"]) and place.box().read_file("/etc/hostname-that-is-not-there")
    assert isinstance(reading.exception(), aviato.SandboxFileError)
    assert reading.done()
    with pytest.raises(aviato.SandboxFileError):
        reading.result()


@check("OperationRef.result(timeout=)", "OperationTimeoutError", "OperationTimeoutError.status_reason")
def operation_timeout(place: Place) -> None:
    waiting = place.box().wait_until_complete()
    with pytest.raises(aviato.OperationTimeoutError) as caught:
        waiting.result(timeout=0.05)
    assert caught.value.status_reason is None and not waiting.done()


@check("OperationRef.cancel", "OperationCancelledError", "OperationRef.exception")
def operation_cancel(place: Place) -> None:
    box = place.box().wait()
    process = box.exec(["sleep", "60"], stdin=True)
    writing = process.stdin.write(b"x" * (4 << 20))
    writing.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        writing.result(10)
    assert isinstance(writing.exception(), aviato.OperationCancelledError)
    process.cancel()


@check("Process.exec_id", "Process.command", "Process.poll", "Process.wait", "Process.returncode", "Process.result")
def process(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "read line; exit 3"], stdin=True)
    assert begun.exec_id.startswith("ex-") and begun.command == ("sh", "-c", "read line; exit 3")
    assert begun.poll() is None and begun.returncode is None
    begun.stdin.close().result(10)
    assert begun.wait(timeout=10) == 3 == begun.poll() == begun.returncode == begun.result().returncode


@check("Process.stdout", "Process.stderr", "StreamReader.__iter__")
def streams(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "echo out; echo err >&2"])
    assert ("".join(begun.stdout), "".join(begun.stderr)) == ("out\n", "err\n")


@check("StreamReader.raw")
def raw(place: Place) -> None:
    process = place.box().exec(["printf", "\\377\\000a"])
    assert b"".join(process.stdout.raw()) == b"\xff\x00a"


@check("StreamReader.lines")
def lines(place: Place) -> None:
    assert list(place.box().exec(["printf", "a\\nb"]).stdout.lines()) == ["a", "b"]


@check("Process.stdin", "StreamWriter.write", "StreamWriter.writeline", "StreamWriter.close", "StreamWriter.closed")
def writer(place: Place) -> None:
    begun = place.box().exec(["cat"], stdin=True)
    begun.stdin.write(b"one ").result(10)
    begun.stdin.writeline("two").result(10)
    assert not begun.stdin.closed
    begun.stdin.close().result(10)
    assert begun.stdin.closed
    assert begun.result(10).stdout == "one two\n"
    with pytest.raises(aviato.SandboxExecutionError, match="closed"):
        begun.stdin.write(b"late").result(10)


@check("Process.cancel")
def process_cancel(place: Place) -> None:
    begun = place.box().wait().exec(["sleep", "60"])
    begun.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        begun.result(20)


@check("Process.send_signal")
def send_signal(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"])
    assert next(iter(begun.stdout)) == "ready\n"
    begun.send_signal(signal.SIGUSR1).result(10)
    assert begun.wait(10) == 5


@check("wait", "wait(num_returns=)", "wait(timeout=)")
def wait(place: Place) -> None:
    box = place.box().wait()
    fast, slow = box.exec(["true"]), box.exec(["sleep", "60"])
    assert aviato.wait([slow, fast], num_returns=1) == ([fast], [slow])
    begin = time.monotonic()
    assert aviato.wait([slow], timeout=0.05) == ([], [slow])
    assert time.monotonic() - begin < 5
    slow.cancel()


@check("as_completed", "as_completed(timeout=)")
def as_completed(place: Place) -> None:
    box = place.box().wait()
    fast, slow = box.exec(["true"]), box.exec(["sleep", "0.3"])
    assert list(aviato.as_completed([slow, fast], timeout=20)) == [fast, slow]


@check("results")
def results(place: Place) -> None:
    box = place.box()
    assert [one.stdout for one in aviato.results([box.exec(["echo", str(n)]) for n in range(3)])] == ["0\n", "1\n", "2\n"]
