"""What the file operations of both clients check at the call."""

from __future__ import annotations

import os
from typing import Literal, cast

from aviato.exceptions import AviatoValidationError
from aviato.values.text import is_unicode

_NO_PATH = "empty, or NUL or a lone surrogate in it, which is no Unicode"


def file_path(value: str | os.PathLike[str]) -> str:
    """A path inside a sandbox.

    Raises:
        TypeError: no text.
        AviatoValidationError: empty, or with NUL or a lone surrogate in it.
    """
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"the path must be a str, not {type(path).__name__}")
    if not path or "\0" in path or not is_unicode(path):
        raise AviatoValidationError(f"{path!r} is not a path: {_NO_PATH}", field_violations={"path": _NO_PATH})
    return path


def local_path(value: str | os.PathLike[str]) -> str:
    """A path of the local disk; bytes of a name that are no UTF-8 are what Python has for them.

    Raises:
        TypeError: no text.
        AviatoValidationError: empty, or with NUL or half a character in it.
    """
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"the local path must be a str or a Path, not {type(path).__name__}")
    if not path or "\0" in path or not _can_be_encoded(path):
        raise AviatoValidationError(f"{path!r} is not a path: {_NO_PATH}", field_violations={"local": _NO_PATH})
    return path


def _can_be_encoded(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def file_mode(value: int | None) -> int | None:
    """Permission bits."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"mode must be an int such as 0o644, not {type(value).__name__}")
    if not 0 <= value <= 0o7777:
        raise AviatoValidationError(f"mode must be 0 to 0o7777, got {value:o}", field_violations={"mode": "out of range"})
    return value


def file_content(value: bytes) -> bytes:
    """Contents of a file."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"write_file() takes bytes, not {type(value).__name__}; encode text first")
    return bytes(value)


def link_choice(value: str) -> Literal["refuse", "skip"]:
    """What to do with links that may lead out of a tree."""
    if value not in ("refuse", "skip"):
        violations = {"outside_links": "unknown"}
        raise AviatoValidationError(f"outside_links must be 'refuse' or 'skip', got {value!r}", field_violations=violations)
    return cast("Literal['refuse', 'skip']", value)
