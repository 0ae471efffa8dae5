"""Judges: what they take for equal, in tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aviato
from aviato.rl import CallCase, Outcome, ProgramCase, Task, Verdict, checker, exact, floats, text, tokens, unordered, value
from aviato.rl.judging import JudgeFailed, judged_now

PRINTED: dict[str, tuple[Any, bytes, str, bool]] = {
    "exact": (exact, b"a\n", "a\n", True),
    "exact, a newline": (exact, b"a\n", "a", False),
    "exact, CRLF": (exact, b"a\r\n", "a\n", False),
    "exact, no text": (exact, b"\xff", "\ufffd", False),
    "text": (text, b"a\n", "a", True),
    "text, blanks at ends": (text, b"a \t\nb\n\n \n", "a\nb", True),
    "text, CRLF": (text, b"a\r\nb\r\n", "a\nb\n", True),
    "text, blanks at the begin": (text, b" a", "a", False),
    "text, blank line in the middle": (text, b"a\n\nb", "a\nb", False),
    "text, blank line at the begin": (text, b"\na", "a", False),
    "text, two blanks for one": (text, b"a  b", "a b", False),
    "text, nothing": (text, b"\n\n", "", True),
    "text, another case": (text, b"A", "a", False),
    "text, NUL": (text, b"a\0", "a", False),
    "tokens": (tokens, b" a\n\n b c", "a b\nc", True),
    "tokens, one more": (tokens, b"a b c", "a b", False),
    "tokens, joined": (tokens, b"ab", "a b", False),
    "tokens, numbers are words": (tokens, b"1.0", "1", False),
    "floats": (floats(), b"0.30000000001 x", "0.3 x", True),
    "floats, off": (floats(), b"0.31", "0.3", False),
    "floats, by rtol": (floats(rtol=0.1), b"105", "100", True),
    "floats, by atol": (floats(rtol=0, atol=0.5), b"0.4", "0", True),
    "floats, over atol": (floats(rtol=0, atol=0.5), b"0.6", "0", False),
    "floats, integers and exponents": (floats(), b"1e3", "1000", True),
    "floats, nan for a number": (floats(), b"nan", "1", False),
    "floats, nan": (floats(), b"nan inf", "nan inf", True),
    "floats, inf for a number": (floats(rtol=1), b"inf", "1e308", False),
    "floats, a word": (floats(), b"one", "1", False),
    "floats, fewer": (floats(), b"1", "1 2", False),
    "unordered lines": (unordered, b"b\na \n", "a\nb", True),
    "unordered lines, one twice": (unordered, b"a\na\nb", "a\nb\nb", False),
    "value": (value(), b'{"a": [1, 2.0000000001]}', '{"a": [1, 2]}', True),
    "value, another": (value(), b"[1]", "[2]", False),
    "value, no JSON": (value(), b"a", "1", False),
    "value, too deep": (value(), b"[" * 100_000, "1", False),
    "value, deep and the same text": (value(), b"[" * 900 + b"]" * 900 + b"\n", "[" * 900 + "]" * 900, True),
    "value, a key twice": (value(), b'{"a": 2, "a": 1}', '{"a": 1}', False),
    "value, a key twice inside": (value(), b'[{"a": {"b": 2, "b": 1}}]', '[{"a": {"b": 1}}]', False),
    "value, a long integer": (value(), b"1" * 5000, "1" * 5000, True),
    "value, a long integer in a list": (value(), b"[ 1,-" + b"1" * 5000 + b"]", "[1, -" + "1" * 5000 + "]", True),
    "value, another long integer": (value(), b"1" * 5000, "1" * 4999 + "2", False),
    "value, a long integer and a text": (value(), b'"' + b"1" * 5000 + b'"', "1" * 5000, False),
    "value, a long integer and a number": (value(rtol=1e9), b"1" * 5000, "1.5", False),
    "value, longer than a float": (value(), b"1" * 5000, "1e400", False),
    "floats, no such number": (floats(), b"1_0", "10", False),
}


@pytest.mark.parametrize("name", PRINTED)
def test_of_what_programs_print(name: str) -> None:
    judge, printed, expected, passes = PRINTED[name]
    assert judged_now(ProgramCase("", expected, judge=judge), printed)[0] is passes


BIG = 2**4000
OBJECTS: dict[str, tuple[Any, Any, Any, bool]] = {
    "sets": (value(), {1, 2}, {2, 1}, True),
    "a set and a frozenset": (value(), {1, 2}, frozenset({1, 2}), True),
    "a set and a list": (value(), {1, 2}, [1, 2], False),
    "sets, one more": (value(), {1, 2, 3}, {1, 2}, False),
    "sets of floats": (value(), {0.1 + 0.2, 7}, {0.3, 7.0}, True),
    "sets of floats that are off": (value(), {0.31}, {0.3}, False),
    "sets of tuples": (value(), {(1, 0.1 + 0.2), ("a", None)}, {("a", None), (1, 0.3)}, True),
    "sets of floats that sort otherwise": (value(), {(1.0, 3), (1.0000000001, 5)}, {(1.0, 5), (1.0000000001, 3)}, True),
    "sets of booleans": (value(), {True}, {1}, False),
    "bytes and bytearray": (value(), bytearray(b"a"), b"a", True),
    "bytes and text": (value(), b"a", "a", False),
    "keys 1.0 and 1": (value(), {1.0: "a"}, {1: "a"}, True),
    "keys 1.0 and '1.0'": (value(), {1.0: "a"}, {"1.0": "a"}, True),
    "keys None and 'null'": (value(), {None: 1, 2: 3}, {"null": 1, "2": 3}, True),
    "keys True and 1": (value(), {True: "a"}, {1: "a"}, False),
    "keys True and 'true'": (value(), {True: "a"}, {"true": "a"}, True),
    "keys 1 and '1' beside each other": (value(), {1: "wrong", "1": "right"}, {"1": "right"}, False),
    "the same, the other way": (value(), {"1": "right"}, {1: "wrong", "1": "right"}, False),
    "the same as itself": (value(), {1: "a", "1": "b"}, {"1": "b", 1: "a"}, True),
    "the same, swapped": (value(), {1: "a", "1": "b"}, {1: "b", "1": "a"}, False),
    "keys that are tuples": (value(), {(1, "a"): 1}, {(1.0, "a"): 1}, True),
    "keys that are tuples of booleans": (value(), {(True,): 1}, {(1,): 1}, False),
    "keys that are frozensets": (value(), {frozenset({1, 2}): 1}, {frozenset({2, 1}): 1}, True),
    "keys beyond what Python writes": (value(), {10**5000: 1}, {10**5000: 1}, True),
    "Decimal and int": (value(), 3, Decimal(3), True),
    "Decimal and float": (value(), 0.1, Decimal("0.1"), True),
    "Decimal and another": (value(), 0.2, Decimal("0.1"), False),
    "Fraction and float": (value(), 1 / 3, Fraction(1, 3), True),
    "Fraction and int": (value(), [2], [Fraction(4, 2)], True),
    "Decimal and text": (value(), "3", Decimal(3), False),
    "complex": (value(), 1 + 2j, 1.0000000001 + 2j, True),
    "complex and float": (value(), 1 + 0j, 1, True),
    "int and bool": (value(), 1, True, False),
    "great integers are exact": (value(), BIG + 1, BIG, False),
    "great integers and floats": (value(), BIG, 1.0, False),
    "an enum of text": (value(), "passed", Verdict.PASSED, True),
    "a counter": (value(), {"a": 2}, Counter("aa"), True),
    "exact, a counter": (exact, {"a": 2}, Counter("aa"), True),
    "exact, sets of other types": (exact, {1.0}, {1}, False),
    "exact, sets": (exact, {(1, "a"), (2, "b")}, {(2, "b"), (1, "a")}, True),
    "exact, keys of other types": (exact, {1.0: "a"}, {1: "a"}, False),
    "exact, keys that are booleans": (exact, {True: "a"}, {1: "a"}, False),
    "exact, dicts": (exact, {1: "a", (2,): "b"}, {(2,): "b", 1: "a"}, True),
    "unordered, sets": (unordered, {1, 2}, {1, 2}, True),
    "unordered, a set for a list": (unordered, {1, 2}, [1, 2], False),
    "unordered, text": (unordered, "ab", "ab", True),
    "unordered, text in another order": (unordered, "ba", "ab", False),
    "unordered, an int": (unordered, 5, 5, True),
    "unordered, a dict": (unordered, {"a": 1}, {"a": 1}, True),
    "unordered, a tuple": (unordered, (2, 1), [1, 2], True),
    "unordered, one twice": (unordered, [1, 1, 2], [1, 2, 2], False),
    "unordered, booleans": (unordered, [True, 0], [0, 1], False),
    "unordered, floats": (unordered, [0.1 + 0.2, 1], [1.0, 0.3], True),
    "unordered, rows": (unordered, [[2, "b"], [1.0, "a"], []], [[], [1, "a"], [2, "b"]], True),
    "unordered, rows whose items are not": (unordered, [[2, 1]], [[1, 2]], False),
    "unordered, dicts": (unordered, [{"a": 1.0, "b": [1]}, {1: 2}], [{"1": 2}, {"b": [1], "a": 1}], True),
    "unordered, nothing is a number": (unordered, [math.nan, 1, math.nan], [math.nan, math.nan, 1], True),
    "unordered, floats side by side": (
        unordered,
        [1.0, 1.0 + 9e-7, 1.0 + 18e-7],
        [1.0 + 27e-7, 1.0 + 18e-7, 1.0 + 9e-7],
        True,
    ),
    "unordered, infinities": (unordered, [-math.inf, math.inf, BIG, -BIG], [BIG, math.inf, -BIG, -math.inf], True),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_of_what_calls_return(name: str) -> None:
    judge, actual, expected, passes = OBJECTS[name]
    assert judged_now(CallCase("f", [], expected, judge=judge), actual)[0] is passes


class CountedInt(int):
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedInt.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


class CountedFloat(float):
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedFloat.compared += 1
        return float(self) == other

    __hash__ = float.__hash__


@pytest.mark.parametrize("counted", [CountedInt, CountedFloat])
def test_unordered_does_not_compare_all_with_all(counted: Any) -> None:
    size = 9000
    expected = [[2**70 + number, "same", {"key": number}] for number in range(size)]
    actual = [[number, same, {"key": counted(key["key"])}] for number, same, key in reversed(expected)]
    near = [counted(number) + (1e-9 if counted is CountedFloat else 0) for number in reversed(range(size))]
    counted.compared = 0
    for found, wanted in ((actual, expected), (list(map(counted, near)), list(range(size)))):
        assert judged_now(CallCase("f", [], wanted, judge=unordered), found)[0] is True
    assert counted.compared < 10 * size


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(DATA)
def test_a_value_equals_itself(data: Any) -> None:
    for judge in (value(), exact):
        assert judged_now(CallCase("f", [], data, judge=judge), data) == (True, "")


@given(st.lists(DATA, max_size=6), st.randoms())
def test_unordered_takes_every_order(items: list[Any], random: Any) -> None:
    mixed = random.sample(items, len(items))
    assert judged_now(CallCase("f", [], items, judge=unordered), mixed)[0] is True
    assert judged_now(CallCase("f", [], items, judge=unordered), [*mixed, None])[0] is False


SMALL = st.integers(0, 2) | st.booleans() | st.sampled_from([0.0, 1.0, "0", "1", None])


@given(st.sets(SMALL) | st.lists(SMALL) | st.dictionaries(SMALL, SMALL), st.sets(SMALL) | st.lists(SMALL))
def test_what_python_takes_for_equal_is_equal_but_for_booleans(one: Any, other: Any) -> None:
    for left, right in ((one, other), (one, one), (other, one)):
        if any(isinstance(item, bool) for item in (*left, *right)) or isinstance(left, dict):
            continue
        assert judged_now(CallCase("f", [], right), left)[0] is (left == right)


def listed(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [listed(item) for item in data]
    return {key: listed(item) for key, item in data.items()} if isinstance(data, dict) else data


@given(DATA)
def test_tuples_are_lists_all_through(data: Any) -> None:
    assert judged_now(CallCase("f", [], listed(data)), data)[0] is True


@given(DATA, DATA)
def test_values_of_different_forms_are_not_equal(one: Any, other: Any) -> None:
    same = repr(listed(one)) == repr(listed(other))
    if judged_now(CallCase("f", [], one), other)[0]:
        assert same or "." in repr(one) + repr(other), "only floats are equal where they are not the same"
    else:
        assert not same


@given(st.binary(), st.binary())
def test_the_judges_of_text_are_ordered(printed: bytes, expected: bytes) -> None:
    passed = [judged_now(ProgramCase("", expected, judge=judge), printed)[0] for judge in (exact, text, tokens)]
    assert passed == sorted(passed), "what a stricter judge takes, a laxer one takes too"


CHECK = "import sys\ngiven, expected, got = (open(path).read().split() for path in sys.argv[1:])\n"
OPEN_R1 = CHECK + "print(int(sum(map(int, got)) == int(given[0])))"
TESTLIB = (
    "import sys\ngiven, got, answer = (open(path).read().split() for path in sys.argv[1:])\n"
    "if not got: sys.exit('no words', 2) if False else sys.exit(2)\n"
    "right = sum(map(int, got)) == int(given[0])\n"
    "print('ok' if right else 'wrong answer: the sum is wrong', file=sys.stderr)\nsys.exit(0 if right else 1)"
)


@pytest.mark.parametrize("judge", [checker(OPEN_R1, "python"), checker(TESTLIB, "python", convention="testlib")])
def test_checkers(judge: Any, outcomes: Callable[..., list[Outcome]]) -> None:
    cases = [ProgramCase("5\n", "2 3", judge=judge), ProgramCase("7\n", "3 4", judge=judge)]
    codes = {
        "n = int(input()); print(1, n - 1)": True,
        "print(1, 4)": False,
        "print('x', 4)": False,
        "print(2, 3) if input() == '5' else exit(1)": False,
    }
    found = outcomes([Task(code=code, tests=cases) for code in codes])
    assert [one.passed for one in found] == list(codes.values()), found
    assert [case.passed for case in found[1].cases] == [True, False] and "checker" in found[1].message
    assert found[2].cases[0].message.startswith("the checker ")


def test_a_checker_in_cpp(outcomes: Callable[..., list[Outcome]]) -> None:
    source = (
        '#include <fstream>\n#include "sum.h"\n'
        "int main(int c, char **v) { std::ifstream in(v[1]), out(v[2]); int n, a, b; in >> n;\n"
        "if (!(out >> a >> b)) return 2; return same(a + b, n) ? 0 : 1; }"
    )
    judge = checker(source, "cpp", convention="testlib", files={"sum.h": b"static bool same(int a, int b) { return a == b; }"})
    codes = ["print(1, int(input()) - 1)", "print(1, 1)", "print()"]
    found = outcomes([Task(code=code, tests=[ProgramCase("5", "2 3", judge=judge)]) for code in codes])
    assert [one.verdict for one in found] == [Verdict.PASSED, Verdict.FAILED, Verdict.FAILED], found


BROKEN = {
    "raises": ("1 / 0", None),
    "is no Python": ("this is no Python", None),
    "says no number": ("print('no number')", None),
    "lacks a module": ("import no_such_module", None),
    "takes too long": ("import time; time.sleep(60)", None),
    "refuses everything": ("print(0)", None),
    "raises, where that is a refusal": ("1 / 0", "testlib"),
    "says that the jury is wrong": ("import sys; sys.exit(3)", "testlib"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checker_that_does_not_work_is_no_verdict(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    source, convention = BROKEN[name]
    judge = checker(source, "python", convention=convention, timeout_seconds=1)
    found = outcomes([Task(code=code, tests=[ProgramCase("", "1", judge=judge)]) for code in ("print(1)", "print(2)", "1 / 0")])
    assert [one.reward() for one in found] == [None, None, 0.0], "one that fails by itself needs no checker"
    assert found[0].error is not None and found[0].error.reason == "grader_failed"


def test_what_a_checker_gives_in_parts_is_not_right(outcome: Callable[..., Outcome]) -> None:
    judge = checker("import sys\nprint(1 if open(sys.argv[3]).read() == '2' else 0.5)", "python")
    found = outcome(Task(code="print(1)", tests=[ProgramCase("", "2", judge=judge)]))
    assert (found.verdict, found.message) == (Verdict.FAILED, "test_1: the checker gives 0.5 of 1")


def test_an_answer_that_fills_the_checkers_disk_is_wrong(outcomes: Callable[..., list[Outcome]]) -> None:
    """It is the answer's doing: what is expected can be checked there."""
    judge = checker(OPEN_R1, "python")
    cases = [ProgramCase(f"{n}\n", f"1 {n - 1}", judge=judge) for n in range(2, 9)]
    large = "n = int(input()); print(1, n - 1) if n < 4 else print('1 ' * 2_000_000)"
    codes = ["n = int(input()); print(1, n - 1)", large, "print('1 ' * 2_000_000)"]
    tasks = [Task(code=code, tests=cases) for code in codes]
    right, some, none = outcomes(tasks, resources={"disk": "6Mi"}, retry_budget_seconds=0)
    assert right.passed, right
    assert [case.passed for case in some.cases] == [True, True, *[False] * 5], (some, some.cases)
    assert (none.verdict, none.reward()) == (Verdict.FAILED, 0.0)
    lost = checker("import time\nopen('x', 'wb').write(bytes(9 << 20))\ntime.sleep(60)", "python", timeout_seconds=5)
    (never,) = outcomes([Task(code=codes[0], tests=[ProgramCase("2\n", "1 1", judge=lost)])], resources={"disk": "6Mi"})
    assert never.verdict is Verdict.INFRASTRUCTURE, "nor can what is expected be checked"


@pytest.mark.parametrize(
    "says, message",
    [
        ("'expected 2, found', got", "the checker says: expected 2, found 1"),
        ("f'a wrong answer in test\\n1'", "the checker says: a wrong answer in test\\n1"),
        ("50", "the checker gives 50: neither 1 nor 100"),
        ("100 if got == '1' else 0", ""),
        ("1.0", ""),
    ],
)
def test_a_checkers_words_are_no_points(says: str, message: str, outcome: Callable[..., Outcome]) -> None:
    """As in open-r1's harness: what it prints is 1, or 100, and nothing beside it."""
    judge = checker(f"import sys\ngot = open(sys.argv[3]).read().strip()\nprint(1) if got == '2' else print({says})", "python")
    found = outcome(Task(code="print(1)", tests=[ProgramCase("", "2", judge=judge)]))
    assert (found.passed, found.message) == (not message, message and f"test_1: {message}")


def test_a_callable_of_the_callers(outcome: Callable[..., Outcome]) -> None:
    def sums(case: ProgramCase, printed: bytes) -> bool | str:
        return sum(map(int, printed.split())) == int(str(case.expected_stdout)) or "the sum\nis wrong\x1b[31m"

    found = outcome(Task(code="print(1, int(input()))", tests=[ProgramCase(n, "5", judge=sums) for n in ("4", "3")]))
    assert [case.passed for case in found.cases] == [True, False]
    assert found.cases[1].message == "the sum\\nis wrong\\x1b[31m"


async def answers_later(case: Any, actual: Any) -> bool:
    return True


def answers_bit_by_bit(case: Any, actual: Any) -> Any:
    yield True


class Later:
    async def __call__(self, case: Any, actual: Any) -> bool:
        return True


NO_JUDGES: dict[str, Any] = {
    "None": None,
    "text": "text",
    "floats": floats,
    "value": value,
    "checker": checker,
    "a class": type(floats()),
    "a coroutine function": answers_later,
    "a part of one": partial(answers_later, None),
    "an object of one": Later(),
    "a generator function": answers_bit_by_bit,
}


@pytest.mark.parametrize("name", NO_JUDGES)
def test_wrong_judges_are_refused(name: str) -> None:
    for make in (ProgramCase, CallCase):
        with pytest.raises(TypeError, match="judge must be"):
            make(*(("", "") if make is ProgramCase else ("f", [], 1)), judge=NO_JUDGES[name])


WRONG_JUDGES: dict[str, tuple[Callable[[], Any], str]] = {
    "rtol": (lambda: floats(rtol=-1), "0 or more"),
    "atol": (lambda: value(atol=math.nan), "0 or more"),
    "language": (lambda: checker("", "cobol"), "language must be one of .*cpp .*c[+][+]"),
    "no language": (lambda: checker("", 3), "language must be a str"),  # type: ignore[arg-type]
    "convention": (lambda: checker("", "c", convention="x"), "'testlib' or 'open-r1'"),
    "a source of bytes": (lambda: checker(b"x", "c"), "source must be a str"),  # type: ignore[arg-type]
    "no time": (lambda: checker("", "c", timeout_seconds=0), "more than 0 seconds"),
    "files of text": (lambda: checker("", "c", files={"a.h": "x"}), r"'a.h' .*\.encode\(\)"),  # type: ignore[dict-item]
    "its own file": (lambda: checker("", "c", files={"./main.c": b""}), "file of the checker itself"),
    "for a call": (lambda: CallCase("f", [], 1, judge=checker("", "python")), "give a callable"),
    "exact, expecting nothing": (lambda: ProgramCase("", judge=exact), "expected_stdout must be given"),
    "tokens, expecting nothing": (lambda: ProgramCase("", judge=tokens), "expected_stdout must be given"),
    "floats, expecting nothing": (lambda: ProgramCase("", judge=floats()), "expected_stdout must be given"),
    "value, expecting nothing": (lambda: ProgramCase("", judge=value()), "expected_stdout must be given"),
    "unordered, expecting nothing": (lambda: ProgramCase("", judge=unordered), "expected_stdout must be given"),
}


@pytest.mark.parametrize("name", WRONG_JUDGES)
def test_judges_are_made_of_what_can_be_meant(name: str) -> None:
    make, message = WRONG_JUDGES[name]
    with pytest.raises((aviato.AviatoValidationError, TypeError), match=message):
        make()


def test_a_checkers_language_has_the_names_of_a_tasks() -> None:
    for name, meant in {"py": "python", " C++ ": "cpp", "C++17": "cpp", "JavaScript": "nodejs", "golang": "go"}.items():
        assert checker("", name).language == meant == Task(code="x", language=name).language


def test_a_value_that_is_no_json_is_a_judge_that_does_not_work() -> None:
    for expected in ("not json", "", '{"a": 1, "a": 2}', "[" * 100_000):
        for printed in (b"1", expected.encode()):
            with pytest.raises(JudgeFailed):
                judged_now(ProgramCase("", expected, judge=value()), printed)
