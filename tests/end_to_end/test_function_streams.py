"""A function's value comes whatever the function did to its streams and descriptors, and what it printed before is kept."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from tests.matrices import deep


def close_stdout() -> None:
    sys.stdout.close()


def close_both() -> None:
    sys.stdout.close()
    sys.stderr.close()


def close_buffers() -> None:
    sys.stdout.buffer.close()
    sys.stderr.buffer.close()


def detach() -> None:
    sys.stdout.detach()
    sys.stderr.detach()


def no_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def no_names() -> None:
    del sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__


def wrapped_anew() -> None:
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="latin-1")
    sys.stdout.write("late\n")


def redirected_for_good() -> None:
    contextlib.redirect_stdout(io.StringIO()).__enter__()
    contextlib.redirect_stderr(io.StringIO()).__enter__()


def replaced_by_a_closed_file() -> None:
    with open(os.devnull, "w") as file:
        sys.stdout = file


def replaced_by_what_raises() -> None:
    class Odd:
        def flush(self) -> None:
            raise KeyboardInterrupt

        def write(self, text: str) -> int:
            raise SystemExit(9)

    sys.stdout = sys.stderr = Odd()  # type: ignore[assignment]


def replaced_by_what_cannot_be_flushed() -> None:
    sys.stdout = object()  # type: ignore[assignment]


def os_close() -> None:
    os.close(1)


def os_close_all_three() -> None:
    for fd in range(3):
        os.close(fd)


def close_range() -> None:
    os.closerange(0, 10_000)


def close_range_above() -> None:
    os.closerange(3, 10_000)


def dup2_null() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)


def dup2_read_only() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 1)
    sys.stdout = os.fdopen(1, "w", buffering=4096)
    sys.stdout.write("never to be written")


def dup2_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    sys.stdout = os.fdopen(1, "w", buffering=4096)
    sys.stdout.write("never to be written")


def dup2_of_a_pipe_without_a_reader() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    os.dup2(theirs, 1)
    sys.stdout = os.fdopen(1, "w", buffering=4096)
    sys.stdout.write("never to be written")


def fdopen_and_forget() -> None:
    os.fdopen(1, "w")


def a_thread_prints_on() -> None:
    os.closerange(0, 100)

    def print_on() -> None:
        while True:
            with contextlib.suppress(OSError):
                os.write(1, b"spoils what lies at 1\n")
                os.write(2, b"spoils what lies at 2\n")

    threading.Thread(target=print_on, daemon=True).start()
    time.sleep(0.05)


def a_child_prints_on() -> None:
    if os.fork() == 0:
        os.closerange(0, 3)
        os._exit(0)
    os.closerange(0, 3)


def all_descriptors_used() -> None:
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def replaced_print() -> None:
    import builtins

    builtins.print = None  # type: ignore[assignment]
    sys.stdout.close()


ALL: list[Callable[[], None]] = [
    *(close_stdout, close_both, close_buffers, detach, no_streams, no_names, wrapped_anew, redirected_for_good),
    *(replaced_by_a_closed_file, replaced_by_what_raises, replaced_by_what_cannot_be_flushed, os_close, os_close_all_three),
    *(close_range, close_range_above, dup2_null, dup2_read_only, dup2_full, dup2_of_a_pipe_without_a_reader, fdopen_and_forget),
    *(a_thread_prints_on, a_child_prints_on, all_descriptors_used, few_descriptors, replaced_print),
]


def then_returns(do: Callable[[], None]) -> list[str]:
    print("said before")
    print("complained before", file=sys.stderr)
    do()
    return [do.__name__]


def then_raises(do: Callable[[], None]) -> None:
    print("said before")
    do()
    raise LookupError(do.__name__)


def then_exits(do: Callable[[], None]) -> None:
    print("said before")
    do()
    sys.exit(f"status of {do.__name__}")


def test_its_value_comes_and_what_it_printed_before(session: aviato.Session) -> None:
    function = session.function(serialization=aviato.Serialization.PICKLE)(then_returns)
    calls = {do.__name__: function.remote(do) for do in ALL}
    failures = {name: error for name, call in calls.items() if (error := call.exception(120)) is not None}
    assert failures == {}
    assert {name: call.result() for name, call in calls.items()} == {name: [name] for name in calls}
    printed = {
        name: (call.exec_result.stdout, call.exec_result.stderr.splitlines()[0])
        for name, call in calls.items()
        if call.exec_result
    }
    late = {"wrapped_anew": "late\n"}
    assert printed == {name: (f"said before\n{late.get(name, '')}", "complained before") for name in calls}


@pytest.mark.parametrize("ending", [then_raises, *deep([then_exits])])
def test_so_does_its_failure(session: aviato.Session, ending: Callable[[Any], None]) -> None:
    function = session.function(serialization=aviato.Serialization.PICKLE)(ending)
    calls = {do.__name__: function.remote(do) for do in ALL}
    errors = {name: call.exception(120) for name, call in calls.items()}
    said = {name: getattr(error, "exception_message", repr(error)) for name, error in errors.items()}
    assert said == {name: name if ending is then_raises else f"status of {name}" for name in calls}
    assert {type(error) for error in errors.values()} == {aviato.SandboxExecutionError}
    printed = {name: call.exec_result.stdout.splitlines()[0] for name, call in calls.items() if call.exec_result}
    assert printed == dict.fromkeys(calls, "said before")
