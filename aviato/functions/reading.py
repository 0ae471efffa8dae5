"""Reading a pickle that untrusted code wrote: data only, built by this module and never by what the pickle names.

The standard unpickler calls what a stream tells it to, grows its memo to any index that a stream names, and builds values so
deep that hashing them overflows the C stack. This one knows the few opcodes that data needs, and its names are keys of a
table. A result that refers to itself is refused; so is one that would be much larger when walked than when read.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pickle
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_STEPS = 10_000_000
MOST_WALKED = 20_000_000
MOST_DEPTH = 400
MOST_COLLISIONS = 64
MOST_DIGITS = 100_000


class Refused(Exception):
    """The stream is not plain data."""


class _Name:
    """A name of the table, on the stack until it is called."""

    def __init__(self, build: Callable[..., Any]) -> None:
        self.build = build


_ATOMS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, decimal.Decimal}
    | {datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone}
)
_SAFE_KEYS = frozenset({type(None), bool, float, str, bytes, datetime.date, datetime.time, datetime.datetime})
"""Keys whose hashes a stream cannot choose freely."""


def loads(data: bytes, result_types: Mapping[tuple[str, str], type]) -> Any:
    """The value that a stream describes.

    Args:
        data: a pickle of protocol 4 or 5.
        result_types: the dataclasses and enums that may be in it, by module and qualified name.

    Raises:
        Refused: it is anything but that; nothing it names was imported or called.
    """
    try:
        return _Reader(data, result_types).read()
    except Refused:
        raise
    except (IndexError, struct.error):
        raise Refused("it ends too early or is malformed") from None
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from None


class _Reader:
    def __init__(self, data: bytes, result_types: Mapping[tuple[str, str], type]) -> None:
        self._data = data
        self._types = result_types
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        # Of each container: itself (so that its id stays its own), how much there is to walk in it, and how deep.
        self._sizes: dict[int, tuple[Any, int, int]] = {}
        self._growing: set[int] = set()
        self._hashes: dict[tuple[int, int], int] = {}

    def read(self) -> Any:
        data, stack, steps = self._data, self._stack, _STEPS
        if data[:1] != pickle.PROTO or data[1] not in (4, 5):
            raise Refused("it is no pickle of protocol 4 or 5")
        self._at = 2
        for _ in range(MOST_STEPS):
            code = data[self._at]
            self._at += 1
            step = steps.get(code)
            if step is None:
                if code == pickle.STOP[0]:
                    break
                raise Refused(f"it holds the instruction {_instruction(code)}, which data does not need")
            step(self)
        else:
            raise Refused(f"it has more than {MOST_STEPS:,} steps")
        if self._marks or len(stack) != 1 or self._at != len(data):
            raise Refused("it is malformed")
        self._measure(stack)
        return stack[0]

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise Refused("it ends too early")
        self._at, begin = end, self._at
        return self._data[begin:end]

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _marked(self) -> list[Any]:
        begin = self._marks.pop()
        items = self._stack[begin:]
        del self._stack[begin:]
        return items

    # -- what keeps a value harmless

    def _measure(self, items: Any) -> tuple[int, int]:
        """How much there is to walk in some items, and how deep; from here on they do not grow any more."""
        count, deepest = len(items), 0
        if not set(map(type, items)) <= _ATOMS:
            for item in items:
                if type(item) is _Name:
                    raise Refused("it holds a name that is not called")
                known = self._sizes.get(id(item))
                if known is not None:
                    self._growing.discard(id(item))
                    count += known[1]
                    deepest = max(deepest, known[2])
        if count > MOST_WALKED:
            raise Refused(f"its shared parts add up to more than {MOST_WALKED:,} items")
        if deepest >= MOST_DEPTH:
            raise Refused(f"it is nested more than {MOST_DEPTH} deep")
        return count, deepest

    def _new(self, value: Any, items: Any = (), *, grows: bool = False) -> None:
        count, deepest = self._measure(items)
        self._sizes[id(value)] = value, count, deepest + 1
        if grows:
            self._growing.add(id(value))
        self._stack.append(value)

    def _grow(self, items: Any, kind: type) -> Any:
        value = self._stack[-1]
        if type(value) is not kind or id(value) not in self._growing:
            raise Refused("it refers to itself, or changes what was finished")
        count, deepest = self._measure(items)
        if id(value) not in self._growing:
            raise Refused("it refers to itself")
        _, before, depth = self._sizes[id(value)]
        if before + count > MOST_WALKED:
            raise Refused(f"its shared parts add up to more than {MOST_WALKED:,} items")
        self._sizes[id(value)] = value, before + count, max(depth, deepest + 1)
        return value

    def _check_keys(self, value: Any, keys: Any) -> None:
        """Refuse keys made to collide: each would be compared with all before it."""
        if set(map(type, keys)) <= _SAFE_KEYS:
            return
        self._sizes.setdefault(id(value), (value, 0, 0))
        for key in keys:
            kind = type(key)
            if kind not in _SAFE_KEYS and not (kind is int and -_SMALL < key < _SMALL):
                place = id(value), hash(key)
                self._hashes[place] = seen = self._hashes.get(place, 0) + 1
                if seen > MOST_COLLISIONS:
                    raise Refused("its keys collide")

    # -- opcodes

    def _frame(self) -> None:
        self._take(8)

    def _constant(self, value: Any) -> None:
        self._stack.append(value)

    def _memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def _get(self, form: struct.Struct) -> None:
        value = self._memo[self._number(form)]
        self._growing.discard(id(value))
        self._stack.append(value)

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _tuple(self, count: int) -> None:
        items = self._stack[-count:]
        if len(items) != count:
            raise Refused("it is malformed")
        del self._stack[-count:]
        self._new(tuple(items), items)

    def _marked_tuple(self) -> None:
        items = self._marked()
        self._new(tuple(items), items)

    def _frozenset(self) -> None:
        items = self._marked()
        self._measure(items)
        self._check_keys(items, items)
        self._new(frozenset(items), items)

    def _append(self, items: list[Any]) -> None:
        self._grow(items, list).extend(items)

    def _add(self, items: list[Any]) -> None:
        value = self._grow(items, set)
        self._check_keys(value, items)
        value.update(items)

    def _set(self, items: list[Any]) -> None:
        value = self._grow(items, dict)
        keys = items[::2]
        self._check_keys(value, keys)
        value.update(zip(keys, items[1::2], strict=True))

    def _name(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise Refused("it is malformed")
        build = _BUILDERS.get((module, name))
        if build is None:
            raise Refused(f"it refers to {module}.{name}")
        self._stack.append(_Name(build))

    def _reduce(self) -> None:
        args, name = self._stack.pop(), self._stack.pop()
        if type(name) is not _Name or type(args) is not tuple:
            raise Refused("it calls something")
        value = name.build(self._types, *args)
        if type(value) in _ATOMS:
            self._stack.append(value)
        else:
            self._new(value, (args,))


_SMALL = 1 << 60
_1, _2, _4, _8 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_SIGNED, _FLOAT = struct.Struct("<i"), struct.Struct(">d")


def _whole(form: struct.Struct) -> Callable[[_Reader], None]:
    return lambda reader: reader._stack.append(reader._number(form))


def _text(form: struct.Struct) -> Callable[[_Reader], None]:
    return lambda reader: reader._stack.append(str(reader._take(reader._number(form)), "utf-8", "surrogatepass"))


def _bytes(form: struct.Struct) -> Callable[[_Reader], None]:
    return lambda reader: reader._stack.append(reader._take(reader._number(form)))


def _long(form: struct.Struct) -> Callable[[_Reader], None]:
    return lambda reader: reader._stack.append(int.from_bytes(reader._take(reader._number(form)), "little", signed=True))


_STEPS: dict[int, Callable[[_Reader], None]] = {
    code[0]: step
    for code, step in {
        pickle.FRAME: _Reader._frame,
        pickle.NONE: lambda reader: reader._constant(None),
        pickle.NEWTRUE: lambda reader: reader._constant(True),
        pickle.NEWFALSE: lambda reader: reader._constant(False),
        pickle.BININT: _whole(_SIGNED),
        pickle.BININT1: _whole(_1),
        pickle.BININT2: _whole(_2),
        pickle.LONG1: _long(_1),
        pickle.LONG4: _long(_4),
        pickle.BINFLOAT: _whole(_FLOAT),
        pickle.SHORT_BINUNICODE: _text(_1),
        pickle.BINUNICODE: _text(_4),
        pickle.BINUNICODE8: _text(_8),
        pickle.SHORT_BINBYTES: _bytes(_1),
        pickle.BINBYTES: _bytes(_4),
        pickle.BINBYTES8: _bytes(_8),
        pickle.MEMOIZE: _Reader._memoize,
        pickle.BINGET: lambda reader: reader._get(_1),
        pickle.LONG_BINGET: lambda reader: reader._get(_4),
        pickle.MARK: _Reader._mark,
        pickle.EMPTY_TUPLE: lambda reader: reader._new(()),
        pickle.TUPLE1: lambda reader: reader._tuple(1),
        pickle.TUPLE2: lambda reader: reader._tuple(2),
        pickle.TUPLE3: lambda reader: reader._tuple(3),
        pickle.TUPLE: _Reader._marked_tuple,
        pickle.EMPTY_LIST: lambda reader: reader._new([], grows=True),
        pickle.APPEND: lambda reader: reader._append([reader._stack.pop()]),
        pickle.APPENDS: lambda reader: reader._append(reader._marked()),
        pickle.EMPTY_DICT: lambda reader: reader._new({}, grows=True),
        pickle.SETITEM: lambda reader: reader._set([reader._stack.pop(-2), reader._stack.pop()]),
        pickle.SETITEMS: lambda reader: reader._set(reader._marked()),
        pickle.EMPTY_SET: lambda reader: reader._new(set(), grows=True),
        pickle.ADDITEMS: lambda reader: reader._add(reader._marked()),
        pickle.FROZENSET: _Reader._frozenset,
        pickle.STACK_GLOBAL: _Reader._name,
        pickle.REDUCE: _Reader._reduce,
    }.items()
}


# -- the names


def _exact(args: tuple[Any, ...], *kinds: type | tuple[type, ...]) -> None:
    fits = len(args) == len(kinds) and all(
        type(value) in (kind if isinstance(kind, tuple) else (kind,)) for value, kind in zip(args, kinds, strict=True)
    )
    if not fits:
        raise Refused("it builds a value from the wrong parts")


def _date(_: Any, *args: Any) -> datetime.date:
    _exact(args, int, int, int)
    return datetime.date(*args)


def _time(_: Any, *args: Any) -> datetime.time:
    _exact(args, int, int, int, int, _ZONE, int)
    return datetime.time(*args[:5], fold=args[5])


def _datetime(_: Any, *args: Any) -> datetime.datetime:
    _exact(args, int, int, int, int, int, int, int, _ZONE, int)
    return datetime.datetime(*args[:8], fold=args[8])


def _timedelta(_: Any, *args: Any) -> datetime.timedelta:
    _exact(args, int, int, int)
    return datetime.timedelta(*args)


def _timezone(_: Any, *args: Any) -> datetime.timezone:
    _exact(args, datetime.timedelta, *([str] if len(args) > 1 else []))
    return datetime.timezone(*args)


def _decimal(_: Any, *args: Any) -> decimal.Decimal:
    _exact(args, str)
    if len(args[0]) > MOST_DIGITS:
        raise Refused("it holds a Decimal of too many digits")
    return decimal.Decimal(args[0])


def _complex(_: Any, *args: Any) -> complex:
    _exact(args, float, float)
    return complex(*args)


def _dataclass(types: Mapping[tuple[str, str], type], *args: Any) -> Any:
    _exact(args, str, str, dict)
    kind: Any = _allowed(types, args)
    if issubclass(kind, enum.Enum):
        raise Refused("it builds a value from the wrong parts")
    values = args[2]
    names = [field.name for field in dataclasses.fields(kind)]
    if list(values) != names:
        raise Refused(f"the fields of {kind.__qualname__} are {', '.join(names)}, and it has others")
    # No method of the class runs: its own code would see values that it did not choose.
    made = object.__new__(kind)
    for name in names:
        object.__setattr__(made, name, values[name])
    return made


def _enum(types: Mapping[tuple[str, str], type], *args: Any) -> Any:
    _exact(args, str, str, (str, int))
    kind: Any = _allowed(types, args)
    if not issubclass(kind, enum.Enum):
        raise Refused("it builds a value from the wrong parts")
    name = args[2]
    if type(name) is str and name in kind.__members__:
        return kind.__members__[name]
    if type(name) is int and issubclass(kind, enum.Flag):
        every = 0
        for member in kind.__members__.values():
            every |= member.value
        if 0 <= name <= every and name & ~every == 0:
            return kind(name)
    raise Refused(f"{kind.__qualname__} has no member {str(name)[:80]!r}")


def _allowed(types: Mapping[tuple[str, str], type], args: tuple[Any, ...]) -> type:
    kind = types.get((args[0], args[1]))
    if kind is None:
        raise Refused(f"it holds a {args[0]}.{args[1]}, which is not named in result_types")
    return kind


def _instruction(code: int) -> str:
    import pickletools

    return next((one.name for one in pickletools.opcodes if one.code == chr(code)), f"{code:#x}")


_ZONE = (datetime.timezone, type(None))
_BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("aviato_result", "dataclass"): _dataclass,
    ("aviato_result", "enum"): _enum,
    ("builtins", "complex"): _complex,
    ("datetime", "date"): _date,
    ("datetime", "time"): _time,
    ("datetime", "datetime"): _datetime,
    ("datetime", "timedelta"): _timedelta,
    ("datetime", "timezone"): _timezone,
    ("decimal", "Decimal"): _decimal,
}
