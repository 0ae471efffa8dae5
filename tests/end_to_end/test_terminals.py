"""Terminals through the whole way, from blocking and from async code."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, AviatoValidationError, OperationCancelledError, SandboxExecutionError
from tests.conftest import start_server


def read_until(terminal: aviato.TerminalSession, text: bytes, seconds: float = 15) -> bytes:
    """What its screen was sent up to a text; the iterator is let go with the function."""
    seen = b""
    deadline = time.monotonic() + seconds
    for chunk in terminal.output:
        seen += chunk
        if text in seen:
            return seen
        assert time.monotonic() < deadline, seen
    raise AssertionError(f"ended without {text!r}: {seen!r}")


def prompt(sandbox: aviato.Sandbox, **options: Any) -> aviato.TerminalSession:
    """A shell that has shown its prompt; what is asked for appears in no command line."""
    shell = sandbox.shell(["/bin/bash", "--norc"], env={"PS1": "ready> ", "TERM": "dumb"}, **options)
    read_until(shell, b"ready> ")
    return shell


def test_a_shell_from_blocking_code(sandbox: aviato.Sandbox) -> None:
    shell = prompt(sandbox, width=100, height=30)
    shell.stdin.write(b"stty size\n").result()
    read_until(shell, b"\r\n30 100\r\n")
    shell.resize(132, 43).result()
    shell.stdin.writeline("stty size").result()
    read_until(shell, b"\r\n43 132\r\n")
    shell.stdin.write(b"sh -c 'echo asleep; exec sleep 1000'\n").result()
    read_until(shell, b"\r\nasleep\r\n")
    shell.stdin.write(b"\x03").result()
    read_until(shell, b"^C")
    assert not shell.done()
    shell.stdin.write(b"exit 3\n")
    result = shell.result(15)
    assert (result.returncode, result.signal) == (3, None)
    assert 0 < result.duration_seconds < 30
    shell.resize(10, 10).result()
    with pytest.raises(SandboxExecutionError, match="closed"):
        shell.stdin.write(b"late")
    assert b"".join(shell.output).startswith(b"ready> ")


def test_the_default_is_bash_without_a_limit(session: aviato.Session) -> None:
    sandbox = session.sandbox(exec_timeout_seconds=0.2)
    shell = sandbox.shell()
    time.sleep(0.5)
    shell.stdin.write(b"echo $TERM; tty\n")
    shell.stdin.close().result()
    result = shell.result(15)
    output = b"".join(shell.output)
    assert b"xterm-256color\r\n/dev/pts/0" in output and b"job control" not in output
    assert result.returncode == 0


def test_cancelling_kills_the_tree(sandbox: aviato.Sandbox) -> None:
    shell = prompt(sandbox)
    shell.stdin.write(b"setsid sleep 4321 & sleep 4321\n").result()
    read_until(shell, b"sleep 4321\r\n")
    assert shell.cancel()
    with pytest.raises(OperationCancelledError):
        shell.result(15)
    assert sandbox.exec(["pgrep", "-f", "sleep 4321"]).result().returncode == 1
    with pytest.raises(OperationCancelledError):
        list(shell.output)


def test_the_sandboxs_end_is_the_terminals(session: aviato.Session) -> None:
    sandbox = session.sandbox()
    shell = prompt(sandbox)
    began = time.monotonic()
    sandbox.stop().result()
    assert time.monotonic() - began < 5
    with pytest.raises(aviato.SandboxNotRunningError):
        shell.result(15)


def test_one_reader_at_a_time(sandbox: aviato.Sandbox) -> None:
    shell = prompt(sandbox)
    first = iter(shell.output)
    next(first)
    with pytest.raises(RuntimeError, match="one iterator at a time"):
        iter(shell.output)
    shell.cancel()


def test_nothing_is_an_execution_in_the_metrics(session: aviato.Session) -> None:
    assert session.sandbox().shell(["false"]).result(15).returncode == 1
    assert session.get_metrics().get("aviato/executions", 0) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"width": 0}, AviatoValidationError, "width"),
        ({"height": -1}, AviatoValidationError, "height"),
        ({"height": 70_000}, AviatoValidationError, "height"),
        ({"width": "80"}, TypeError, "width"),
        ({"width": True}, TypeError, "width"),
        ({"height": 24.0}, TypeError, "height"),
        ({"command": "bash"}, TypeError, "list of strings"),
        ({"command": []}, AviatoValidationError, "empty"),
        ({"cwd": "relative"}, AviatoValidationError, "absolute"),
    ],
)
def test_what_cannot_be_meant(sandbox: aviato.Sandbox, arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sandbox.shell(**arguments)
    if "width" in arguments or "height" in arguments:
        shell = sandbox.shell(["true"])
        with pytest.raises(error, match=message):
            shell.resize(**{"width": 80, "height": 24, **arguments})
        shell.result(15)


def test_a_slow_reader_holds_the_writer(sandbox: aviato.Sandbox) -> None:
    shell = sandbox.shell(["sh", "-c", "head -c 8000000 /dev/zero | tr '\\0' x; touch /tmp/written"])
    reader = iter(shell.output)
    size = len(next(reader))
    time.sleep(0.5)
    assert sandbox.exec(["test", "-e", "/tmp/written"]).result().returncode == 1
    size += sum(map(len, reader))
    assert size == 8_000_000
    assert shell.result(15).returncode == 0


@pytest.mark.anyio
async def test_a_shell_from_async_code(served: Any) -> None:
    async with aviato.Sandbox() as sandbox:
        shell = sandbox.shell(["/bin/bash", "--norc"], env={"PS1": "ready> ", "TERM": "dumb"})
        seen, typed = b"", False
        async for chunk in shell.output:
            seen += chunk
            if b"ready> " in seen and not typed:
                typed = True
                await shell.stdin.write(b"exit $((40 + 2))\n")
        assert (await shell).returncode == 42


@pytest.mark.anyio
async def test_a_shell_of_the_async_client(served: Any) -> None:
    async with AsyncClient() as client, await client.sandbox() as sandbox:
        shell = sandbox.shell(["/bin/bash", "--norc"], 90, 20, env={"PS1": "ready> ", "TERM": "dumb"})
        seen = b""

        async def until(text: bytes) -> None:
            nonlocal seen
            async for chunk in shell.output:
                seen += chunk
                if text in seen:
                    seen = seen.partition(text)[2]
                    return

        async with asyncio.timeout(20):
            await shell.resize(70, 19)
            await until(b"ready> ")
            await shell.write_stdin(b"stty size\n")
            await until(b"19 70\r\n")
            await shell.close_stdin()
            assert (await shell).returncode == 0
        cancelled = sandbox.shell(["sleep", "1000"])
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled


def test_a_cut_connection_loses_and_doubles_nothing(served: Any) -> None:
    """A relay before the server's socket that breaks every connection now and then."""
    path = served.url.removeprefix("unix://")
    with Cutter(path) as cutter, aviato.Sandbox(base_url=cutter.url) as sandbox:
        script = "echo begun >> /tmp/begun; stty -echo; echo up; for i in $(seq 40); do read line; echo got $line; done; exit 9"
        shell = sandbox.shell(["bash", "-c", script])
        read_until(shell, b"up")
        for number in range(40):
            shell.stdin.writeline(str(number)).result(30)
            if number % 8 == 0:
                cutter.cut()
        assert shell.result(30).returncode == 9
        lines = b"".join(shell.output).decode().split("\r\n")
        assert lines == ["up", *(f"got {number}" for number in range(40)), ""]
        assert sandbox.read_file("/tmp/begun").result() == b"begun\n"
        assert cutter.count >= 5


class Cutter:
    """A Unix socket whose connections lead to another one and can be cut."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._path = f"{target}-cut"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._all: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.count = 0
        self.url = f"unix://{self._path}"

    def __enter__(self) -> Cutter:
        self._begin(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.unlink(self._path)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for one in self._all:
            one.close()

    def cut(self) -> None:
        self.count += 1
        for pair in self._pairs:
            for one in pair:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self._pairs.clear()

    def _begin(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.socket(socket.AF_UNIX)
            outer.connect(self._target)
            self._pairs.append((inner, outer))
            self._all += (inner, outer)
            self._begin(self._copy, inner, outer)
            self._begin(self._copy, outer, inner)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_the_server_may_restart_meanwhile(make_server: Any) -> None:
    server = make_server()
    with aviato.Sandbox(base_url=server.url) as sandbox:
        shell = prompt(sandbox)
        server.stop(signal.SIGTERM)
        again = start_server(Path(server.state_dir).parent)
        try:
            shell.stdin.write(b"echo still $((1 + 1))\n").result(20)
            read_until(shell, b"still 2\r\n")
            shell.stdin.write(b"exit 6\n")
            assert shell.result(20).returncode == 6
        finally:
            sandbox.stop().result()
            again.stop()
