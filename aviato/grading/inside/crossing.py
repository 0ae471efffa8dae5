"""Values as bytes between a grader and the solution. Follows `packing.py`; sent along with both ends."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.packing import pack, unpack

to_json, from_json = json.dumps, json.loads  # taken before any foreign code can put others in their place


def dumps(value: Any, refer: Callable[[Any], Any]) -> bytes:
    """The bytes of a value; what is no data is for `refer`, which gives its form or raises."""
    return to_json(pack(value, refer)).encode("ascii")


def loads(text: bytes, resolve: Callable[[list[Any]], Any]) -> Any:
    """The value; forms that are no data are for `resolve`."""
    return unpack(from_json(text.decode("ascii")), resolve)
