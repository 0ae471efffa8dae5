"""Memory that a client on the same machine lends: contents of files then go by neither socket. Standard library only.

A client says `POST /v1/memory` with `Upgrade: aviato-memory` over a Unix socket, and is told a name for that connection. Over
it goes a number for each piece of memory, with its descriptor; a number without one takes that memory back. Requests name what
they use as `NAME.NUMBER`. Each piece serves one sandbox, and one request at a time.
"""

from __future__ import annotations

import struct

UPGRADE = "aviato-memory"
NAME_HEADER = "Aviato-Memory"
"""Of the answer: the name of the connection."""
BYTES_HEADER = "Aviato-Memory-Bytes"
"""Of an answer whose body is empty since so many bytes of it lie in memory that was lent."""
CONFIRMED = struct.Struct("<Q")
CONFIRMED_AT = 4 << 20
"""Behind the bytes of an output, its reader says there up to which offset of the stream it has them: no request is needed."""
NUMBER = struct.Struct("!I")
MOST_BYTES = 4 << 20
"""Of a file that goes this way, so that process 1 does little else for a millisecond."""
LEAST_BYTES = 128 << 10
"""What is less costs as much by a socket."""
MOST_PIECES = 16
"""That one connection lends at a time."""
REFUSED = "memory"
"""The reason of an error that says: send it by the socket."""
FEATURE = "memory"
"""Of a supervisor that takes it."""
