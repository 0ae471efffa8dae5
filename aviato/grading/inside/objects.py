"""What stands for an object of the solution in the grader's process: each use of it is one of the object.

Follows `standin.py` and `awaiting.py`. What a use gives is data, or another object. An object is asked nothing about a value
of the test: whether it equals one, what is left when one is subtracted, whether it has one in it. It could say what the test
expects. Such is reckoned here, with the data that it is or gives; where it is none, it equals no value of the test.
"""

from __future__ import annotations

import builtins
import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.awaiting import RUNNING, Steps, awaited, close, send, throw
    from aviato.grading.inside.crossing import use_of
    from aviato.grading.inside.kinds import SLOTS, taken
    from aviato.grading.inside.packing import pack, refused, unpack
    from aviato.grading.inside.raised import SolutionFailed, shown
    from aviato.grading.inside.standin import TIMES_ASKED, Remote, answer_to, connection, refer_chosen, value_of

MOST_AHEAD = 512
ONE_BY_ONE = 8
"""Items of an iterator that are asked for one by one; of what goes on, more and more at a time."""
MOST_CLASSES = 1000
LARGEST_TOTAL_BYTES = 64 << 20
ITEM_BYTES = 64
"""Of all that uses of objects give to a process, each item counted as at least so many."""
SHOWN = frozenset(("__name__", "__qualname__", "__doc__", "__dict__"))
OPERATIONS: dict[str, Any] = {"__divmod__": divmod, "__rdivmod__": lambda value, other: divmod(other, value)}
for _name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "matmul"]:
    _made = pow if _name == "pow" else getattr(operator, "__%s__" % _name)
    OPERATIONS["__%s__" % _name] = _made
    OPERATIONS["__r%s__" % _name] = lambda value, other, _made=_made: _made(other, value)
ORDERS = frozenset(("__lt__", "__le__", "__gt__", "__ge__"))
_NUMBERS = "bool int float index complex abs neg pos invert round trunc floor ceil len contains"
NUMBERS = frozenset("__%s__" % name for name in _NUMBERS.split(" "))
"""What would say of an object that was reckoned from a value of the test how far that was right."""
ITEMS = ("__iter__", "__next__", "__getitem__", "__reversed__")
"""What would say it of one that was reckoned from a list, a set or a dict of the test."""
TEXTS = ("__str__", "__repr__", "__format__")
_ITERATORS = "generator map filter zip enumerate reversed list_iterator tuple_iterator str_iterator range_iterator"
ITERATORS = frozenset(_ITERATORS.split(" "))
"""Classes whose iterators are themselves."""
FIXED = {each.__name__: each for each in (int, str, float, tuple, bytes, frozenset)}
IN_LOOP = frozenset(("__await__", "__anext__", "__aenter__", "__aexit__", "begin", "ended", "came", "cancel"))
METHOD = object()
OBJECTS: Any = None
CLASSES: dict[Any, type] = {}
METHODS: set[tuple[int, str]] = set()
EQUAL: dict[tuple[int, int], bool] = {}
SPENT = [0]
SINCE = [0]
DATA_OF: dict[int, Any] = {}
"""What objects have said to be, by their numbers: they say it once, as long as nothing else is asked."""
DATA_AT = [0]
"""What `TIMES_ASKED` was then."""
"""Which process of the solution it is."""
ASKED = [0]
"""Uses other than of iterators: what is taken ahead between them would not see what they change."""


def object_of(form: Any) -> Any:
    """What stands for an object of that form, as `uses.Kept.refer` gives it."""
    global OBJECTS
    if OBJECTS is None:
        import weakref

        OBJECTS = weakref.WeakValueDictionary()
    _, number, facts = form
    kind, name, able, base, equal, changes, fixed, data = facts
    if not all(type(each) is int for each in (number, kind, equal, *able)) or not all(
        type(each) is str for each in (name, base)
    ):
        raise ValueError("an unknown form")
    found = OBJECTS.get(number)
    if found is None:
        key = (kind, name, tuple(able), base, equal, fixed)
        if key not in CLASSES:
            if len(CLASSES) >= MOST_CLASSES:
                raise ValueError("objects of more than %d classes" % MOST_CLASSES)
            CLASSES[key] = class_of_facts(name, [SLOTS[each] for each in able], base, equal, fixed)
        value = None if fixed is None else unpack(data, resolve)
        if fixed is not None and type(value) is not FIXED[fixed]:
            raise ValueError("an object that is other data than it says")
        found = made(CLASSES[key], number, kind, bool(changes), None if fixed is None else (value,))
    return found


def made(cls: Any, number: int, kind: int, changes: bool, data: Any) -> Any:
    found = cls.__new__(cls) if data is None else cls.__new__(cls, *data)
    object.__setattr__(found, "_aviato", (number, kind, changes, SINCE[0]))
    if data is None:
        object.__setattr__(found, "_aviato_ahead", [[], None, 1, 0])
        OBJECTS[number] = found
    return found


def class_of_facts(name: str, able: list[str], base: str, equal: int, fixed: Any) -> type:
    """A class that can do what the object's class can."""
    inner: dict[str, Any] = {"__getattr__": get, "__setattr__": set_, "__delattr__": delete}
    inner.update({each: said(each, str) for each in ("__str__", "__repr__", "__format__")})
    if fixed is not None:
        # It has all that data has, and the attributes of the object's class.
        return type(str(name), (FIXED[fixed],), {**inner, "_aviato_ahead": True})
    named = TYPES.get(base) or vars(builtins).get(base)
    if isinstance(named, type) and named is not object:
        inner["__class__"] = property(lambda self: named)
    inner["_aviato_base"] = base
    inner["__slots__"] = ("_aviato", "_aviato_ahead", "__weakref__")
    inner["__eq__"], inner["__ne__"] = equals, differs_from
    inner["__hash__"] = None if equal & 2 else (said("__hash__", int) if equal & 4 and equal & 1 else numbered)
    for each in able:
        if each in OPERATIONS:
            inner[each] = reckoned(each)
        elif each in ORDERS:
            inner[each] = ordered(each)
        elif each in OWN:
            inner[each] = OWN[each]
        elif each == "__contains__":
            if "__iter__" not in able and "__getitem__" not in able:
                inner[each] = not_in
            elif base in ("list", "dict", "set", "range", "bytearray"):
                inner[each] = lambda self, value: value in data_of(self)
        else:
            inner[each] = used(each)
    if "__await__" in able:
        inner.update(send=send, throw=throw, close=close)
    inner["__copy__"] = lambda self: ask(self, "copy")
    inner["__deepcopy__"] = lambda self, memo: ask(self, "deepcopy")
    inner["__reduce_ex__"] = as_bytes_elsewhere
    return type(str(name), (), inner)


def as_bytes_elsewhere(self: Any, protocol: int) -> Any:
    # It was the solution that gave one: where it has none the test would fail, or pass.
    raise SolutionFailed("the code gave an object of %s where the test pickles a value" % type(self).__name__)


# -- asking


def number_of(value: Any) -> Any:
    """The number of an object.

    Raises:
        SolutionFailed: the process that had it is gone.
    """
    connection()
    number, _, _, since = object.__getattribute__(value, "_aviato")
    if since != SINCE[0]:
        raise SolutionFailed("the solution's process that had this object is not this one's")
    return number


def forget() -> None:
    """There is another process of the solution."""
    SINCE[0] += 1
    SPENT[0] = 0
    for each in (CLASSES, METHODS, EQUAL, OBJECTS, RUNNING, DATA_OF):
        if each is not None:
            each.clear()


def is_object(value: Any) -> bool:
    """Whether it stands for an object."""
    return hasattr(type(value), "_aviato_ahead")


def ask(self: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
    """What a use gives; of a method, how it is told."""
    if verb != "__next__":
        ASKED[0] += 1
    values = pack({"args": args, "kwargs": kwargs}, refer_chosen, 0, True)
    found = answer_to(use_of(verb, values, number_of(self)), spend, in_loop=verb in IN_LOOP)
    return METHOD if found.get("method") is True else value_of(found)


def spend(size: int) -> None:
    """Take so much; nobody fills a grader that others are in.

    Raises:
        SolutionFailed: it is too much.
    """
    SPENT[0] += size
    if SPENT[0] > LARGEST_TOTAL_BYTES:
        raise SolutionFailed("the code's objects and iterators have given more than %d bytes" % LARGEST_TOTAL_BYTES)


def get(self: Any, name: str) -> Any:
    if name.startswith("__") and name not in SHOWN:
        raise AttributeError(name)  # what test frameworks look for in whatever they meet
    kind = object.__getattribute__(self, "_aviato")[1]
    if (kind, name) not in METHODS:
        found = ask(self, "get", name)
        if found is not METHOD:
            return found
        METHODS.add((kind, name))
    return Remote("", name, self)


def set_(self: Any, name: str, value: Any) -> None:
    ask(self, "set", name, value)


def delete(self: Any, name: str) -> None:
    ask(self, "delete", name)


def used(verb: str) -> Any:
    def use(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ask(self, verb, *args, **kwargs)

    return use


def said(verb: str, kind: type) -> Any:
    def say(self: Any, *args: Any) -> Any:
        found = ask(self, verb, *args)
        if type(found) is not kind:
            raise SolutionFailed("%s gave no %s" % (verb, kind.__name__))
        return found

    return say


def numbered(self: Any) -> int:
    return hash(("aviato", number_of(self)))


# -- a value of the test


def data_of(self: Any) -> Any:
    """The data that an object is.

    Raises:
        SolutionFailed: it is none.
    """
    if not object.__getattribute__(self, "_aviato")[2]:
        raise SolutionFailed("the code gave an object of %s where the test has a value" % type(self).__name__)
    number, asked = number_of(self), TIMES_ASKED[0]
    if DATA_AT[0] != asked:
        DATA_OF.clear()
        DATA_AT[0] = asked
    if number not in DATA_OF:
        DATA_OF[number] = ask(self, "data")
        TIMES_ASKED[0] = asked
    found = DATA_OF[number]
    # A range may be of any length here, where it is compared and not looked through.
    return range(*found) if type(self)._aviato_base == "range" and type(found) is tuple else found


def equals(self: Any, other: Any) -> Any:
    if self is other:
        return True
    if is_object(other):
        # Both are the code's. It is told neither whether they should be equal, nor asked twice.
        pair = tuple(sorted((number_of(self), number_of(other))))
        if pair not in EQUAL:
            EQUAL[pair] = ask(self, "equal", other) is True
        return EQUAL[pair]
    if object.__getattribute__(self, "_aviato")[2]:
        return data_of(self) == other
    return False


def differs_from(self: Any, other: Any) -> bool:
    return not equals(self, other)


def ordered(verb: str) -> Any:
    def order(self: Any, other: Any) -> Any:
        return ask(self, verb, other) if is_object(other) else getattr(operator, verb)(data_of(self), other)

    return order


def reckoned(verb: str) -> Any:
    def reckon(self: Any, other: Any, *more: Any) -> Any:
        if is_object(other):
            return ask(self, verb, other, *more)
        if object.__getattribute__(self, "_aviato")[2]:
            return OPERATIONS[verb](data_of(self), other, *more)
        found = ask(self, verb, other, *more)
        if found is NotImplemented:
            return found
        if type(found).__name__ in FIXED or not is_object(found):
            raise SolutionFailed("the code gave an object of %s where the test reckons with a value" % type(self).__name__)
        number, kind, _, _ = object.__getattribute__(found, "_aviato")
        cls = type(found)
        blind = {each: unsaid for each in NUMBERS if hasattr(cls, each)}
        if hasattr(type(other), "__iter__") and not isinstance(other, str):
            blind.update({each: unsaid for each in (*ITEMS, *TEXTS) if hasattr(cls, each)})
        else:
            blind.update({each: worded(each) for each in TEXTS})
        return made(type(cls.__name__, (cls,), {"__slots__": (), **blind}), number, kind, False, None)

    return reckon


def unsaid(self: Any, *args: Any) -> Any:
    raise SolutionFailed("the code gave an object of %s where the test reckons with a value" % type(self).__name__)


def worded(verb: str) -> Any:
    say = said(verb, str)

    def word(self: Any, *args: Any) -> Any:
        text = say(self, *args)
        return unsaid(self) if is_number(text) else text

    return word


def is_number(text: str) -> bool:
    """Whether a text reads as a number does."""
    try:
        complex(text.strip().lstrip("$€£").rstrip("%").replace(",", ""))
    except ValueError:
        return False
    return True


def not_in(self: Any, value: Any) -> bool:
    raise SolutionFailed(
        "the code gave an object of %s, which has no items, where the test looks for one" % type(self).__name__
    )


# -- iterators, contexts, what is awaited


def same(self: Any) -> Any:
    return self


def following(self: Any) -> Any:
    """The next item. Some are taken ahead where nothing else is asked meanwhile."""
    ahead = object.__getattribute__(self, "_aviato_ahead")
    items, end, size, asked = ahead
    if not items:
        if end is not None:
            raise StopIteration(*[each for each in end if each is not None])
        size = 1 if asked != ASKED[0] else size + 1
        more, end = ask(self, "__next__", 1 if size <= ONE_BY_ONE else min(2 ** (size - ONE_BY_ONE), MOST_AHEAD))
        spend(ITEM_BYTES * len(more))
        items = more[::-1]
        ahead[:] = [items, end, size, ASKED[0]]
        if not items:
            if end is None:
                raise SolutionFailed("an iterator gave nothing")
            ahead[1] = []
            raise StopIteration(*[each for each in end if each is not None])
    return items.pop()


async def following_later(self: Any) -> Any:
    items, _ = await Steps(self, "__anext__")
    if not items:
        raise StopAsyncIteration
    return items[0]


def iterated(self: Any) -> Any:
    found = self if type(self)._aviato_base in ITERATORS else ask(self, "__iter__")
    if found is self and type(self)._aviato_base not in ITERATORS and hasattr(type(self), "__next__"):
        object.__getattribute__(self, "_aviato_ahead")[:] = [[], None, 1, 0]  # It may begin anew.
    return found


def leave(self: Any, kind: Any = None, error: Any = None, trace: Any = None) -> bool:
    """Leave a context. What the test has raised goes on: a context that could hold it back could have any test pass."""
    ask(self, "__exit__", *told_of(error))
    return False


async def leave_later(self: Any, kind: Any = None, error: Any = None, trace: Any = None) -> bool:
    await Steps(self, "__aexit__", *told_of(error))
    return False


async def enter_later(self: Any) -> Any:
    return await Steps(self, "__aenter__")


def told_of(error: Any) -> tuple[Any, str]:
    """The built-in class of an exception, and its text."""
    kinds = [each for each in type(error).__mro__ if vars(builtins).get(each.__name__) is each and each is not object]
    return (kinds[0], shown(str(error))) if error is not None and kinds else (None, "")


OWN: dict[str, Callable[..., Any]] = {
    "__next__": following,
    "__iter__": iterated,
    "__anext__": following_later,
    "__aiter__": same,
    "__exit__": leave,
    "__aexit__": leave_later,
    "__aenter__": enter_later,
    "__await__": awaited,
}


def types() -> dict[str, type]:
    async def coroutine() -> None:
        pass

    async def asynchronous() -> Any:
        yield

    unawaited = coroutine()
    unawaited.close()
    each = (unawaited, asynchronous(), (_ for _ in ()), types, len, type(types))
    return {type(one).__name__: type(one) for one in each}


TYPES = types()


def resolve(form: list[Any]) -> Any:
    """What the solution's forms are that are no plain data."""
    if form[0] == "h":
        return object_of(form)
    if form[0] == "k":
        return taken(form, resolve)
    return refused(form)
