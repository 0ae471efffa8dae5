"""What is wrong with a tree or its archive. Standard library only."""

from __future__ import annotations

HOSTILE = "hostile_archive"


def shown(name: bytes) -> str:
    """A name for a message: of bounded length, with what is no UTF-8 escaped."""
    text = name.decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else f"{text[:200]}…")


class TreeError(Exception):
    """A tree that cannot be copied.

    Attributes:
        member: name of the entry below the tree's top; empty for the tree as a whole.
        reason: as of `SandboxFileError`.
        message: what is wrong, without the name.
    """

    def __init__(self, member: bytes, reason: str, message: str) -> None:
        super().__init__(f"{shown(member)} {message}" if member else message)
        self.member = member
        self.reason = reason


def hostile(member: bytes, message: str) -> TreeError:
    """A member that no honest packer writes."""
    return TreeError(member, HOSTILE, message)


class SenderFailed(Exception):
    """The archive says that its sender could not go on.

    Attributes:
        body: the sender's error, as JSON.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body.decode(errors="replace")[:500])
        self.body = body
