"""What callers give where images are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.defaults import reference_from_here
from aviato.exceptions import AviatoValidationError
from aviato.values.text import is_unicode
from aviato.wire.bounds import IMAGE_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterable


def image_reference(value: str, parameter: str = "reference") -> str:
    """A reference that a server can be asked for.

    Raises:
        TypeError, AviatoValidationError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{parameter} must be a str such as 'docker.io/library/python:3.12', not {type(value).__name__}")
    if not value or "\0" in value or len(value) > IMAGE_CHARACTERS or not is_unicode(value):
        shown = ascii(value[:100])
        raise AviatoValidationError(f"{parameter} must be 1 to {IMAGE_CHARACTERS} characters of text without NUL, got {shown}")
    return reference_from_here(value)


def image_name(value: str) -> str:
    """A name that an image can be given.

    Raises:
        TypeError, AviatoValidationError: it is none, or means something else whatever is called so.
    """
    from aviato.wire.images import TAKEN, is_taken

    name = image_reference(value, "name")
    if is_taken(name):
        raise AviatoValidationError(f"{name!a} is no name for an image: {TAKEN}", field_violations={"name": "taken"})
    return name


def image_references(values: Iterable[str]) -> list[str]:
    """References that a server can be asked for, each once, in their order.

    Raises:
        TypeError, AviatoValidationError: something is none.
    """
    if isinstance(values, (str, bytes)):
        raise TypeError(f"images must be several references, such as [{values!r}], not {type(values).__name__}")
    return list(dict.fromkeys(image_reference(value, "images") for value in values))
