"""Where Python goes on in a process 1 that has begun without it (`early.c`). Standard library only."""

from __future__ import annotations

import ctypes
import fcntl
import json
import struct
from typing import Any, NamedTuple

PROC, NULL, TERMINALS, EPOLL = range(32, 36)
"""Descriptors that are open then, beyond all that a supervisor is given; so whoever needs them knows them ahead."""

_PAST = struct.Struct("=Q32s")


class Early(ctypes.Structure):
    """`struct aviato_early`: what it is given, and where it says what it has done."""

    _fields_ = (
        ("hello", ctypes.c_char_p),
        ("hello_size", ctypes.c_uint64),
        ("badness", ctypes.c_char_p),
        ("badness_size", ctypes.c_uint64),
        ("path", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("state_size", ctypes.c_uint64),
        ("used_up", ctypes.c_void_p),
        ("used_up_size", ctypes.c_uint64),
    )


class Stream(NamedTuple):
    """An output of a command: its pipe if that is open, all that has come out of it, and how much of that was sent."""

    fd: int | None
    data: bytes
    sent: int


class Taken(NamedTuple):
    """A command that has begun; see `command.Command` for its times and sizes. `pid` is None where it has its result."""

    spec: dict[str, Any]
    mark: int
    pid: int | None
    channel: int
    started: float
    own_peak: int
    peak: int | None
    stdout: Stream
    stderr: Stream
    result: dict[str, Any] | None


class State(NamedTuple):
    """All that there is to know.

    Attributes:
        pid_namespace: number of it.
        last_heard, last_call, last_end: when the server, a call and the end of a command were seen last.
        due: when something was to be done, if nothing came.
        configured: when, if it was.
        configuration: the request.
        received: what came over the connection, beginning with a frame that was not dealt with.
        unsent: what has to go out before anything else.
        descriptors: that came with requests among those.
        past: marks of commands that are confirmed, by their ids.
        calls: keys of those that were done.
        disk_bytes: what is on disk as far as anybody knows.
        commands: the others.
    """

    pid_namespace: int
    last_heard: float
    last_call: float
    last_end: float
    due: float
    configured: float
    configuration: dict[str, Any] | None
    received: bytes
    unsent: bytes
    descriptors: list[int]
    past: dict[str, int]
    calls: list[str]
    disk_bytes: int
    commands: list[Taken]


def read(early: Early) -> State:
    """What compiled code has left."""
    said = json.loads(ctypes.string_at(early.state, early.state_size))
    configuration = _bytes(said["configuration"])
    past = [(name.rstrip(b"\0").decode(), mark) for mark, name in _PAST.iter_unpack(_bytes(said["past"]))]
    waiting = said["waiting"]
    return State(
        pid_namespace=said["pid_namespace"],
        last_heard=said["last_heard"],
        last_call=said["last_call"],
        last_end=said["last_end"],
        due=said["due"],
        configured=said["configured"],
        configuration=json.loads(configuration) if configuration else None,
        # Those that wait for their memory to be filled are as good as new: nothing was done for them.
        received=b"".join(_bytes(one["request"]) for one in waiting) + _bytes(said["received"]),
        unsent=_bytes(said["unsent"]),
        descriptors=[one["fd"] for one in waiting] + said["descriptors"],
        past={name: mark for name, mark in past if mark},
        calls=[name for name, mark in past if not mark],
        disk_bytes=max(0, said["disk_used"]),
        commands=[_taken(command) for command in said["commands"]],
    )


def is_open(fd: int) -> bool:
    """Whether there is such a descriptor."""
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _taken(said: dict[str, Any]) -> Taken:
    result = _bytes(said["result"])
    stdout, stderr = map(_stream, said["streams"])
    return Taken(
        spec=json.loads(_bytes(said["spec"]))["spec"],
        mark=said["mark"],
        pid=said["pid"] or None,
        channel=said["channel"],
        started=said["started"],
        own_peak=said["own_peak"],
        peak=said["peak"] if said["peak"] >= 0 else None,
        stdout=stdout,
        stderr=stderr,
        result=json.loads(result) if result else None,
    )


def _stream(said: dict[str, Any]) -> Stream:
    return Stream(said["fd"] if said["fd"] >= 0 else None, _bytes(said["bytes"]), said["sent"])


def _bytes(where: list[int]) -> bytes:
    address, size = where
    return ctypes.string_at(address, size) if size else b""
