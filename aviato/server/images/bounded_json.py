"""JSON that somebody else wrote: objects, numbers within bounds, and what a newer version may have more to say of."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from aviato.server.images.image_errors import image_error, quoted

LARGEST_NUMBER = 1 << 53


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """An object of JSON.

    Args:
        data: its bytes.
        what: what it is, for the message.

    Raises:
        SandboxImageError: it is none.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise image_error(
            "bad_manifest", f"{what} is not JSON; it begins with {quoted(data[:60].decode(errors='replace'))}"
        ) from None
    if not isinstance(value, dict):
        raise image_error("bad_manifest", f"{what} is JSON, but no object")
    return value


def read_size(value: object, what: str) -> int:
    """A size in bytes.

    Raises:
        SandboxImageError: it is no number, negative, or larger than anything.
    """
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise image_error("bad_manifest", f"{what} has no size that can be: {quoted(value)}")
    return value


def known_fields(kind: type, said: dict[str, Any]) -> dict[str, Any]:
    """Of what was written down of a dataclass, that which this version knows: servers of several versions share a store."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in said.items() if name in names}
