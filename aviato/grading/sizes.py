"""What the kernel takes as arguments and environment of a program, checked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.values.text import is_unicode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST_TEXT_BYTES = (128 << 10) - 1
"""Of one argument or variable, without its NUL."""
ALL_TEXT_BYTES = (2 << 20) - (16 << 10)
"""Of all of them, with their NULs and addresses; the rest is for what a sandbox's environment has by itself."""
ADDRESS_BYTES = 8


def check_sizes(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse what no program could be started with.

    Args:
        command: the program and its arguments.
        env: variables of it.

    Raises:
        AviatoValidationError: a text is too long, all are, or one is not Unicode.
    """
    total = 0
    named = [("command", f"argument {number} of the command", text) for number, text in enumerate(command)]
    named += [("env", f"variable {name!r}", f"{name}={text}") for name, text in env.items()]
    for field, what, text in named:
        if not is_unicode(text):
            raise _wrong(field, f"{what} has a lone surrogate, which no program can be given; write it to a file")
        size = len(text.encode())
        if size > LONGEST_TEXT_BYTES:
            raise _wrong(
                field, f"{what} has {size} bytes; a program takes at most {LONGEST_TEXT_BYTES} in one. Write it to a file"
            )
        total += size + 1 + ADDRESS_BYTES
    if total > ALL_TEXT_BYTES:
        message = f"the command and its environment have {total} bytes; a program takes at most {ALL_TEXT_BYTES} in all"
        raise _wrong("command", f"{message}. Write them to a file")


def _wrong(field: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={field: message})
