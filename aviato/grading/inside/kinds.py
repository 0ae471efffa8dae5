"""Values of the standard library that cross as data: what they are made of, and that again. Follows `packing.py`.

They are told by name, so that nothing need be imported to find that a value is none of them. A class that only has such a name
is of no use to who made it: what comes of it is what the standard library makes of its parts.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

if TYPE_CHECKING or __name__.startswith("aviato."):
    from aviato.grading.inside.packing import check_hashes, unpack

LONGEST_RANGE = 10000
"""Items of one that crosses: who makes a list of it makes no more of them."""
LONGEST_KEY = 100
"""Of a zone."""
LARGEST_ARRAY_BYTES = 1 << 20
"""Of one that crosses; it has no longer side either."""
_SLOTS = (
    "call iter next len getitem setitem delitem contains bool int float index complex abs neg pos invert round trunc floor",
    "ceil enter exit aenter aexit aiter anext await reversed lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv",
    "rfloordiv mod rmod pow rpow and rand or ror xor rxor lshift rshift matmul rmatmul divmod rdivmod",
)
SLOTS = tuple("__%s__" % name for line in _SLOTS for name in line.split(" "))
"""What the class of an object may be able to do, beside what every one can."""
PLAIN_ARRAYS = "biufcSU"
"""Kinds of numpy's types without objects in them."""


def parts_of(value: Any) -> list[Any] | None:
    """The name of a value's kind and what it is made of; None where it is of no kind that is known."""
    kind = type(value)
    name = "%s.%s" % (kind.__module__, kind.__name__)
    take = PARTS.get(name)
    if take is None:
        return None
    parts = take(value)
    return None if parts is None else [name, *parts]


def is_like_answers(value: Any) -> bool:
    """Whether a value that does not cross is of a kind that does: then it may be what was made of an answer.

    Arrays are none of these: tests make such of objects, too.
    """
    kind = type(value)
    name = "%s.%s" % (kind.__module__, kind.__name__)
    if name in ("fractions.Fraction", "decimal.Decimal"):
        return True
    if kind.__module__ == "numpy":
        return getattr(value, "shape", None) == () and hasattr(value, "dtype")
    return name in PARTS and kind is not type


def made_of_parts(form: list[Any], resolve: Callable[[list[Any]], Any]) -> Any:
    """The value of a form `["k", name, *parts]`.

    Raises:
        ValueError, TypeError, KeyError, ImportError: it is none.
    """
    name, parts = form[1], [unpack(part, resolve) for part in form[2:]]
    module, _, kind = name.rpartition(".")
    if name not in PARTS:
        raise ValueError("an unknown kind")
    if name in MADE:
        return MADE[name](*parts)
    return getattr(__import__(module, fromlist=[kind]), kind)(*parts)


def taken(form: list[Any], resolve: Callable[[list[Any]], Any]) -> Any:
    """As `made_of_parts`, of a form that hostile code may have written: nothing comes that an honest host would not give.

    It is small, and can be given back: no test asks for what cannot cross because of what the solution has answered.

    Raises:
        ValueError: it is no such value; and as `made_of_parts`.
    """
    value = made_of_parts(form, resolve)
    if not is_small(value) or parts_of(value) is None:
        raise ValueError("a %s that does not cross" % type(value).__name__)
    return value


def is_small(value: Any) -> bool:
    """Whether a value of a kind that is known has not much more in it than its form would have."""
    if type(value) is range:
        try:
            return len(value) <= LONGEST_RANGE
        except OverflowError:
            return False
    if (type(value).__module__, type(value).__name__) == ("numpy", "ndarray"):
        return bool(max(value.nbytes, *value.shape, 0) <= LARGEST_ARRAY_BYTES)
    return True


def _moment(value: Any) -> list[Any]:
    parts = [value.hour, value.minute, value.second, value.microsecond]
    return [*parts, _zone_of(value.tzinfo, value.utcoffset()), value.fold]


def _zone_of(zone: Any, offset: Any) -> Any:
    """What a zone is made of: the key of one of `zoneinfo`, or an offset, with a name where it has one."""
    kind = type(zone)
    if (kind.__module__, kind.__name__) == ("zoneinfo", "ZoneInfo") and type(zone.key) is str:
        return zone.key
    seconds = None if offset is None else offset.total_seconds()
    if (kind.__module__, kind.__name__) == ("datetime", "timezone") and len(zone.__getinitargs__()) == 2:
        return (seconds, zone.tzname(None))
    return seconds


def _zone(made_of: Any) -> Any:
    import datetime

    if type(made_of) is str:
        import zoneinfo

        return zoneinfo.ZoneInfo(made_of[:LONGEST_KEY])
    seconds, *name = made_of if type(made_of) is tuple else (made_of,)
    return None if seconds is None else datetime.timezone(datetime.timedelta(seconds=seconds), *name)


def _datetime(*parts: Any) -> Any:
    import datetime

    return datetime.datetime(*parts[:-2]).replace(tzinfo=_zone(parts[-2]), fold=parts[-1])


def _time(*parts: Any) -> Any:
    import datetime

    return datetime.time(*parts[:-2]).replace(tzinfo=_zone(parts[-2]), fold=parts[-1])


def _array(value: Any) -> list[Any] | None:
    if value.dtype.kind not in PLAIN_ARRAYS or value.dtype.names:
        return None
    return [value.dtype.str, tuple(value.shape), value.tobytes()]


def _made_array(kind: str, shape: tuple[int, ...], content: bytes) -> Any:
    import numpy

    if type(kind) is not str or kind.lstrip("<>|=")[:1] not in PLAIN_ARRAYS:
        raise ValueError("an array of another kind")
    return numpy.frombuffer(content, numpy.dtype(kind)).reshape(shape).copy()


def _listed(items: Any) -> Any:
    """Items that came one by one: a range has as many as it likes."""
    if type(items) is not list:
        raise ValueError("no list of items")
    return items


def _memory(content: Any) -> memoryview:
    if type(content) is not bytes:
        raise ValueError("no bytes")
    return memoryview(content)


def _deque(items: Any, most: Any) -> Any:
    import collections

    return collections.deque(_listed(items), most)


def _made_simple_array(kind: Any, items: Any) -> Any:
    import array

    return array.array(kind, _listed(items))


def _dict_of(pairs: Any) -> dict[Any, Any]:
    check_hashes([key for key, _ in _listed(pairs)])
    return dict(pairs)


def _counter(pairs: Any) -> Any:
    import collections

    found: Any = collections.Counter()
    dict.update(found, _dict_of(pairs))
    return found


def _default(factory: Any, pairs: Any) -> Any:
    import collections

    return collections.defaultdict(factory, _dict_of(pairs))


def _ordered(pairs: Any) -> Any:
    import collections

    return collections.OrderedDict(_dict_of(pairs))


def _class(value: type) -> list[Any] | None:
    return [value.__name__] if vars(builtins).get(value.__name__) is value else None


def _built_in(name: Any) -> Any:
    found = vars(builtins).get(name)
    if not isinstance(found, type):
        raise ValueError("no built-in class")
    return found


PARTS: dict[str, Callable[[Any], Any]] = {
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "builtins.slice": lambda value: [value.start, value.stop, value.step],
    "builtins.ellipsis": lambda value: [],
    "builtins.NotImplementedType": lambda value: [],
    "builtins.memoryview": lambda value: [value.tobytes()] if value.format == "B" and value.ndim == 1 else None,
    "builtins.dict_keys": lambda value: [list(value)],
    "builtins.dict_values": lambda value: [list(value)],
    "builtins.dict_items": lambda value: [list(value)],
    "builtins.odict_keys": lambda value: [list(value)],
    "builtins.odict_values": lambda value: [list(value)],
    "builtins.odict_items": lambda value: [list(value)],
    "builtins.type": _class,
    "collections.deque": lambda value: [list(value), value.maxlen],
    "collections.Counter": lambda value: [list(value.items())],
    "collections.OrderedDict": lambda value: [list(value.items())],
    "collections.defaultdict": lambda value: [value.default_factory, list(value.items())],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.datetime": lambda value: [value.year, value.month, value.day, *_moment(value)],
    "datetime.time": _moment,
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "datetime.timezone": lambda value: [_zone_of(value, value.utcoffset(None))],
    "zoneinfo.ZoneInfo": lambda value: [value.key] if type(value.key) is str else None,
    "uuid.UUID": lambda value: [value.hex],
    "pathlib.PosixPath": lambda value: [str(value)],
    "pathlib.PurePosixPath": lambda value: [str(value)],
    "array.array": lambda value: [value.typecode, list(value)],
    "numpy.ndarray": _array,
}
"""Module and class → what a value is made of."""
MADE: dict[str, Callable[..., Any]] = {
    "builtins.ellipsis": lambda: ...,
    "builtins.NotImplementedType": lambda: NotImplemented,
    "builtins.memoryview": _memory,
    "builtins.dict_keys": lambda keys: _dict_of([(key, None) for key in _listed(keys)]).keys(),
    "builtins.dict_values": lambda values: dict(enumerate(_listed(values))).values(),
    "builtins.dict_items": lambda pairs: _dict_of(pairs).items(),
    "builtins.odict_keys": lambda keys: _ordered([(key, None) for key in _listed(keys)]).keys(),
    "builtins.odict_values": lambda values: _ordered(list(enumerate(_listed(values)))).values(),
    "builtins.odict_items": lambda pairs: _ordered(pairs).items(),
    "builtins.type": _built_in,
    "array.array": _made_simple_array,
    "collections.Counter": _counter,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "collections.deque": _deque,
    "datetime.datetime": _datetime,
    "datetime.time": _time,
    "datetime.timezone": _zone,
    "zoneinfo.ZoneInfo": _zone,
    "numpy.ndarray": _made_array,
}
"""How a value is made, where it is not by its class."""
