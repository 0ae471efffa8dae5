"""The compiled filter says what the rules say, for any call with any registers: read by a small interpreter of its programs."""

from __future__ import annotations

import struct

import pyseccomp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.server.backends.local import filters, rules

PROGRAM = list(struct.iter_unpack("<HBBI", filters.compile_rules(rules.RULES)))
ALLOWED, ERROR, KILLED = 0x7FFF0000, 0x00050000, 0x80000000
JUMPS = {
    0x15: lambda left, right: left == right,
    0x25: lambda left, right: left > right,
    0x35: lambda left, right: left >= right,
    0x45: lambda left, right: bool(left & right),
}


def verdict(number, arguments, architecture=None):
    """What the kernel would make of the program."""
    architecture = pyseccomp.system_arch() if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments)
    position = accumulator = 0
    while True:
        code, yes, no, value = PROGRAM[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x05:
            position += value
        elif code == 0x06:
            return value
        else:
            position += yes if JUMPS[code](accumulator, value) else no


def number_of(call):
    return filters.number(call)


def holds(condition, arguments):
    found = arguments[condition.argument]
    return found >= condition.value if condition.mask is None else found & condition.mask == condition.value


def expected(number, arguments):
    """Every answer that the rules allow for."""
    answers = {
        ERROR | rule.answer
        for rule in rules.RULES
        if any(number_of(call) == number for call in rule.calls) and all(holds(one, arguments) for one in rule.where)
    }
    return answers or {ALLOWED}


CALLS = sorted({number_of(call) for rule in rules.RULES for call in rule.calls} - {-1})
CONDITIONS = [condition for rule in rules.RULES for condition in rule.where]
NUMBERS = [condition.value for condition in CONDITIONS]
REGISTERS = st.one_of(
    st.sampled_from([0, 1, 2, (1 << 32) - 1, (1 << 64) - 1, *NUMBERS]),
    st.sampled_from(NUMBERS).flatmap(lambda value: st.integers(0, 63).map(lambda bit: value ^ 1 << bit)),
    st.integers(0, (1 << 64) - 1),
)
ARGUMENTS = st.lists(REGISTERS, min_size=6, max_size=6)


@given(st.one_of(st.sampled_from([number for number in CALLS if number >= 0]), st.integers(0, 500)), ARGUMENTS)
@settings(max_examples=2000, deadline=None)
def test_it_says_what_the_rules_say(number, arguments):
    assert verdict(number, arguments) in expected(number, arguments)


@given(st.integers(0, (1 << 32) - 1), ARGUMENTS)
@settings(max_examples=200, deadline=None)
def test_calls_of_other_architectures_end_the_process(number, arguments):
    assert verdict(number, arguments, pyseccomp.Arch.X86) == KILLED
    if pyseccomp.system_arch() == pyseccomp.Arch.X86_64 and number != (1 << 32) - 1:
        assert verdict(number | 1 << 30, arguments) == KILLED


def test_the_list_is_in_order():
    assert all(number >= 0 for number in rules.LATE_NUMBERS.values())
    for call, number in rules.LATE_NUMBERS.items():
        assert pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call) in (number, -1), call
    assert len(PROGRAM) < 400, "a create pays for each instruction"


@pytest.mark.parametrize(
    "name", ["read", "write", "openat", "execve", "futex", "prlimit64", "ioctl", "fcntl", "clone", "socket"]
)
def test_what_every_program_does(name):
    assert verdict(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name), [0, 0, 0, 0, 0, 0]) == ALLOWED


@pytest.mark.parametrize(
    "count, allowed",
    [
        (0, True),
        (64, True),
        (rules.MOST_GROUPS, True),
        (rules.MOST_GROUPS + 1, False),
        (1 << 16, False),
        (1 << 32 | 1 << 16, False),
    ],
)
def test_a_process_has_as_many_groups_as_an_account_of_a_system(count, allowed):
    assert (verdict(number_of("setgroups"), [count, 0, 0, 0, 0, 0]) == ALLOWED) is allowed
