"""What a request says, as it is sent."""

from __future__ import annotations

import json
from typing import Any

_encode_json = json.JSONEncoder(separators=(",", ":")).encode


def as_json(value: dict[str, Any]) -> bytes:
    """A payload."""
    return _encode_json(value).encode()
