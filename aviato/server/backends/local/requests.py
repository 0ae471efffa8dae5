"""What a server sends its zygote: requests for sandboxes, burials of the dead, and how processors are shared out."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BURIAL, OBLIVION, SHARING = b"AVB\2", b"AVB\3", b"AVB\4"
MOST_BURIED = 64
"""At once."""


OF_CHILD = ("plan", "filter", "born_filter")
"""Fields that the zygote itself has no need to read: they come behind a zero byte, and its child reads them."""


class Request(NamedTuple):
    """A request to `aviato-init zygote` that is known from another one: what many sandboxes share is written once.

    Attributes:
        uid, gid: host ids of the sandbox's user.
        behind: what is the same for all, as `_text` has it without its first brace.
        lends: another sandbox may have its place and layers.
        earlier: the request for the sandbox whose place and layers it has; 0 for one with its own.
    """

    uid: int
    gid: int
    behind: bytes
    lends: bool = False
    earlier: int = 0

    def renamed(self, ids: Mapping[str, str], uid: int, gid: int, earlier: int = 0) -> Request:
        """The same for another sandbox, with other ids in place of some."""
        behind = self.behind
        for sandbox_id, other in ids.items():
            behind = behind.replace(sandbox_id.encode(), other.encode())
        return Request(uid, gid, behind, self.lends, earlier)

    def message(self, number: int) -> bytes:
        """What is sent."""
        head = b'{"n":%d,"uid":%d,"gid":%d,"earlier_number":%d,' % (number, self.uid, self.gid, self.earlier)
        return head + self.behind


def example(wanted: dict[str, Any]) -> Request:
    """A request of its kind, by which others are made."""
    same = {name: value for name, value in wanted.items() if name not in ("n", "uid", "gid")}
    return Request(wanted["uid"], wanted["gid"], _text({**same, "content": False})[1:], wanted["lends"])


def message(wanted: dict[str, Any], number: int, *, content: bool) -> bytes:
    """What is sent of one that is known from no other.

    Args:
        wanted: its fields.
        number: of it.
        content: whether the contents of read-only files come with it.
    """
    return _text({**wanted, "n": number, "content": content})


def _text(fields: dict[str, Any]) -> bytes:
    parts = ({k: v for k, v in fields.items() if (k in OF_CHILD) is of_child} for of_child in (False, True))
    return b"\0".join(json.dumps(part, separators=(",", ":")).encode() for part in parts)


def burial(number: int, dead: Sequence[tuple[int, str, str]]) -> bytes:
    """Asks of which of the dead another sandbox can have the layers.

    Args:
        number: of this request.
        dead: those of the requests for them, their places, and where these go if so; `MOST_BURIED` at most.
    """
    head = struct.pack(f"=4s{2 + len(dead)}I", BURIAL, number, len(dead), *(request for request, _, _ in dead))
    return head + b"".join(os.fsencode(place) + b"\0" for _, *places in dead for place in places)


def oblivion(numbers: Sequence[int]) -> bytes:
    """Has the zygote let go of what it kept of some that were buried, by the numbers of the requests for them."""
    return struct.pack(f"=4s{2 + len(numbers)}I", OBLIVION, 0, len(numbers), *numbers)


def sharing(directory: str, unified: bool) -> bytes:
    """Has the zygote bear each sandbox in a control group of its own, by which processors are shared out.

    Args:
        directory: of the controller, where they are made.
        unified: it is of version 2.
    """
    return struct.pack("=4sI", SHARING, unified) + os.fsencode(directory) + b"\0"
