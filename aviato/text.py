"""Text of anybody's making, on its way into a sandbox or into a message."""

from __future__ import annotations

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


def shown(text: str, limit: int = MESSAGE_CHARACTERS) -> str:
    """Text as one printable line: what is no printable character is its escape, as `repr` has it.

    Args:
        text: any, with control characters, line ends and lone surrogates.
        limit: characters of the line; what is more is cut, and an ellipsis says so.
    """
    # Only so much can be seen, and a message may be of 100 MB.
    head = text[: limit + 1]
    if not head.isprintable():
        head = "".join(each if each.isprintable() else repr(each)[1:-1] for each in head)
    return head if len(head) <= limit else head[: limit - 1] + "…"
