"""What a request says, as it is sent."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from aviato.exceptions import AviatoValidationError


def as_json(value: dict[str, Any]) -> bytes:
    """A payload.

    Raises:
        AviatoValidationError: there is text in it that is no Unicode, so that no program could be given it.
    """
    try:
        return to_json(value)
    except PydanticSerializationError as error:
        raise AviatoValidationError(f"what is asked for holds text that is no Unicode: {error}") from None
