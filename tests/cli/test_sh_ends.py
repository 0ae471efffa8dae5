"""How `aviato sh` ends when its terminal, its server or its user has had enough; on a terminal that the test holds."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.matrices import deep

TAG = "sh-ends"


class Shell:
    """`aviato sh`, with bash in a new sandbox, and the terminal that it runs on."""

    def __init__(self, url: str, **environment: str) -> None:
        self.seen = b""
        self._status: int | None = None
        words = ["sh", "-e", "PS1=inside> ", "--tag", TAG, "--", "bash", "--norc"]
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update({"AVIATO_BASE_URL": url, "TERM": "xterm-256color", **environment})
            os.execv(sys.executable, [sys.executable, "-m", "aviato", *words])
        os.set_inheritable(self.terminal, False)  # or the next one would hold this terminal open

    def until(self, text: bytes, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 65536)

    def type(self, keys: bytes) -> None:
        os.write(self.terminal, keys)

    def ended(self, seconds: float) -> int:
        """Its exit status; nobody looks at its screen meanwhile."""
        deadline = time.monotonic() + seconds
        while self._status is None:
            assert time.monotonic() < deadline, "it goes on"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return self._status

    def hang_up(self) -> None:
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1

    def close(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.ended(10)
        self.hang_up()


@pytest.fixture
def shell() -> Iterator[Callable[..., Shell]]:
    begun: list[Shell] = []

    def begin(url: str, **environment: str) -> Shell:
        begun.append(Shell(url, **environment))
        begun[-1].until(b"inside> ")
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def gone(server: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while aviato.Sandbox.list(tags=[TAG], base_url=server.url).result():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_terminal_that_takes_nothing_holds_no_signal_up(server: Any, shell: Any) -> None:
    one = shell(server.url)
    one.type(b"yes\r")
    one.until(b"y\r\ny\r\n")
    used = -1.0
    while used != (used := _cpu_seconds(one.pid)):
        time.sleep(0.3)  # until all that it can write is written
    os.kill(one.pid, signal.SIGTERM)
    assert one.ended(10) == 143
    assert gone(server, 0)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("way", ["keys", *deep(["signal"])])
def test_a_server_that_does_not_answer_holds_nobody(make_server: Any, shell: Any, way: str) -> None:
    server = make_server()
    one = shell(server.url)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        if way == "keys":
            one.type(b"\r~.")
        else:
            os.kill(one.pid, signal.SIGTERM)
        assert one.ended(25) == (130 if way == "keys" else 143)
        one.until(b"no answer within")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert gone(server, 10)


def test_a_window_that_is_closed_and_a_kill_leave_nothing(server: Any, shell: Any) -> None:
    one, other = shell(server.url), shell(server.url)
    one.type(b"trap '' HUP; sleep 1000\r")
    one.until(b"sleep 1000\r\n")
    one.hang_up()
    assert one.ended(10) == 129
    os.kill(other.pid, signal.SIGKILL)
    assert other.ended(10) == -9
    assert gone(server, 10)


def test_programs_are_told_what_the_terminal_is(server: Any, shell: Any) -> None:
    one = shell(server.url, TERM="vt220")
    one.type(b"echo is $TERM\r")
    one.until(b"is vt220\r\n")
    one.type(b"exit 7\r")
    assert one.ended(10) == 7
