"""Results that untrusted code wrote: whatever a stream says, it is data or refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import io
import operator
import os
import pickle
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.functions import driver, reading
from aviato.functions.reading import Refused, loads

RAN: list[Any] = []


def touch(*args: Any) -> Any:
    RAN.append(args)


class Color(enum.Enum):
    RED = "r"


class Bits(enum.Flag):
    A = 1
    B = 4


@dataclass(frozen=True, slots=True)
class Point:
    x: Any
    y: Any = 0

    def __post_init__(self) -> None:
        touch("init")

    def __setstate__(self, state: Any) -> None:
        touch("setstate")


class Calls:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


TYPES = {(kind.__module__, kind.__qualname__): kind for kind in (Color, Bits, Point)}
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([Color.RED, Bits.A, Bits.A | Bits.B, Bits(0)]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.text(), max_size=1)
        | st.frozensets(st.integers(), max_size=1)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=30,
)


def sent(value: Any) -> bytes:
    """A result as the driver writes it."""
    return driver.to_pickle(value, set(TYPES))


@given(PLAIN)
def test_data_comes_back_as_it_was(value: Any) -> None:
    stream = sent(value)
    RAN.clear()
    back = loads(stream, TYPES)
    assert back == value and repr(back) == repr(value)
    assert RAN == []


def test_long_and_shared_data() -> None:
    shared = [1, 2]
    value = {
        "long": list(range(5000)),
        "twice": [shared, shared],
        "bytes": b"x" * 100_000,
        "text": "y" * 70_000,
        "many": [[]] * 3000,
    }
    back = loads(sent(value), TYPES)
    assert back == value and back["twice"][0] is back["twice"][1]


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value.encode())]) + value.encode()


def name(module: str, path: str) -> bytes:
    return text(module) + text(path) + b"\x93"


here = (Point.__module__, "Point")
HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, ("touch /tmp/never",)), 4),
    "eval": pickle.dumps(Calls(eval, ("touch()",)), 4),
    "getattr": opcodes(name("builtins", "getattr"), b"]]\x86R"),
    "attrgetter": pickle.dumps(Calls(operator.attrgetter, ("x",)), 4),
    "partial": pickle.dumps(functools.partial(touch), 4),
    "__import__": pickle.dumps(Calls(__import__, ("os",)), 4),
    "protocol 0": pickle.dumps(Calls(touch, ()), 0),
    "protocol 2": pickle.dumps(Calls(touch, ()), 2),
    "GLOBAL": opcodes(b"cposix\nsystem\n", text("true"), b"\x85R"),
    "INST": opcodes(b"(", text("true"), b"iposix\nsystem\n"),
    "OBJ": opcodes(b"(cposix\nsystem\n", text("true"), b"o"),
    "dotted name": opcodes(name("os", "path.join"), text("a"), b"\x85R"),
    "dotted module": opcodes(name("datetime", "datetime.__class__"), b")R"),
    "dotted type": opcodes(name(here[0], "Point.__init__.__globals__"), b")R"),
    "type by its own name": opcodes(name(*here), b")R"),
    "NEWOBJ": opcodes(name("builtins", "complex"), b")\x81"),
    "NEWOBJ_EX": opcodes(name("builtins", "complex"), b")}\x92"),
    "BUILD": opcodes(b"}}b"),
    "BUILD of a dataclass": pickle.dumps(Point(1), 4),
    "reconstructor": opcodes(name("copyreg", "_reconstructor"), b")R"),
    "newobj by name": opcodes(name("copyreg", "__newobj__"), b")R"),
    "PERSID": opcodes(b"Pabc\n"),
    "BINPERSID": opcodes(text("abc"), b"Q"),
    "EXT1": opcodes(b"\x82\x01"),
    "EXT4": opcodes(b"\x84\x01\x00\x00\x00"),
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05]\x98.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "PUT far away": opcodes(b"]p4000000000\n"),
    "LONG_BINPUT far away": opcodes(b"]r\xff\xff\xff\xff"),
    "GET of nothing": opcodes(b"j\xff\xff\xff\xff"),
    "huge bytes": opcodes(b"\x8e" + struct.pack("<Q", 1 << 62)),
    "huge text": opcodes(b"\x8d" + struct.pack("<Q", (1 << 64) - 1)),
    "huge int": opcodes(b"\x8b\xff\xff\xff\x7f"),
    "negative int length": opcodes(b"\x8b\xff\xff\xff\xff"),
    "text int": opcodes(b"I" + b"9" * 10_000 + b"\n"),
    "text long": opcodes(b"L" + b"9" * 100_000 + b"L\n"),
    "bad text": opcodes(b"\x8c\x01\xff"),
    "name without call": opcodes(b"]", name("builtins", "complex"), b"a"),
    "name alone": opcodes(name("builtins", "complex")),
    "name of no text": opcodes(b"]]\x93"),
    "call of data": opcodes(b"])R"),
    "call without a tuple": opcodes(name("builtins", "complex"), b"]R"),
    "complex of text": opcodes(name("builtins", "complex"), text("1j"), b"\x85R"),
    "datetime of bytes": opcodes(name("datetime", "datetime"), b"C\x0a\x07\xe8\x01\xff\xff\xff\xff\xff\xff\xff\x85R"),
    "date out of range": opcodes(name("datetime", "date"), b"K\x01K\x63K\x63\x87R"),
    "Decimal of a tuple": opcodes(name("decimal", "Decimal"), b"))\x85R"),
    "Decimal of nonsense": opcodes(name("decimal", "Decimal"), text("nonsense"), b"\x85R"),
    "class not named": opcodes(name("aviato_result", "dataclass"), text("os"), text("Point"), b"}\x87R"),
    "a method for a class": opcodes(name("aviato_result", "dataclass"), text(here[0]), text("Point.__init__"), b"}\x87R"),
    "fields left out": opcodes(name("aviato_result", "dataclass"), text(here[0]), text("Point"), b"}\x87R"),
    "fields beside": opcodes(
        name("aviato_result", "dataclass"),
        text(here[0]),
        text("Point"),
        b"}(",
        text("x"),
        b"N",
        text("y"),
        b"N",
        text("__class__"),
        b"Nu\x87R",
    ),
    "enum as a dataclass": opcodes(name("aviato_result", "dataclass"), text(here[0]), text("Color"), b"}\x87R"),
    "dataclass as an enum": opcodes(name("aviato_result", "enum"), text(here[0]), text("Point"), text("x"), b"\x87R"),
    "no member": opcodes(name("aviato_result", "enum"), text(here[0]), text("Color"), text("__class__"), b"\x87R"),
    "no flag": opcodes(name("aviato_result", "enum"), text(here[0]), text("Bits"), b"K\x02\x87R"),
    "unhashable key": opcodes(b"}(]Nu"),
    "key without value": opcodes(b"}(Nu"),
    "a list that holds itself": opcodes(b"]\x94h\x00a"),
    "grows when finished": opcodes(b"]\x94]h\x00a0h\x00Na"),
    "items without a mark": opcodes(b"]e"),
    "two values": opcodes(b"NN"),
    "nothing": opcodes(),
    "no end": b"\x80\x04N",
    "more behind": opcodes(b"N") + b"N",
    "empty": b"",
    "no pickle": b"{}",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_streams_are_refused(case: str) -> None:
    RAN.clear()
    modules = set(sys.modules)
    with pytest.raises(Refused):
        loads(HOSTILE[case], TYPES)
    assert RAN == []
    assert set(sys.modules) - modules <= {"pickletools"}


def test_each_prefix_and_each_changed_byte_is_data_or_refused() -> None:
    stream = sent({"a": [1, 2.5, (3, "x")], "p": Point(1, Color.RED), "d": datetime.datetime(2024, 1, 1), "s": {1, 2}})
    for end in range(len(stream)):
        with pytest.raises(Refused):
            loads(stream[:end], TYPES)
    for at in range(len(stream)):
        for value in (0, 0x28, 0x52, 0x62, 0x80, 0x93, 0x94, 0xFF):
            try:
                loads(stream[:at] + bytes([value]) + stream[at + 1 :], TYPES)
            except Refused:
                pass
    assert not [args for args in RAN if args == ("setstate",)]


def bounded(stream: bytes, match: str, seconds: float = 10) -> None:
    begin = time.monotonic()
    with pytest.raises(Refused, match=match):
        loads(stream, TYPES)
    assert time.monotonic() - begin < seconds


def test_what_would_be_costly_is_refused() -> None:
    bounded(opcodes(b")" + b"\x85" * 1_000_000), "nested")
    bounded(opcodes(b"]" * 1000 + b"a" * 999), "nested")
    # Thirty lists, each twice in the next: a billion items to whoever walks them.
    doubled = b"]\x94N" + b"a" + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(40))
    bounded(opcodes(b"(", doubled, b"t"), "add up|refers to itself|finished")
    # The same, built from the outside in: what was counted must not grow afterwards.
    inward = b"".join(b"]\x94" for _ in range(40)) + b"".join(b"h%c(h%ch%ce" % (n, n + 1, n + 1) for n in range(39))
    bounded(opcodes(b"(", inward, b"t"), "refers to itself|finished")
    keys = [n * ((1 << 61) - 1) for n in range(1 << 12)]
    bounded(sent(dict.fromkeys(keys)), "collide")
    bounded(sent(frozenset(keys)), "collide")
    assert loads(sent([{(1, 2): "x"} for _ in range(500)]), TYPES)[499] == {(1, 2): "x"}
    assert loads(sent({2**128 + n: n for n in range(500)}), TYPES)[2**128] == 0


def test_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_STEPS", 1000)
    assert loads(sent(list(range(900))), TYPES)[-1] == 899
    bounded(sent(list(range(1100))), "steps")


def test_the_driver_says_what_it_cannot_send() -> None:
    for value, said in {
        "object": (object(), "object"),
        "function": (touch, "function, 'touch'"),
        "class": (Point, "type, 'Point'"),
        "module": (os, "module, 'os'"),
        "subclass": (type("Text", (str,), {})("x"), "Text"),
        "other": (io.BytesIO(), "BytesIO"),
        "calls": (Calls(touch, ()), "Calls"),
    }.values():
        with pytest.raises(driver.Unserializable, match=said):
            sent([value])
    assert decimal.Decimal("NaN").is_nan() and loads(sent(decimal.Decimal("NaN")), TYPES).is_nan()
