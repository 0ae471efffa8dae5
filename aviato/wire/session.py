"""A session: all that a client asks of a server, over one connection. Frames of `wire.frames`, many requests beside each other.

The client asks for it by HTTP (`PATH`, with `Upgrade: UPGRADE`); after `101` both sides speak frames. A request is a channel:

* `OPEN` begins it; its payload is a head and the first bytes of the body, its offset says how long the head is.
* `ANSWER` does the same for the answer.
* `DATA` brings more of a body, `END` says that no more comes. An `OPEN` or `ANSWER` whose `stream` is `WHOLE` has all of it.
* `CREDIT` says up to which byte of a body its reader has room; `WINDOW_BYTES` go without it.
* `CUT` ends a channel before its time, from either side: the client wants no more of it, or the answer broke off.

A channel is over with the answer's end or the server's `CUT`; its number can be used again then. Standard library only.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "/v1/session"
UPGRADE = "aviato-session"
"""The name of the protocol in HTTP's `Upgrade` header."""
LENGTH_HEADER, TYPE_HEADER = "Content-Length", "Content-Type"
"""Of a body, as in HTTP."""
WHOLE = 1
MOST_CHANNELS = 65_535
"""Of one session; 0 is none."""
WINDOW_BYTES = 1 << 20
"""Of each body, beyond what its reader has taken."""
PIECE_BYTES = 128 << 10
"""A frame of a body has no more, so that others come between."""
MOST_HEAD_BYTES = 64 << 10
KEPT_HEAD_BYTES = 1 << 10
"""Longer heads are not remembered."""


class Head(NamedTuple):
    """What comes before a body.

    Attributes:
        first: method and path of a request, as in HTTP; status of an answer.
        headers: by their names as they were sent: both sides write them alike.
    """

    first: str
    headers: Mapping[str, str]


def encode_opening(headers: Mapping[str, str], host: str = "localhost", prefix: str = "", upgrade: str = UPGRADE) -> bytes:
    """The request that opens a session.

    Args:
        headers: that say who asks.
        upgrade: what is to be spoken.
        host: that is asked, with its port where that is not the scheme's.
        prefix: of paths, where a proxy has one.
    """
    said = {"Host": host, WIRE_HEADER: str(WIRE_VERSION), "Connection": "Upgrade", "Upgrade": upgrade, **headers}
    lines = [f"GET {prefix}{PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def encode_head(first: str, headers: Mapping[str, str]) -> bytes:
    """The bytes of a head.

    Raises:
        ValueError: there is something in it that would be taken for another line.
    """
    text = first
    for name, value in headers.items():
        text += f"\n{name}: {value}"
    if text.count("\n") != len(headers):
        raise ValueError("a line end in a head")
    return text.encode("latin-1")


def parse_head(head: bytes) -> Head:
    """A head; those of the same requests are the same, and are remembered.

    Raises:
        ValueError: this is none.
    """
    return _kept_head(head) if len(head) <= KEPT_HEAD_BYTES else _parse_head(head)


def _parse_head(head: bytes) -> Head:
    if len(head) > MOST_HEAD_BYTES:
        raise ValueError("its head is too large")
    first, *lines = head.decode("latin-1").split("\n")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(": ")
        if not colon:
            raise ValueError(f"a header {line[:40]!r}")
        headers[name] = value
    return Head(first, MappingProxyType(headers))


_kept_head = functools.lru_cache(maxsize=1024)(_parse_head)
