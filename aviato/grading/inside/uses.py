"""Runs in the solution's sandbox: objects that are no data stay here, and are used from afar.

Follows `calls.py` and `tasks.py`.
An object crosses as `["h", number, facts]`; see `Kept.facts`. What can be done with it is what its class can.
"""

from __future__ import annotations

import time
from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.calls import written
    from aviato.grading.inside.kinds import SLOTS, is_small, parts_of
    from aviato.grading.inside.packing import form_of_number, pack, plain_of
    from aviato.grading.inside.tasks import Tasks, next_of

BASES = (int, str, float, tuple, bytes, frozenset)
"""Data that does not change: who has the object has it too."""
CHANGING = (list, dict, set, bytearray)
MOST_AHEAD = 512
AHEAD_SECONDS = 0.005
"""So long items are taken before one is asked for."""


class Kept:
    """Objects that somebody elsewhere has."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.types: list[type] = []
        self.able: list[list[int]] = []
        self.errors: dict[int, BaseException] = {}
        self.tasks: Any = None
        self.lock = RLock()

    def answer(self, value: Any) -> bytes:
        """The answer with a value in it."""
        return b'{"value":%b}' % written(pack(value, self.refer, 0, True)).encode("ascii")

    def refer(self, value: Any) -> Any:
        """The form of what is no plain data."""
        number = form_of_number(value)
        if number is not None:
            return number
        parts = parts_of(value) if is_small(value) else None
        if parts is not None:
            return ["k", *[pack(part, self.refer, 1, True) for part in parts]]
        plain = plain_of(value)
        if plain is not None:
            return pack(plain, self.refer, 1, True)
        with self.lock:
            at = self.numbers.get(id(value))
            if at is None:
                at = self.numbers[id(value)] = len(self.objects)
                self.objects.append(value)
            return ["h", at, self.facts(value)]

    def facts(self, value: Any) -> list[Any]:
        """What is told of an object: its class's number and name, what it can do, the built-in class that it is derived from.

        Then the data that it is, if that does not change; and whether it is data at all.
        """
        kind = type(value)
        at = next((number for number, each in enumerate(self.types) if each is kind), len(self.types))
        if at == len(self.types):
            has: dict[str, Any] = {}
            for each in reversed(kind.__mro__[:-1]):
                has.update(vars(each))
            self.types.append(kind)
            self.able.append([number for number, name in enumerate(SLOTS) if has.get(name) is not None])
        base = next((each.__name__ for each in kind.__mro__ if each.__module__ == "builtins"), "object")
        fixed = next((each for each in BASES if isinstance(value, each)), None)
        data = None if fixed is None else pack(fixed(value) if fixed in (tuple, frozenset) else value, self.refer, 1)
        hashes, plain = getattr(kind, "__hash__", None), object
        equal = (getattr(kind, "__eq__", None) is not plain.__eq__) + 2 * (hashes is None) + 4 * (hashes is not plain.__hash__)
        changes = isinstance(value, (*CHANGING, range)) or hasattr(kind, "__index__") or hasattr(kind, "__float__")
        return [at, kind.__name__, self.able[at], base, equal, changes, fixed and fixed.__name__, data]

    def use(self, at: int, verb: str, args: Any, kwargs: Any) -> bytes:
        """The answer to what is done with an object."""
        value = self.objects[at]
        if verb in USES:
            answer: bytes = USES[verb](self, value, *args)
            return answer
        return self.answer(getattr(type(value), verb)(value, *args, **kwargs))

    def attribute(self, value: Any, name: str) -> bytes:
        """An attribute; of a method that its class has, only that it is one."""
        found = getattr(value, name)
        if getattr(found, "__self__", None) is value and callable(getattr(type(value), name, None)):
            return b'{"method":true}'
        return self.answer(found)

    def data(self, value: Any) -> bytes:
        """The data that an object is."""
        if isinstance(value, range):
            form = pack((value.start, value.stop, value.step), self.refer)  # However long it is.
        elif isinstance(value, CHANGING):
            form = pack(value, self.refer, 1)
        else:
            form = pack(int(type(value).__index__(value)) if hasattr(type(value), "__index__") else float(value), self.refer)
        return b'{"value":%b}' % written(form).encode("ascii")

    def take(self, value: Any, most: int) -> bytes:
        """The next items of an iterator, and whether it has ended."""
        kept = self.errors.pop(id(value), None)
        if kept is not None:
            raise kept
        found: list[Any] = []
        until = time.monotonic() + AHEAD_SECONDS
        following = type(value).__next__
        try:
            while len(found) < min(most, MOST_AHEAD) and (not found or time.monotonic() < until):
                found.append(following(value))
        except StopIteration as end:
            return self.answer([found, [end.value]])
        except BaseException as error:
            if not found:
                raise
            self.errors[id(value)] = error
        return self.answer([found, None])

    def in_loop(self) -> Any:
        """What is awaited."""
        if self.tasks is None:
            self.tasks = Tasks()
        return self.tasks

    def begin(self, value: Any, verb: str, *args: Any) -> bytes:
        """Begin with something that is awaited."""
        return self.answer(self.in_loop().begin(AWAITED[verb](value, *args)))

    def ended(self, value: Any, numbers: list[int]) -> bytes:
        """Which have ended of those that were begun."""
        return self.answer(self.in_loop().ended(numbers))

    def came(self, value: Any, number: int) -> bytes:
        """What has come of one."""
        return self.answer(self.in_loop().came(number))

    def cancel(self, value: Any, number: int) -> bytes:
        """Have one end."""
        return self.answer(self.in_loop().cancel(number))

    def leave(self, value: Any, kind: Any, text: Any) -> bytes:
        """Leave a context, with an exception of that kind if there is one."""
        error = kind and kind(text)
        return self.answer(type(value).__exit__(value, kind, error, None))

    def set(self, value: Any, name: str, new: Any) -> bytes:
        """Set an attribute."""
        setattr(value, name, new)
        return self.answer(None)

    def delete(self, value: Any, name: str) -> bytes:
        """Delete one."""
        delattr(value, name)
        return self.answer(None)

    def copy(self, value: Any) -> bytes:
        """Another one like it."""
        import copy

        return self.answer(copy.copy(value))

    def deepcopy(self, value: Any) -> bytes:
        """Another one like it, all that it has included."""
        import copy

        return self.answer(copy.deepcopy(value))

    def equal(self, value: Any, other: Any) -> bytes:
        """Whether it says that it is equal to another object from here."""
        return self.answer(bool(value == other))


AWAITED: dict[str, Any] = {
    "__await__": lambda value: value,
    "__anext__": next_of,
    "__aenter__": lambda value: type(value).__aenter__(value),
    "__aexit__": lambda value, kind, text: type(value).__aexit__(value, kind, kind and kind(text), None),
}
"""What is done with an object → what is awaited for that."""


def waited(verb: str) -> Any:
    """What comes of it, where nothing else goes on."""
    return lambda kept, value, *args: kept.answer(kept.in_loop().run(AWAITED[verb](value, *args)))


USES: dict[str, Any] = {
    **{verb: waited(verb) for verb in AWAITED},
    "begin": Kept.begin,
    "ended": Kept.ended,
    "came": Kept.came,
    "cancel": Kept.cancel,
    "get": Kept.attribute,
    "set": Kept.set,
    "delete": Kept.delete,
    "data": Kept.data,
    "equal": Kept.equal,
    "copy": Kept.copy,
    "deepcopy": Kept.deepcopy,
    "__next__": Kept.take,
    "__exit__": Kept.leave,
    "__str__": lambda kept, value: kept.answer(str(value)),
    "__repr__": lambda kept, value: kept.answer(repr(value)),
    "__format__": lambda kept, value, how: kept.answer(format(value, how)),
    "__hash__": lambda kept, value: kept.answer(hash(value)),
}
