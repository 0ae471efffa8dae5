"""What is sent to have programs run one after the other in a sandbox, and how what came of them is read."""

from __future__ import annotations

import json
from binascii import a2b_base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aviato.results import ProcessResult

WRITE = """
while [ $# -gt 1 ]; do
  case $1 in */*) mkdir -p -- "${1%/*}" || exit 1;; esac
  head -c "$2" > "$1" || exit 1
  shift 2
done
"""
"""Writes the files of its arguments, a path and a size each, from what it reads."""
STDERR_BYTES = 64 << 10
HEAD_BYTES = 1024
"""Of a record, beside what was printed."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        command: its arguments.
        stdin: what it reads.
        output_bytes: how much of its stdout is kept.
        timeout_seconds: its limit; None for none.
        required: nothing follows it unless it ends with 0.
        writes: it is no program of anybody's, and only writes files.
    """

    command: Sequence[str]
    stdin: bytes = b""
    output_bytes: int = STDERR_BYTES
    timeout_seconds: float | None = None
    required: bool = False
    writes: bool = False


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a program ended.

    Attributes:
        started: whether it could be started at all.
        returncode: 128 + n where it was killed by signal n.
        signal: by which it was killed.
        timed_out, oom_killed: why, where a limit did it.
        duration_seconds: from its start to its end.
        stdout, stderr: what it printed, as much as is kept.
        stdout_bytes_total: all that it printed there.
    """

    started: bool
    returncode: int
    signal: int | None
    timed_out: bool
    oom_killed: bool
    duration_seconds: float
    stdout: bytes
    stderr: bytes
    stdout_bytes_total: int


class Command(NamedTuple):
    """A command that runs programs; see `driver.Command`."""

    argv: list[str]
    given: bytes
    cases: dict[str, Any]
    most_bytes: int
    """That its own output may have."""


def writer(files: Mapping[str, bytes]) -> Program:
    """The program that writes files, relative to the directory in which commands start; it needs a shell."""
    words = [word for path, content in files.items() for word in (path if path[:1] in "/." else f"./{path}", str(len(content)))]
    return Program(command=["/bin/sh", "-c", WRITE, "sh", *words], stdin=b"".join(files.values()), required=True, writes=True)


def command(programs: Sequence[Program]) -> Command:
    """What runs programs, at least one, each once the one before has ended and all that it left is killed."""
    told = [
        {
            "command": list(program.command),
            "input_bytes": len(program.stdin),
            "output_bytes": program.output_bytes,
            "required": program.required,
        }
        for program in programs
    ]
    asked = {"timeout_seconds": [program.timeout_seconds for program in programs], "programs": told}
    most = sum(_in_base64(program.output_bytes) + _in_base64(STDERR_BYTES) + HEAD_BYTES for program in programs) + HEAD_BYTES
    return Command(list(programs[0].command), b"".join(program.stdin for program in programs), asked, most)


def records(result: ProcessResult) -> list[Ran]:
    """How the programs ended, as far as they did and as it is whole, as the sandbox's process 1 has written it."""
    ran: list[Ran] = []
    for line in result.stdout_bytes[: result.stdout_head_bytes].splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            break  # Cut off in its middle, by a limit or by an end.
        if "cases" in found:
            break
        ran.append(_ran(found))
    return ran


def _ran(found: dict[str, Any]) -> Ran:
    return Ran(
        started=found["started"],
        returncode=found["returncode"],
        signal=found["signal"],
        timed_out=found["timed_out"],
        oom_killed=found["oom_killed"],
        duration_seconds=found["duration_seconds"],
        stdout=a2b_base64(found["stdout"]),
        stderr=a2b_base64(found["stderr"]),
        stdout_bytes_total=found["stdout_bytes_total"],
    )


def _in_base64(size: int) -> int:
    return (size + 2) // 3 * 4
