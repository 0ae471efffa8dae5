"""Text of anybody's making, on its way into a sandbox or into a message."""

from __future__ import annotations

import re

MESSAGE_CHARACTERS = 2000


def encode(text: str) -> bytes:
    """UTF-8 of any text: a lone surrogate is three bytes, as Python itself writes it, and no error."""
    return text.encode("utf-8", "surrogatepass")


def is_unicode(text: str) -> bool:
    """Whether a program could be given this text: no surrogate stands alone in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Text of as many lines as it has, with what is neither printable nor a line end nor a tab as its escape, as `repr` has it.

    Whatever code inside a sandbox may have written passes through here, or `line`, or `shown`, before a person sees it: escape
    sequences, C1 controls, marks that turn the direction of text and lone surrogates act on no terminal and in no log.
    """
    return text if text.isprintable() else _UNUSUAL.sub(_escaped, text)


def line(text: str) -> str:
    """As `printable`, as one line: line ends and tabs are escaped too."""
    return text if text.isprintable() else _UNUSUAL_IN_LINE.sub(_escaped, text)


def shown(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """As `line`, of bounded length.

    Args:
        text: any, with control characters, line ends and lone surrogates.
        limit: characters of the line; what is more is cut, and an ellipsis says so.
    """
    # Only so much can be seen, and a message may be of 100 MB.
    head = line(text[: limit + 1])
    return head if len(head) <= limit else head[: limit - 1] + "…"


_UNUSUAL = re.compile(r"[^\t\n -~]")
_UNUSUAL_IN_LINE = re.compile(r"[^ -~]")


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else repr(found[0])[1:-1]
