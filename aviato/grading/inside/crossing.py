"""Requests and answers as bytes. Follows `packing.py`; sent along with what stands for the solution.

What goes to the solution is of a grader's making, and can be read without an import. What comes from it is JSON: of what a
hostile process writes nothing else is read.
"""

from __future__ import annotations

import json
import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

from_json, marshalled = json.loads, marshal.dumps  # taken before any foreign code can put others in their place


def as_bytes(request: Any) -> bytes:
    """The bytes of a request."""
    return marshalled(request, 2)
