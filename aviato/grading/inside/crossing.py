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


def call_of(module: str, name: str, values: Any, handle: Any = None, gives_back: bool = False) -> bytes:
    """The bytes of a call.

    Args:
        module: whose name it is.
        name: of what is called.
        values: the form of its arguments, `{"args": …, "kwargs": …}`.
        handle: the number of the object whose method it is.
        gives_back: whether it is to be told what becomes of its arguments.
    """
    request = {"op": "call", "module": module, "name": name, "handle": handle, "values": values}
    return as_bytes({**request, "gives_back": True} if gives_back else request)


def use_of(verb: str, values: Any, handle: int) -> bytes:
    """The bytes of another use of an object: a special method, or one of `uses.USES`; arguments as of `call_of`."""
    return as_bytes({"op": "use", "name": verb, "handle": handle, "values": values})
