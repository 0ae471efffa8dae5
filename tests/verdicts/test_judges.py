"""Judges: what they take for equal, in tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aviato
from aviato.rl import CallCase, Outcome, ProgramCase, Task, Verdict, checker, exact, floats, text, tokens, unordered, value
from aviato.rl.judging import judged_now

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
}


@pytest.mark.parametrize("name", PRINTED)
def test_of_what_programs_print(name: str) -> None:
    judge, printed, expected, passes = PRINTED[name]
    assert judged_now(ProgramCase("", expected, judge=judge), printed)[0] is passes


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(DATA)
def test_a_value_equals_itself(data: Any) -> None:
    for judge in (value(), exact):
        assert judged_now(CallCase("f", [], data, judge=judge), data) == (True, "")


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


def test_a_callable_of_the_callers(outcome: Callable[..., Outcome]) -> None:
    def sums(case: ProgramCase, printed: bytes) -> bool | str:
        return sum(map(int, printed.split())) == int(str(case.expected_stdout)) or "the sum\nis wrong\x1b[31m"

    found = outcome(Task(code="print(1, int(input()))", tests=[ProgramCase(n, "5", judge=sums) for n in ("4", "3")]))
    assert [case.passed for case in found.cases] == [True, False]
    assert found.cases[1].message == "the sum\\nis wrong\\x1b[31m"


def test_wrong_judges_are_refused() -> None:
    for judge in (None, "text", floats, value, checker):
        with pytest.raises(TypeError):
            ProgramCase("", "", judge=judge)
    for make in (
        lambda: floats(rtol=-1),
        lambda: value(atol=math.nan),
        lambda: checker("", "cobol"),
        lambda: checker("", "c", convention="x"),
    ):
        with pytest.raises(aviato.AviatoValidationError):
            make()
    with pytest.raises(aviato.AviatoValidationError):
        CallCase("f", [], 1, judge=checker("", "python"))
