"""Python interpreters of this machine, found by looking at files, never by running them."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"python3\.(\d{1,2})")
OLDEST_MINOR = 6


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """One Python.

    Attributes:
        minor: N of 3.N.
        executable: without links.
        prefix: the directory that holds its `bin` and `lib`, without links.
    """

    minor: int
    executable: str
    prefix: str

    @property
    def version(self) -> str:
        """`3.N`."""
        return f"3.{self.minor}"


def bin_directories(home: str) -> list[str]:
    """Where interpreters are looked for, in order of preference."""
    found = ["/usr/bin", "/usr/local/bin"]
    roots = ["/opt", f"{home}/.pyenv/versions", "/opt/pyenv/versions", f"{home}/.local/share/uv/python"]
    for root in roots:
        with suppress(OSError):  # A home that was another user's, say.
            found += [str(path) for path in sorted(Path(root).glob("*/bin"), reverse=True)]
    conda = ("miniconda3", "anaconda3", "miniforge3", "mambaforge")
    return found + [f"{home}/{name}/bin" for name in conda]


def find_interpreters(directories: list[str] | None = None, own: str | None = None) -> list[Interpreter]:
    """Every usable Python 3, the preferred one of each version first, the server's own last.

    Args:
        directories: where to look; by default `bin_directories` of the user's home.
        own: the server's executable; by default this process's base one.
    """
    executables: list[str] = []
    for directory in bin_directories(os.path.expanduser("~")) if directories is None else directories:
        try:
            names = sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
        except OSError:
            continue
        executables += [f"{directory}/{name}" for name in names]
    base: str = getattr(sys, "_base_executable", sys.executable)
    executables.append(base if own is None else own)
    found = {interpreter.executable: interpreter for path in executables if (interpreter := inspect(path)) is not None}
    return list(found.values())


def inspect(path: str) -> Interpreter | None:
    """What an executable is, judged by its name and the standard library beside it."""
    executable = os.path.realpath(path)
    match = _NAME.fullmatch(os.path.basename(executable))
    if match is None or not os.access(executable, os.X_OK):
        return None
    minor = int(match[1])
    prefix = os.path.dirname(os.path.dirname(executable))
    libraries = (f"{prefix}/{folder}/python3.{minor}/os.py" for folder in ("lib", "lib64"))
    if minor < OLDEST_MINOR or not any(os.path.isfile(library) for library in libraries):
        return None
    return Interpreter(minor=minor, executable=executable, prefix=prefix)


def choose_default(found: list[Interpreter]) -> Interpreter | None:
    """The Python of a `host` sandbox that asked for none."""
    return found[0] if found else None


def choose(found: list[Interpreter], minor: int, fallback: str | None) -> Interpreter | None:
    """The Python for `python:3.N`: exactly that, or with fallback `nearest` the nearest newer one."""
    exact = [interpreter for interpreter in found if interpreter.minor == minor]
    if exact:
        return exact[0]
    newer = sorted((interpreter for interpreter in found if interpreter.minor > minor), key=lambda one: one.minor)
    return newer[0] if newer and fallback == "nearest" else None
