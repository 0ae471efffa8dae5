"""Requests as process 1 understands them before Python runs in it (`early.c`). Standard library only.

The usual command, and a sandbox's configuration, come twice in their frame: as strings one behind the other, and as JSON for
Python, which skips the former. What is put here differs from the JSON in nothing but its form.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.supervisor.link import ExecSpec
    from aviato.wire.frames import Frame

FEATURE = "prepared"
"""Of a supervisor that takes them."""
NONE = -1.0
"""In the place of what is not limited."""
LONGEST_ID = 31
MOST_BYTES = 64 << 10
"""What is longer costs more to send twice than it saves."""

_SIZE = struct.Struct("=I")
_CONFIGURATION = struct.Struct("=IIiI6d")
_COMMAND = struct.Struct("=IIIId")
_HAS_DIRECTORY, _NOBODY_READS_ALONG = 1, 2


class Form(IntEnum):
    """What the head of a REQUEST says of its payload, in the place of a stream; an ACK has 1 where it is of a whole result."""

    JSON = 0
    CONFIGURATION = 1
    COMMAND = 2
    PING = 3
    """JSON, as the next."""
    STOP = 4


def configuration(values: Mapping[str, Any]) -> bytes:
    """What goes before the JSON of `configure`; nothing where it cannot be said so."""
    try:
        environment = _variables(values["environment"])
        text = _strings([values["working_dir"].encode(), *environment])
    except ValueError:
        return b""
    times = (values[name] for name in ("orphan_timeout_seconds", "max_lifetime_seconds", "idle_timeout_seconds"))
    limits = (values["limits"].get(name) for name in ("disk", "inodes", "memory"))
    numbers = (_number(value) for value in (*times, *limits))
    size = _CONFIGURATION.size + len(text)
    return _CONFIGURATION.pack(size, len(environment), values["nice"], 0, *numbers) + text


def command(spec: ExecSpec, *, read_along: bool = True) -> bytes:
    """What goes before the JSON of `exec`; nothing for a command that is not plain, and where it cannot be said so.

    Args:
        spec: of the command.
        read_along: whether somebody does; else a short one's begin and output may come with its end.
    """
    unusual = spec.main or spec.stdin or spec.input is not None or spec.terminal is not None or spec.cases is not None
    if unusual or len(spec.exec_id) > LONGEST_ID:
        return b""
    try:
        environment = _variables(spec.environment)
        words = [_encoded(word) for word in spec.command]
        text = _strings([spec.exec_id.encode(), _encoded(spec.working_dir or ""), *words, *environment])
    except ValueError:
        return b""
    if len(text) > MOST_BYTES:
        return b""
    size = _COMMAND.size + len(text)
    flags = bool(spec.working_dir) * _HAS_DIRECTORY + (not read_along) * _NOBODY_READS_ALONG
    return _COMMAND.pack(size, len(words), len(environment), flags, _number(spec.timeout_seconds)) + text


def as_json(frame: Frame) -> bytes:
    """The JSON of a REQUEST."""
    if frame.stream not in (Form.CONFIGURATION, Form.COMMAND):
        return frame.payload
    return frame.payload[_SIZE.unpack_from(frame.payload)[0] :]


def _number(value: float | None) -> float:
    return NONE if value is None else max(0.0, value)


def _encoded(text: str) -> bytes:
    """As the process gets it; what Python's `os.fsencode` gives there."""
    return text.encode("utf-8", "surrogateescape")


def _variables(environment: Mapping[str, str]) -> list[bytes]:
    if not all(name and "=" not in name for name in environment):
        raise ValueError("no name of a variable")
    return [_encoded(f"{name}={value}") for name, value in environment.items()]


def _strings(parts: list[bytes]) -> bytes:
    text = b"".join(part + b"\0" for part in parts)
    if text.count(b"\0") != len(parts):
        raise ValueError("a null byte in a string")
    return text
