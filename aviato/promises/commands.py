"""Commands: their results, their limits in time, and what becomes of their processes."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

import pytest

import aviato

Sh = Callable[..., aviato.ProcessResult]
LEAVES = "(setsid sh -c 'echo $$ > pid; exec sleep 60' >/dev/null 2>&1 &) ; while [ ! -s pid ]; do sleep 0.02; done; echo left"
ALIVE = "kill -0 $(cat pid) 2>/dev/null && echo alive || echo dead"


def test_a_result(sh: Sh) -> None:
    """A result has what was printed on each stream, the exit code, and how long it took."""
    result = sh("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 3)
    assert (result.stdout_bytes, result.stdout_bytes_total, result.stderr_bytes_total) == (b"out\n", 4, 4)
    assert not result.timed_out and result.signal is None and not result.stdout_truncated
    assert 0 <= result.duration_seconds < 60 and result.command == ("sh", "-c", "echo out; echo err >&2; exit 3")


@pytest.mark.parametrize(
    ("command", "returncode"), [(["no-program-of-this-name"], 127), (["/no/such/program"], 127), (["/etc/passwd"], 126)]
)
def test_what_cannot_be_started(sandbox: aviato.Sandbox, command: list[str], returncode: int) -> None:
    """A missing executable is 127, one that is none 126, each with a message on stderr: results, not errors."""
    result = sandbox.exec(command).result()
    assert result.returncode == returncode and result.stderr and result.stdout == ""


def test_a_missing_directory(sandbox: aviato.Sandbox) -> None:
    """A missing cwd is a SandboxFileError, a matter of the task."""
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.exec(["true"], cwd="/no/such/directory").result()
    assert not caught.value.is_infrastructure


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_killed_by_a_signal(sh: Sh, number: signal.Signals) -> None:
    """Killed by signal n is 128+n, with the signal told."""
    result = sh(f"kill -{int(number)} $$")
    assert (result.returncode, result.signal) == (128 + number, number)


@pytest.mark.parametrize("command", ["echo x", []])
def test_no_command(sandbox: aviato.Sandbox, command: object) -> None:
    """A bare string is a TypeError and an empty list a ValueError, at the call."""
    with pytest.raises(TypeError if command else ValueError):
        sandbox.exec(command)  # type: ignore[arg-type]


def test_arguments_arrive_as_they_are(sandbox: aviato.Sandbox) -> None:
    """Arguments are what was given, whatever is in them; nothing is a shell's."""
    given = ["", " ", "a b", "$HOME", "'\"", "*", "\\n", "é☃", "-n", "x" * 10_000]
    done = sandbox.exec(["python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *given]).result()
    assert done.stdout == ascii(given) + "\n"


def test_its_directory_and_variables(sh: Sh) -> None:
    """`cwd` and `env` are of one command; an absolute directory, and variables beside those of the sandbox."""
    assert sh("echo $A; pwd", env={"A": "b c"}, cwd="/usr").stdout == "b c\n/usr\n"
    assert sh("echo [$A]").stdout == "[]\n"


def test_a_time_limit(sandbox: aviato.Sandbox) -> None:
    """`timeout_seconds` kills the whole tree, also what has a session of its own; the error has what was printed before."""
    with pytest.raises(aviato.SandboxCommandTimeoutError) as caught:
        sandbox.exec(["sh", "-c", f"{LEAVES}; sleep 60"], timeout_seconds=2).result()
    result = caught.value.exec_result
    assert result is not None
    assert (result.stdout, result.timed_out, result.returncode, result.signal) == ("left\n", True, 137, 9)
    assert not caught.value.is_infrastructure
    assert sandbox.exec(["sh", "-c", ALIVE]).result().stdout == "dead\n"


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_no_time_limit(sandbox: aviato.Sandbox, seconds: float) -> None:
    """Zero, negative and NaN are ValueError; `math.inf` is no limit."""
    with pytest.raises(ValueError):
        sandbox.exec(["true"], timeout_seconds=seconds)
    assert sandbox.exec(["true"], timeout_seconds=math.inf).result().returncode == 0


def test_a_cancel(sandbox: aviato.Sandbox) -> None:
    """`cancel()` kills the whole tree; the result is an OperationCancelledError."""
    running = sandbox.exec(["sh", "-c", f"{LEAVES}; sleep 60"])
    assert next(iter(running.stdout)) == "left\n"
    running.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        running.result()
    deadline = time.monotonic() + 10
    while sandbox.exec(["sh", "-c", ALIVE]).result().stdout != "dead\n":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal(sandbox: aviato.Sandbox) -> None:
    """`send_signal` reaches the command, which can answer it."""
    running = sandbox.exec(["sh", "-c", "trap 'echo got; exit 4' USR1; echo ready; while :; do sleep 0.02; done"])
    lines = running.stdout.lines()
    assert next(lines) == "ready"
    running.send_signal(signal.SIGUSR1).result()
    assert running.result().returncode == 4 and next(lines) == "got"


def test_what_a_command_leaves_behind(sandbox: aviato.Sandbox) -> None:
    """The result comes when the command itself has ended; children that it left behind live on until the sandbox ends."""
    began = time.monotonic()
    assert sandbox.exec(["sh", "-c", f"sleep 60 & {LEAVES}"]).result().stdout == "left\n"
    assert time.monotonic() - began < 20
    assert sandbox.exec(["sh", "-c", ALIVE]).result().stdout == "alive\n"


def test_check(sandbox: aviato.Sandbox) -> None:
    """`check=True` raises SandboxExecutionError with the result; without it a failure is a result."""
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        sandbox.exec(["sh", "-c", "echo why >&2; exit 2"], check=True).result()
    assert caught.value.exec_result is not None and caught.value.exec_result.returncode == 2 and "why" in str(caught.value)
    assert not caught.value.is_infrastructure


def test_many_at_once(sandbox: aviato.Sandbox) -> None:
    """Commands of one sandbox run side by side, and each has its own output."""
    commands = [sandbox.exec(["sh", "-c", f"echo {number}; echo {number} >&2"]) for number in range(16)]
    assert [(one.result().stdout, one.result().stderr) for one in commands] == [(f"{n}\n", f"{n}\n") for n in range(16)]


def test_its_usage(sandbox: aviato.Sandbox) -> None:
    """`usage` tells of the command's own processor time and memory; None is what a backend cannot tell."""
    code = "held = b'x' * 50_000_000; n = 0\nfor i in range(2_000_000): n += i"
    usage = sandbox.exec(["python3", "-c", code]).result().usage
    assert usage.cpu_seconds is None or 0.01 < usage.cpu_seconds < 60
    assert usage.max_rss_bytes is None or usage.max_rss_bytes > 50_000_000
    plain = sandbox.exec(["true"]).result().usage
    assert plain.max_rss_bytes is None or plain.max_rss_bytes < 4 << 20


def test_detached_from_its_client(sandbox: aviato.Sandbox) -> None:
    """`detach=True`: it runs to its end unread, and `attach` reads all of it, from any offset, again and again."""
    begun = sandbox.exec(["sh", "-c", "echo one; echo two; echo err >&2; exit 6"], detach=True)
    begun.result()
    for offset in (0, 4):
        again = sandbox.attach(begun.exec_id, stdout_offset=offset).result()
        assert (again.stdout, again.stderr, again.returncode) == ("one\ntwo\n"[offset:], "err\n", 6)
