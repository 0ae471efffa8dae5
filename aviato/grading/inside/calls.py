"""Runs in a sandbox: finds the function that a case calls, and says what it gave. Follows `packing.py`."""

from __future__ import annotations

from _json import encode_basestring_ascii as quote  # before any foreign code can put another in its place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.packing import no_data, pack, refused, unpack


def found(namespace: dict[str, Any], before: dict[str, Any], objects: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function of a name: a method of the code's class `Solution`, else a function; of a dotted name, of that class.

    Args:
        namespace: of the code.
        before: the names that were there before it ran, such as those of a prelude.
        objects: those of its classes that were made; there is one of each for all cases of a process.
        name: of the function.
    """
    owner, _, method = name.rpartition(".")
    solution = namespace.get("Solution")
    if not owner and isinstance(solution, type) and hasattr(solution, name) and before.get("Solution") is not solution:
        owner = "Solution"
    if not owner:
        if name in namespace and (name not in before or before[name] is not namespace[name]):
            function: Callable[..., Any] = namespace[name]
            return function
        raise NameError("the code defines neither %s() nor a class Solution with it" % name)
    if owner not in objects:
        objects[owner] = namespace[owner]()
    method_found: Callable[..., Any] = getattr(objects[owner], method or name)
    return method_found


def given(form: Any) -> Any:
    """Arguments of their form."""
    return unpack(form, refused)


def as_json(value: Any) -> str:
    """JSON of the form of a value, without the module of that name: importing it takes as long as many a call."""
    return written(pack(value, no_data))


def written(form: Any) -> str:
    if isinstance(form, str):
        return quote(form)
    if isinstance(form, list):
        return "[" + ",".join([written(item) for item in form]) + "]"
    if form is None or form is True or form is False:
        return {None: "null", True: "true", False: "false"}[form]
    if isinstance(form, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text := float.__repr__(form), text)
    return int.__repr__(form)
