"""Memory that a client on the server's machine lends for one request: contents then go by no socket. Standard library only.

A request over a Unix socket names a `memfd` of the process that connected: the number of its descriptor there, and the secret
that is the last part of its name. The server opens it, and passes it on to process 1 with the request. Nobody has it for longer
than the request, and nobody maps it: it is read and written by calls. Its size is sealed. Whatever is wrong with it, the socket
does.
"""

from __future__ import annotations

import struct

MEMORY_HEADER = "Aviato-Memory"
"""Of a request: `DESCRIPTOR.SECRET`. An earlier server does not look at it."""
BYTES_HEADER = "Aviato-Memory-Bytes"
"""Of an answer whose body is empty, since so many bytes of it lie in the memory."""
READY = b"."
"""The body of a request that writes a file out of memory: all of it is there now. The head goes ahead of that."""
SIZE_FIELD = "memory_bytes"
"""Of the query of such a request: how many bytes."""
NAME = "aviato-"
"""What its name begins with; the secret follows."""
CONFIRMED_AT = 4 << 20
"""Behind the bytes of an output, its reader says there up to which offset of the stream it has them: no request is needed."""
_CONFIRMED = struct.Struct("<QQ")
SIZE = CONFIRMED_AT + _CONFIRMED.size
SEALS = 0x0001 | 0x0002 | 0x0004
"""That it has: its size stays as it is, and no other seals are added."""
PLACE = struct.Struct(">QQ")
"""Of bytes of an output: where in the memory, and how many."""
MOST_BYTES = 4 << 20
"""Of a file that goes this way, so that process 1 does little else for a millisecond."""
LEAST_BYTES = 128 << 10
"""What is less costs as much by a socket."""
_ALL = 2**64 - 1
CONFIRMATION_BYTES = _CONFIRMED.size
REFUSED = "memory"
"""The reason of an error that says: send it by the socket."""


def confirmation(offset: int) -> bytes:
    """What is written at `CONFIRMED_AT`: the offset, and its complement, since it may be read in the middle of a write."""
    return _CONFIRMED.pack(offset, offset ^ _ALL)


def confirmed_offset(said: bytes) -> int:
    """What was said there; 0 where that is nothing yet, or nothing whole."""
    if len(said) != _CONFIRMED.size:
        return 0
    offset, complement = _CONFIRMED.unpack(said)
    return int(offset) if offset ^ complement == _ALL else 0


def secret_of(name: str) -> str | None:
    """The secret in what `/proc` calls an open file; None if that is none of these."""
    begin, end = f"/memfd:{NAME}", " (deleted)"
    return name[len(begin) : -len(end)] if name.startswith(begin) and name.endswith(end) else None
