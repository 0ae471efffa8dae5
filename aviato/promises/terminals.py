"""Terminals."""

from __future__ import annotations

import time

import aviato


def _until(session: aviato.TerminalSession, word: bytes) -> bytes:
    seen = b""
    for piece in session.output:
        seen += piece
        if word in seen:
            return seen
    raise AssertionError(seen)


def test_a_terminal(sandbox: aviato.Sandbox) -> None:
    """`shell` gives a command a terminal of a size that can be changed, and its exit code."""
    terminal = sandbox.shell(["sh"], width=91, height=33)
    terminal.stdin.write(b"tty >/dev/null && echo is-a-''tty; stty size\n").result()
    seen = _until(terminal, b"33 91")
    assert b"is-a-tty" in seen
    terminal.resize(40, 12).result()
    deadline = time.monotonic() + 10
    terminal.stdin.write(b"stty size; exit 5\n").result()
    rest = b"".join(terminal.output)
    assert b"12 40" in rest and time.monotonic() < deadline
    assert terminal.result().returncode == 5


def test_its_keys(sandbox: aviato.Sandbox) -> None:
    """A key is what a terminal makes of it: Ctrl-C interrupts the command in front, Ctrl-D ends its input."""
    terminal = sandbox.shell(["cat"])
    terminal.stdin.write(b"x\n").result()
    # Once by the terminal, once by the program: no shell is left that could be hit while it starts the program, and go on.
    _until(terminal, b"x\r\nx")
    terminal.stdin.write(b"\x03").result()
    assert terminal.result(60).returncode == 130
    terminal = sandbox.shell(["cat"])
    terminal.stdin.write(b"x\n\x04").result()
    assert terminal.result().returncode == 0
