"""How much text a sandbox can be made with: what the kernel hands to a program, and what is kept on record of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORD_BYTES = 131_071
"""Linux hands a program no longer argument, and no longer `NAME=value`."""
ARGUMENTS_BYTES = 1 << 20
ENVIRONMENT_BYTES = 1 << 20
"""Half of what Linux gives the arguments and variables of a program together, as it usually is."""
PATH_BYTES = 4095
"""The kernel takes no longer path."""
USER_CHARACTERS = 256
IMAGE_CHARACTERS = 4096
TAGS = 256
ANNOTATIONS_BYTES = 256 << 10

_MOST_A_CHARACTER = 6
"""Bytes of one in JSON."""


def too_many_variables(variables: Mapping[str, str]) -> str | None:
    """Why these variables are more than the commands of a sandbox can be given, or None. Values are not in it."""
    for name, value in variables.items():
        if _exceeds(len(name) + len(value), WORD_BYTES) and (size := 1 + _bytes(name) + _bytes(value)) > WORD_BYTES:
            return f"{name[:100]!r} takes {size} bytes with its value; a program gets at most {WORD_BYTES} in one variable"
    size = _sent(text for pair in variables.items() for text in pair)
    if size > ENVIRONMENT_BYTES:
        return f"takes {size} bytes in all; a sandbox can have {ENVIRONMENT_BYTES}"
    return None


def too_many_arguments(words: Iterable[str]) -> str | None:
    """Why these words are more than a program can be started with, or None."""
    words = list(words)
    for number, word in enumerate(words, 1):
        if _exceeds(len(word), WORD_BYTES) and (size := _bytes(word)) > WORD_BYTES:
            return f"has an argument {number} of {size} bytes; a program gets at most {WORD_BYTES} in one argument"
    size = _sent(words)
    if size > ARGUMENTS_BYTES:
        return f"takes {size} bytes in all; a sandbox can be made with {ARGUMENTS_BYTES}"
    return None


def too_many_annotations(annotations: Mapping[str, str]) -> str | None:
    """Why these annotations are more than is kept of a sandbox, or None."""
    size = _sent(text for pair in annotations.items() for text in pair)
    return None if size <= ANNOTATIONS_BYTES else f"takes {size} bytes in all; a sandbox can have {ANNOTATIONS_BYTES}"


def too_long_path(path: str) -> str | None:
    """Why no directory has such a path, or None."""
    if not _exceeds(len(path), PATH_BYTES) or (size := _bytes(path)) <= PATH_BYTES:
        return None
    return f"has {size} bytes; the kernel takes at most {PATH_BYTES} of a path"


def _exceeds(characters: int, most: int) -> bool:
    """Whether so many characters may be more bytes than that."""
    return characters * 4 > most


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _sent(texts: Iterable[str]) -> int:
    """Bytes of texts as they travel: in JSON, where control characters take six."""
    texts = list(texts)
    characters = sum(map(len, texts))
    if characters * _MOST_A_CHARACTER <= ANNOTATIONS_BYTES:
        return characters  # It is small in any case.
    import json  # Few have so much: whoever imports the package does without it.

    return sum(_bytes(json.dumps(text, ensure_ascii=False)) - 2 for text in texts)
