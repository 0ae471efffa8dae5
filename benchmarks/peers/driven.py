"""A peer's script in a process of its own, asked for one work at a time."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peers.environments import NotInstalledError, interpreter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.catalogue import Peer

HARNESS = Path(__file__).resolve().parent / "harness.py"
ANSWER_SECONDS = 120.0
"""How long a peer may take for one work."""
END_SECONDS = 30.0
"""How long it may take to stop what it keeps."""


class PeerError(Exception):
    """A peer could not be started, or a work failed; the text is for the table."""


class Driven:
    """A context manager around the process.

    Args:
        peer: whose script it is.
        environment: variables for it, beside what a shell has.
        install: make its environment where there is none.

    Raises:
        PeerError: on entering, where it cannot be measured here.
    """

    def __init__(self, peer: Peer, environment: Mapping[str, str], *, install: bool = True) -> None:
        self.peer = peer
        self._environment, self._install = environment, install
        self._buffer = b""

    def __enter__(self) -> Self:
        if reason := self.peer.why_not():
            raise PeerError(reason)
        try:
            command = [*interpreter(self.peer, install=self._install), str(HARNESS), str(self.peer.path)]
        except NotInstalledError as error:
            raise PeerError(str(error)) from None
        given = {name: value for name, value in os.environ.items() if self.peer.kind == "aviato" or name != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        given |= {**self._environment, **self.peer.environment}
        self._process = subprocess.Popen(command, env=given, start_new_session=True, **pipes)
        assert self._process.stdout is not None
        # Not `select`, which takes no descriptor above 1023: a client that has run many commands has more.
        self._answers = select.poll()
        self._answers.register(self._process.stdout, select.POLLIN)
        return self

    def __exit__(self, *exc: object) -> None:
        """End it. Where its input ends, it stops what it keeps; what it leaves all the same is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, work: str, **given: Any) -> float:
        """Do a work once; returns what was measured.

        Raises:
            PeerError: it failed, or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"work": work, **given}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"its process ended: {self._said()}") from None
        answer = json.loads(self._line())
        if "failure" in answer:
            raise PeerError(_short(answer["failure"]))
        return float(answer["value"])

    def _line(self) -> bytes:
        """The next line, read without a buffer, so that waiting for it can end."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._answers.poll(ANSWER_SECONDS * 1e3):
                self._process.kill()
                raise PeerError(f"no answer within {ANSWER_SECONDS:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 65_536)
            if not piece:
                raise PeerError(f"its process ended: {self._said()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _said(self) -> str:
        self._errors.seek(0)
        return _short((self._errors.read().strip().splitlines() or ["it said nothing"])[-1])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}…"
