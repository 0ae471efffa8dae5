"""The containers among the arguments of a call, and what has become of them. Follows `packing.py`; sent along with both ends.

Both ends number them alike, as they meet them in the arguments. What a call has done to them comes back as what each contains
then; one that is in another, or in itself, comes as its number.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.packing import DEEPEST, pack, unpack

HELD = "m"
"""The tag of the form of one that is known by its number."""


def containers_of(value: Any, crosses_as: Callable[[Any], Any] = type, depth: int = 0) -> list[Any]:
    """All that can change of plain data.

    Args:
        value: in which they are.
        crosses_as: the class that a value has at the other end.
        depth: at which it is.
    """
    kind = crosses_as(value)
    if kind is bytearray or kind is set:
        return [value]
    if kind not in (list, tuple, dict) or depth > 2 * DEEPEST:
        return []
    found = [] if kind is tuple else [value]
    for item in value.values() if kind is dict else value:
        found += containers_of(item, crosses_as, depth + 1)
    return found


def contents_of(container: Any) -> tuple[Any, Any]:
    """By which it is told whether it was changed, and what has to live until then."""
    if type(container) is bytearray:
        return bytes(container), None
    items = [*container, *(container.values() if type(container) is dict else ())]
    return [*map(id, items)], items


def changes_of(containers: list[Any], before: list[Any], refer: Callable[[Any], Any]) -> list[Any]:
    """The numbers of those that were changed, each with the form of what it contains now."""
    known = {id(each): number for number, each in enumerate(containers)}
    changed = [number for number, each in enumerate(containers) if contents_of(each)[0] != before[number][0]]
    return [[number, form_of_contents(containers[number], known, refer, 0)] for number in changed]


def form_of_contents(value: Any, known: dict[int, int], refer: Callable[[Any], Any], depth: int) -> Any:
    if depth > DEEPEST:
        raise ValueError("a value is nested more than %d deep" % DEEPEST)

    def form(item: Any) -> Any:
        number = known.get(id(item))
        if number is not None:
            return [HELD, number]
        if type(item) in (list, tuple, dict):
            return form_of_contents(item, known, refer, depth + 1)
        return pack(item, refer, depth + 1, True)

    if type(value) is dict:
        return ["d", *[[pack(key, refer, depth + 1, True), form(item)] for key, item in value.items()]]
    if type(value) in (list, tuple):
        return ["l" if type(value) is list else "t", *map(form, value)]
    return pack(value, refer, depth, True)


def give_back(containers: list[Any], changes: Any, resolve: Callable[[list[Any]], Any]) -> None:
    """Have them contain what they contain at the other end.

    Raises:
        ValueError: what came says no such thing.
    """

    def held(form: list[Any]) -> Any:
        return containers[form[1]] if form[0] == HELD and type(form[1]) is int else resolve(form)

    new = [(containers[number], unpack(form, held)) for number, form in changes]
    if any(not isinstance(one, type(other)) for one, other in new):
        raise ValueError("another kind of container")
    for container, contents in new:
        container.clear()
        (container.extend if isinstance(container, (list, bytearray)) else container.update)(contents)
