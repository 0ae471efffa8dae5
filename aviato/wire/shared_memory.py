"""Memory that a client on the server's machine shares for one request: contents then go by no socket. Standard library only.

Over a Unix socket a client opens a second connection (HTTP's upgrade to `UPGRADE`, on the path of sessions), and sends the
descriptor of a `memfd` with a record that names it. A request over its session says the name; the server passes the memory on
to process 1 with the request. No request has it for longer than it takes, and nobody maps it: it is read and written by calls.
Its size is sealed. Whatever is wrong with it, the socket does.
"""

from __future__ import annotations

import struct

UPGRADE = "aviato-memory"
"""The name of the protocol in HTTP's `Upgrade` header."""
RECORD = struct.Struct("c16s")
"""What a client says there: `SHARED`, with a descriptor beside it, or `GONE`; and the name, which nobody can guess."""
SHARED, GONE = b"+", b"-"
MEMORY_HEADER = "Aviato-Memory"
"""Of a request: the name, in hexadecimal digits."""
BYTES_HEADER = "Aviato-Memory-Bytes"
"""Of an answer whose body is empty, since so many bytes of it lie in the memory."""
READY = b"."
"""The body of a request that writes a file out of memory: all of it is there now. The head goes ahead of that."""
SIZE_FIELD = "memory_bytes"
"""Of the query of such a request: how many bytes."""
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
REFUSED = "memory"
"""The reason of an error that says: send it by the socket."""


def confirmation(offset: int) -> bytes:
    """What is written at `CONFIRMED_AT`: the offset, and its complement, since it may be read in the middle of a write."""
    return _CONFIRMED.pack(offset, offset ^ _ALL)
