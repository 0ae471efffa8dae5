"""Requests as process 1 understands them before Python runs in it (`early.c`). Standard library only.

The usual command, and a sandbox's configuration, come twice in their frame: as strings one behind the other, and as JSON for
Python, which skips the former. What is put here differs from the JSON in nothing but its form.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.link.link import ExecSpec
    from aviato.wire.frames import Frame

FEATURE = "prepared"
"""Of a supervisor that takes them."""
FILES_FEATURE = "prepared_files"
"""The same of those for files."""
NONE = -1.0
"""In the place of what is not limited."""
LONGEST_ID = 31
MOST_BYTES = 64 << 10
"""What is longer costs more to send twice than it saves."""
MOST_PATH_BYTES = 4200
MOST_CONTENT_BYTES = 1 << 20
"""Of a file that comes in one frame."""

_OLD = -1
"""The mode of a file that keeps the one it has, or gets the usual one."""

_SIZE = struct.Struct("=I")
_CONFIGURATION = struct.Struct("=IIiI6d")
_COMMAND = struct.Struct("=IIIId")
_FILE = struct.Struct("=IIiIQq")
_HAS_DIRECTORY, _NOBODY_READS_ALONG = 1, 2


class Form(IntEnum):
    """What the head of a REQUEST says of its payload, in the place of a stream; an ACK has 1 where it is of a whole result."""

    JSON = 0
    CONFIGURATION = 1
    COMMAND = 2
    PING = 3
    """JSON, as the next."""
    STOP = 4
    WRITE = 5
    """Its contents are in the same frame, between the strings and the JSON, unless they lie in memory."""
    READ = 6


_PREPARED = frozenset({Form.CONFIGURATION, Form.COMMAND, Form.WRITE, Form.READ})


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
    return _CONFIGURATION.pack(size, len(environment), values["nice"], values["limits"].get("open_files") or 0, *numbers) + text


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


def file(path: str, key: str = "", *, mode: int | None = None, size: int | None = None, memory: int = 0) -> bytes:
    """What goes before the contents and the JSON of a whole file's `read` or `write`; nothing where it cannot be said so.

    Args:
        path: as the request has it.
        key: of a file that is written.
        mode: the same.
        size: of the contents.
        memory: the inode of memory that comes with the request.
    """
    try:
        text = _strings([path.encode(), name := key.encode()])
    except ValueError:
        return b""
    if len(text) > MOST_PATH_BYTES or len(name) > LONGEST_ID:
        return b""
    content = 0 if memory or size is None else size
    return _FILE.pack(_FILE.size + len(text) + content, content, _OLD if mode is None else mode, 0, memory, _whole(size)) + text


def as_request(frame: Frame) -> dict[str, Any]:
    """What a REQUEST says; `content` is of a file whose contents came along."""
    if frame.stream not in _PREPARED:
        return dict(json.loads(frame.payload))
    end: int = _SIZE.unpack_from(frame.payload)[0]
    request: dict[str, Any] = json.loads(frame.payload[end:])
    if frame.stream == Form.WRITE and "memory" not in request:
        content: int = _FILE.unpack_from(frame.payload)[1]
        request["content"] = memoryview(frame.payload)[end - content : end]
    return request


def _whole(value: int | None) -> int:
    return -1 if value is None else value


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
