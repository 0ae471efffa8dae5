"""What a request says, as it is sent."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json


def as_json(value: dict[str, Any]) -> bytes:
    """A payload."""
    return to_json(value)
