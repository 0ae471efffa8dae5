"""Remote functions against a real server, in this Python and in others."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import functools
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path as FilePath
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxDefaults, Serialization, Session
from aviato.server.images.interpreters import find_interpreters
from tests.end_to_end import function_helpers
from tests.end_to_end.function_helpers import Access, Color, Path, Point, fail, fibonacci, times

OFFSET = 100
LOCK = threading.Lock()
MINORS = sorted({one.minor for one in find_interpreters() if one.minor >= 10})
OTHER = [f"python:3.{minor}" for minor in MINORS if minor != sys.version_info.minor]
IMAGES = [None, *OTHER[:1], *OTHER[-2:]]


@pytest.fixture(params=dict.fromkeys(IMAGES), ids=str)
def image(request: Any) -> dict[str, Any]:
    return {} if request.param is None else {"container_image": request.param}


def scaled(n: int) -> int:
    return times(n) + OFFSET


def test_what_a_function_reads_travels(session: Session, image: dict[str, Any]) -> None:
    def outer(z: int) -> Any:
        def nested(n: int) -> int:
            return scaled(n) + z

        @session.function(**image)
        def inner(a: int, *rest: int, b: int = 5, **more: int) -> Any:
            """Says what came."""
            squares = [n * n for n in rest]
            return [nested(a), b, squares, more, sys.version_info[1], (lambda n: n + z)(1), fibonacci(20), os.getcwd()]

        return inner

    inner = outer(1000)
    image_minor = int(image["container_image"].split(".")[1]) if image else None
    value = inner.remote(3, 4, 5, k=6).result()
    assert value[:4] == [21 + OFFSET + 1000, 5, [16, 25], {"k": 6}]
    assert value[4] == (image_minor or value[4]) and value[5:] == [1001, 6765, "/workspace"]
    assert inner(3, b=1).result()[:2] == [1121, 1]
    assert inner.local(3)[:2] == [1121, 5]
    assert (inner.__name__, inner.__doc__, inner.__wrapped__.__name__) == ("inner", "Says what came.", "inner")
    recursive = session.function(**image)(factorial)
    assert recursive(10).result() == 3628800
    assert session.function(**image)(lambda n: n + OFFSET)(1).result() == 101
    assert session.sandbox_count == 0
    # A global is read when the call is made.
    assert session.function(**image)(changing)().result() == 0
    CHANGES.append(1)
    try:
        assert session.function(**image)(changing)().result() == 1
    finally:
        CHANGES.clear()


CHANGES: list[int] = []


def changing() -> int:
    return len(CHANGES)


def factorial(n: int) -> int:
    return 1 if n == 0 else n * factorial(n - 1)


def test_pickled_values(session: Session, image: dict[str, Any]) -> None:
    @session.function(serialization=Serialization.PICKLE, result_types=[Point, Path, Color, Access], **image)
    def rich(path: Path, color: Color, key: Any) -> Any:
        return {
            "path": Path([*path.points, Point(6, 8.0)]),
            "length": path.length(),
            "is": [color is Color.RED, isinstance(path, Path)],
            "enums": [color, Access.READ | Access.WRITE, Access(0)],
            "plain": (None, True, 2**100, -1, 1.5, 2 + 3j, "a\udc80é", b"\0" * 70000, [1], {2}, frozenset([(3, 4)]), ()),
            "when": [
                datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "X"), fold=1),
                datetime.date(2024, 1, 1),
                datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(0))),
                datetime.timedelta(-1, 2, 3),
            ],
            "money": decimal.Decimal("1.50"),
            key: [path.points] * 2,
        }

    path = Path([Point(3, 4.0)])
    value = rich.remote(path, Color.RED, key=(1, "k")).result()
    here = rich.local(path, Color.RED, (1, "k"))
    assert value == here
    assert type(value["path"]) is Path and type(value["path"].points[0]) is Point
    assert value["enums"][0] is Color.RED
    assert value["when"][0].tzname() == "X" and value["when"][0].fold == 1
    assert value[1, "k"][0] is value[1, "k"][1]


def test_the_remote_traceback_is_the_users(session: Session, image: dict[str, Any]) -> None:
    @session.function(**image)
    def broken(kind: str) -> None:
        print("printed before")
        fail(kind)  # the line that is shown

    with pytest.raises(aviato.SandboxExecutionError) as caught:
        broken("k").result()
    error, text = caught.value, str(caught.value)
    assert (error.exception_type, error.exception_message) == ("RuntimeError", "in the helper")
    assert error.exec_result is not None and error.exec_result.stdout == "printed before\n"
    assert error.exec_result.returncode == 1 and not error.is_infrastructure
    lines = FilePath(__file__).read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if line.endswith("# the line that is shown"))
    assert f'File "{__file__}", line {number}, in broken\n    fail(kind)  # the line' in text
    assert f'File "{function_helpers.__file__}"' in text and 'raise RuntimeError("in the helper") from error' in text
    assert "KeyError: 'k'" in text and "direct cause" in text
    assert "<aviato>" not in text and "cloudpickle" not in text and "/work" not in text.replace(str(FilePath.cwd()), "")
    assert pickle.loads(pickle.dumps(error)).exception_type == "RuntimeError"


def test_no_value_is_made_up(session: Session) -> None:
    def leave(how: str) -> Any:
        import ctypes
        import os
        import signal
        import sys
        import time

        print("out", how)
        if how == "fork":
            return os.fork() and "parent"
        if how == "thread":
            import threading

            threading.Thread(target=time.sleep, args=(60,)).start()
            return "value"
        if how == "missing":
            import no_such_module  # noqa: F401
        if how == "sleep":
            time.sleep(60)
        if how == "segfault":
            ctypes.string_at(0)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        getattr(os if how == "_exit" else sys, "_exit" if how == "_exit" else "exit")(0)

    remote = session.function(exec_timeout_seconds=2)(leave)
    ways = ["fork", "thread", "exit", "_exit", "segfault", "kill", "missing", "sleep"]
    calls = dict(zip(ways, remote.map([(how,) for how in ways]), strict=True))
    assert calls["fork"].result() == "parent"
    assert calls["thread"].result() == "value"
    assert calls["thread"].exec_result is not None and calls["thread"].exec_result.stdout == "out thread\n"
    said = {
        "exit": r"called sys.exit\(0\)",
        "_exit": "returncode 0 and left no result",
        "segfault": "signal 11",
        "kill": "signal 9",
    }
    for how, text in said.items():
        with pytest.raises(aviato.SandboxExecutionError, match=text) as caught:
            calls[how].result()
        assert not caught.value.is_infrastructure
        assert caught.value.exec_result is not None and caught.value.exec_result.stdout == f"out {how}\n"
    with pytest.raises(aviato.SandboxExecutionError, match="no_such_module") as missing:
        calls["missing"].result()
    assert missing.value.exception_type == "ModuleNotFoundError"
    with pytest.raises(aviato.SandboxCommandTimeoutError, match=r"leave\(\) ran longer than 2 s") as slow:
        calls["sleep"].result()
    assert slow.value.exec_result is not None and slow.value.exec_result.stdout == "out sleep\n"
    metrics = session.get_metrics()
    assert metrics["aviato/sandboxes_created"] == metrics["aviato/executions"] == 8
    assert metrics["aviato/exec_timeouts"] == 1


def test_what_cannot_cross_is_named_and_starts_nothing(session: Session) -> None:
    remote = session.function()(times)
    with pytest.raises(aviato.FunctionSerializationError, match="argument 'n' of times"):
        remote(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"times\(\): missing a required argument: 'n'"):
        remote()  # type: ignore[call-arg]
    with pytest.raises(aviato.FunctionSerializationError, match="argument 'n'"):
        remote.map([(1,), (LOCK,)])
    with pytest.raises(TypeError, match=r"argument tuples, and got 1: write \(1,\)"):
        remote.map([1])  # type: ignore[list-item]
    with pytest.raises(aviato.FunctionSerializationError, match="the global 'LOCK'"):
        session.function()(lambda: LOCK)()
    held = threading.Lock()
    with pytest.raises(aviato.FunctionSerializationError, match="the variable 'held'"):
        session.function()(lambda: held)()
    with pytest.raises(aviato.FunctionSerializationError, match="argument 'n'"):
        session.function(serialization=Serialization.PICKLE)(times)(LOCK)  # type: ignore[arg-type]
    assert session.get_metrics()["aviato/sandboxes_created"] == 0
    assert remote.map([]) == []

    with pytest.raises(aviato.FunctionSerializationError, match=r"the result of <lambda>\(\), a object, cannot be sent"):
        session.function()(lambda: object())().result()
    unnamed = session.function(serialization="pickle")(lambda: [Point(1)])()
    with pytest.raises(aviato.FunctionSerializationError, match=r"function_helpers\.Point.*result_types="):
        unnamed.result()


def test_bad_decorations_are_refused_at_once(session: Session) -> None:
    async def coroutine() -> None: ...

    async def asyncs() -> Any:
        yield

    def generator() -> Any:
        yield

    for function in (coroutine, asyncs):
        with pytest.raises(aviato.AsyncFunctionError, match="async def"):
            session.function()(function)
    with pytest.raises(aviato.FunctionError, match="generator"):
        session.function()(generator)
    for other in (print, Point, functools.partial(times, 1)):
        with pytest.raises(TypeError, match="written in Python"):
            session.function()(other)
    with pytest.raises(TypeError, match="'nothing'"):
        session.function(nothing=1)  # type: ignore[call-arg]
    with pytest.raises(aviato.AviatoValidationError, match="'xml' is none of json, pickle"):
        session.function(serialization="xml")
    with pytest.raises(aviato.AviatoValidationError, match="temp_dir"):
        session.function(temp_dir="tmp")
    with pytest.raises(aviato.AviatoValidationError, match="JSON has no classes"):
        session.function(result_types=[Point])
    with pytest.raises(TypeError, match=r"\[Point\]"):
        session.function(serialization="pickle", result_types=Point)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="dataclasses and enums"):
        session.function(serialization="pickle", result_types=[int])


def test_a_forged_outcome_is_no_code_and_no_infrastructure(session: Session) -> None:
    def forge(content: bytes) -> None:
        import os
        import sys

        with open(sys.argv[2], "wb") as file:
            file.write(content)
        os._exit(0)

    remote = session.function(serialization=Serialization.PICKLE)(forge)
    value = b'{"outcome": "value"}\n'
    evil = value + b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    forged = {
        evil: (aviato.FunctionSerializationError, r"refers to posix\.system"),
        value: (aviato.FunctionSerializationError, "refused"),
        value + b"\x80\x04]" + b"N" * 10: (aviato.FunctionSerializationError, "refused"),
        b'{"outcome": "value"': (aviato.SandboxExecutionError, "left no result"),
        b"[" * 200_000 + b"\n": (aviato.SandboxExecutionError, "left no result"),
        b'{"outcome": ["value"]}\n': (aviato.SandboxExecutionError, "left no result"),
        b'{"outcome": "exception", "type": 5, "message": "\\u001b[2J"}\n': (aviato.SandboxExecutionError, r"\\x1b\[2J"),
        b"x" * ((64 << 20) + 1): (aviato.FunctionSerializationError, "too large: more than 64 MiB"),
    }
    for call, (kind, text) in zip(remote.map([(content,) for content in forged]), forged.values(), strict=True):
        with pytest.raises(kind, match=text) as caught:
            call.result()
        assert not caught.value.is_infrastructure  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_a_result_that_is_no_file_does_not_hang(session: Session, kind: str) -> None:
    def trap(kind: str) -> None:
        import os
        import sys

        path = sys.argv[2]
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "link":
            os.symlink("/dev/zero", path)
        else:
            os.mkdir(path)
        os._exit(0)

    with pytest.raises(aviato.SandboxExecutionError, match="left no result"):
        session.function()(trap)(kind).result(20)


def test_async_form_cancelling_and_the_queue(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(max_sandboxes=2)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    async def main() -> None:
        async with Session(SandboxDefaults(tags=["calls"], temp_dir="/var/tmp")) as session:

            @session.function()
            def where(n: int) -> Any:
                import sys

                return [n, sys.argv[2].rsplit("/", 1)[0]]

            @session.function()
            def slow() -> None:
                import time

                time.sleep(60)

            assert await asyncio.gather(*where.map([(n,) for n in range(6)])) == [[n, "/var/tmp"] for n in range(6)]
            call = slow()
            sandbox = call._call._sandbox
            await sandbox
            begin = time.monotonic()
            waiter = asyncio.ensure_future(_wait_for(call))
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert time.monotonic() - begin < 10
            assert call.done()
            with pytest.raises(aviato.OperationCancelledError):
                await call
            assert await Sandbox.list(tags=["calls"]) == []
            assert session.sandbox_count == 0

    async def _wait_for(call: Any) -> Any:
        return await call

    asyncio.run(main())


def test_a_closed_session_calls_nothing(served: Any) -> None:
    session = Session()
    remote = session.function()(times)
    session.close().result()
    with pytest.raises(aviato.AviatoValidationError, match="closed"):
        remote(1)


PROGRAM = """
import multiprocessing, pickle, sys
from aviato import RemoteFunction, Session

session = Session()

@session.function()
def double(n):
    return 2 * n if n < 100 else double(n - 100) + 200

def make(k):
    @session.function()
    def add(n):
        return n + k
    return add

def work(function, n):
    return function(n).result()

if __name__ == "__main__":
    copy = pickle.loads(pickle.dumps(make(5)))
    assert isinstance(copy, RemoteFunction) and copy.__name__ == "add" and copy.local(1) == 6
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.starmap(work, [(double, 221), (make(1), 1)]))
        pool.close()
        pool.join()
    print(double(4).result(), copy(1).result())
"""


def test_pickled_for_another_process(served: Any, tmp_path: FilePath) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[442, 2]\n8 6\n"), done.stderr


def test_without_source(served: Any) -> None:
    """A program that has no file: cloudpickle does where the Python is the same, and the other Python says why not."""
    other = next((one for one in OTHER), None)
    if other is None:
        pytest.skip("one Python only")
    source = f"""
import aviato, sys
with aviato.Session() as session:
    try:
        session.function(container_image={other!r})(lambda: 1)()
    except aviato.FunctionSerializationError as error:
        print(error)
    print(session.function(container_image="python:3.%d" % sys.version_info[1])(lambda: 1)().result())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=250, check=False)
    if sys.version_info >= (3, 13):
        assert done.returncode == 0  # from 3.13 on the source is known
        return
    assert "has to be sent as source" in done.stdout and "cannot be read" in done.stdout
    assert done.stdout.endswith("\n1\n"), done.stderr


def test_an_assertion_under_pytest_is_the_users(session: Session) -> None:
    @session.function()
    def check(n: int) -> int:
        assert n > 1, "too small"
        return n

    assert check(2).result() == 2
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        check(1).result()
    assert (caught.value.exception_type, caught.value.exception_message) == ("AssertionError", "too small")
