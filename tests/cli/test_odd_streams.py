"""Whatever kind of descriptor the command line is given as a standard stream: nothing is lost, and nobody sees a traceback."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.matrices import deep

"""Each row is some processes one after the other."""
AVIATO = [sys.executable, "-m", "aviato"]
CONTENT = bytes(range(1, 251)) * 1200
BEGINNING = 1000
NOBODY_READS = 141
"""As a shell says it of a program that SIGPIPE has ended."""
FAILED = 125


@pytest.fixture(scope="module")
def sandbox(server: Any) -> Iterator[aviato.Sandbox]:
    with aviato.Sandbox(base_url=server.url) as made:
        yield made


@pytest.fixture
def environment(server: Any) -> dict[str, str]:
    return {**os.environ, "AVIATO_BASE_URL": server.url}


class Fed:
    """An end for the command line to read; the rest of its content comes once the beginning has arrived, and all was read."""

    def __init__(self, theirs: int, ours: int | None, content: bytes = CONTENT) -> None:
        self.theirs, self.content = theirs, content
        self._ours = ours
        self._arrived = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def start(self) -> None:
        os.close(self.theirs)
        self._thread.start()

    def finish(self) -> None:
        self._arrived.set()
        self._thread.join()

    def _feed(self) -> None:
        if self._ours is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            os.write(self._ours, self.content[:BEGINNING])
            self._arrived.wait()
            view = memoryview(self.content)[BEGINNING:]
            while view:
                view = view[os.write(self._ours, view[:7000]) :]
        os.close(self._ours)


def _pipe(*, blocking: bool) -> Fed:
    theirs, ours = os.pipe()
    os.set_blocking(theirs, blocking)
    return Fed(theirs, ours)


def _socket(*, blocking: bool) -> Fed:
    theirs, ours = socket.socketpair()
    theirs.setblocking(blocking)
    return Fed(theirs.detach(), ours.detach())


def _file(path: Path, flags: int = os.O_RDONLY, content: bytes = CONTENT, skip: int = 0) -> Fed:
    path.write_bytes(b"s" * skip + content)
    fd = os.open(path, flags)
    os.lseek(fd, skip, os.SEEK_SET)
    return Fed(fd, None, content)


def _fifo(path: Path) -> Fed:
    os.mkfifo(path)
    theirs = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return Fed(theirs, os.open(path, os.O_WRONLY))


INPUTS: dict[str, Callable[[Path], Fed]] = {
    "a pipe that does not block": lambda _: _pipe(blocking=False),
    "a pipe": lambda _: _pipe(blocking=True),
    "a socket that does not block": lambda _: _socket(blocking=False),
    "a socket": lambda _: _socket(blocking=True),
    "a named pipe that does not block": lambda path: _fifo(path),
    "a file": lambda path: _file(path),
    "a file that does not block": lambda path: _file(path, os.O_RDONLY | os.O_NONBLOCK),
    "a file from the middle on": lambda path: _file(path, skip=5000),
    "a file that can be written, too": lambda path: _file(path, os.O_RDWR | os.O_APPEND),
    "an empty file": lambda path: _file(path, content=b""),
    "/dev/null": lambda _: Fed(os.open(os.devnull, os.O_RDONLY), None, b""),
}


FIRST = ["a pipe that does not block", "a file"]


@pytest.mark.parametrize("kind", [*FIRST, *deep(sorted(set(INPUTS) - set(FIRST)))])
@pytest.mark.parametrize("verb", ["exec", *deep(["run"])])
def test_all_input_arrives(sandbox: aviato.Sandbox, environment: dict[str, str], tmp_path: Path, kind: str, verb: str) -> None:
    fed = INPUTS[kind](tmp_path / "input")
    where = ["exec", "-i", sandbox.sandbox_id] if verb == "exec" else ["run", "-i"]
    with subprocess.Popen(
        [*AVIATO, *where, "sh", "-c", f"head -c {BEGINNING} >/dev/null; echo ready; wc -c"],
        stdin=fed.theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        fed.start()
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        fed.finish()
        out, err = process.stdout.read(), process.stderr.read()
    assert (out, err, process.returncode) == (b"%d\n" % max(0, len(fed.content) - BEGINNING), b"", 0)


@pytest.mark.deep
def test_what_cannot_be_read_is_said_and_is_no_input(sandbox: aviato.Sandbox, environment: dict[str, str]) -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    command = [*AVIATO, "exec", "-i", sandbox.sandbox_id, "wc", "-c"]
    done = subprocess.run(command, stdin=fd, capture_output=True, env=environment, timeout=250, check=False)
    os.close(fd)
    assert (done.stdout, done.stderr) == (b"0\n", b"aviato: standard input cannot be read: Bad file descriptor\n")


class Taken:
    """An end for the command line to write to, and all that came out at the other, read slowly."""

    def __init__(self, theirs: int, ours: int | None, path: Path | None = None) -> None:
        self.theirs = theirs
        self._ours, self._path = ours, path
        self._came = bytearray()
        self._thread = threading.Thread(target=self._take)

    def start(self) -> None:
        os.close(self.theirs)
        self._thread.start()

    def all(self) -> bytes:
        self._thread.join()
        return bytes(self._came) if self._path is None else self._path.read_bytes()

    def _take(self) -> None:
        if self._ours is None:
            return
        with suppress(OSError):  # A terminal that nobody has any more.
            while piece := os.read(self._ours, 3000):
                self._came += piece
        os.close(self._ours)


def _out_pipe(*, blocking: bool) -> Taken:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, blocking)
    return Taken(theirs, ours)


def _out_socket(*, blocking: bool) -> Taken:
    ours, theirs = socket.socketpair()
    theirs.setblocking(blocking)
    return Taken(theirs.detach(), ours.detach())


def _out_terminal() -> Taken:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    os.set_blocking(theirs, False)
    return Taken(theirs, ours)


def _out_file(path: Path, flags: int) -> Taken:
    path.write_bytes(b"before")
    return Taken(os.open(path, os.O_WRONLY | flags), None, path)


OUTPUTS: dict[str, tuple[Callable[[Path], Taken], bytes]] = {
    "a pipe that does not block": (lambda _: _out_pipe(blocking=False), b""),
    "a pipe": (lambda _: _out_pipe(blocking=True), b""),
    "a socket that does not block": (lambda _: _out_socket(blocking=False), b""),
    "a terminal that does not block": (lambda _: _out_terminal(), b""),
    "a file that is added to": (lambda path: _out_file(path, os.O_APPEND), b"before"),
    "a file that is cut": (lambda path: _out_file(path, os.O_TRUNC), b""),
}
PROGRAM = "i=0; while [ $i -lt 40 ]; do head -c 10000 /dev/zero | tr '\\0' x; i=$((i+1)); done"
FIRST_OUT = "a pipe that does not block"


@pytest.mark.parametrize("kind", [FIRST_OUT, *deep(sorted(set(OUTPUTS) - {FIRST_OUT}))])
@pytest.mark.parametrize("stream", ["stdout", *deep(["stderr"])])
def test_all_output_arrives(
    sandbox: aviato.Sandbox, environment: dict[str, str], tmp_path: Path, kind: str, stream: str
) -> None:
    make, before = OUTPUTS[kind]
    taken = make(tmp_path / "output")
    where = "" if stream == "stdout" else "exec >&2; "
    command = [*AVIATO, "exec", sandbox.sandbox_id, "sh", "-c", f"{where}{PROGRAM}"]
    other = "stderr" if stream == "stdout" else "stdout"
    streams: dict[str, Any] = {stream: taken.theirs, other: subprocess.PIPE}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, **streams) as process:
        taken.start()
        assert getattr(process, other).read() == b""
        came = taken.all()
        assert process.wait(60) == 0
    assert (len(came), came) == (len(before) + 400_000, before + b"x" * 400_000)


@pytest.mark.parametrize(
    ("kind", "status"), [("no reader", NOBODY_READS), *deep([("a full disk", FAILED), ("read only", FAILED)])]
)
@pytest.mark.parametrize("verb", ["exec", *deep(["run", "ls"])])
def test_output_that_nobody_can_have_ends_it_without_a_traceback(
    sandbox: aviato.Sandbox, environment: dict[str, str], kind: str, status: int, verb: str
) -> None:
    if kind == "no reader":
        ours, theirs = os.pipe()
        os.close(ours)
    else:
        theirs = os.open(
            "/dev/full" if kind == "a full disk" else os.devnull, os.O_RDONLY if kind == "read only" else os.O_WRONLY
        )
    verbs = {"exec": ["exec", sandbox.sandbox_id, "yes"], "run": ["run", "yes"], "ls": ["ls"]}
    done = subprocess.run(
        [*AVIATO, *verbs[verb]], stdout=theirs, stderr=subprocess.PIPE, env=environment, timeout=250, check=False
    )
    os.close(theirs)
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) == (0 if kind == "no reader" else 1), done.stderr
    assert done.returncode == (1 if verb == "ls" and kind == "no reader" else status)


CLOSED = ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *deep(CLOSED[:-1])])
@pytest.mark.parametrize("words", ["exec -i", *deep(["exec", "run", "run -i"])])
def test_without_some_streams_the_command_still_runs(
    sandbox: aviato.Sandbox, environment: dict[str, str], closed: str, words: str
) -> None:
    command = [*AVIATO, *words.split(), *([sandbox.sandbox_id] if words.startswith("exec") else [])]
    line = f'"$@" sh -c "cat; echo out; echo err >&2; exit 3" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command], input=b"", capture_output=True, env=environment, timeout=250, check=False
    )
    out = b"" if ">&-" in closed.replace("2>&-", "") else b"out\n"
    err = b"" if "2>&-" in closed else b"err\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, out, err)
