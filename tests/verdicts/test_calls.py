"""Calls: what a plain call of the function gives, compared as its data set would, and the verdict here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

import aviato
from aviato.rl import CallCase, Outcome, Task, Verdict, exact, unordered, value


@dataclass(frozen=True)
class Row:
    """Code whose `f` is called, and whether that gives what is expected."""

    code: str
    args: tuple[Any, ...] = ()
    expected: Any = None
    passes: bool = True


def gives(source: str, expected: Any, passes: bool = True) -> Row:
    return Row(f"def f(): return {source}", (), expected, passes)


CALLS = {
    "a number": Row("def f(a, b): return a + b", (1, 2), 3),
    "another number": Row("def f(a, b): return a - b", (1, 2), 3, passes=False),
    "class Solution": Row("class Solution:\n    def f(self, n): return n * 2", (4,), 8),
    "class Solution, with state": Row(
        "class Solution:\n    def __init__(self): self.n = 5\n    def f(self, n): return self.n", (4,), 5
    ),
    "a function and a class Solution": Row("class Solution: ...\ndef f(n): return n", (4,), 4),
    "an alias": Row("def g(n): return n\nf = g", (4,), 4),
    "a lambda": Row("f = lambda n: n", (4,), 4),
    "a decorated one": Row("import functools\n@functools.lru_cache(None)\ndef f(n): return n", (4,), 4),
    "no such function": Row("def g(n): return n", (4,), 4, passes=False),
    "a list": Row("def f(a): return sorted(a)", ([3, 1],), [1, 3]),
    "a list that is changed": Row("def f(a):\n    a.append(1)\n    return a", ([3],), [3, 1]),
    "a tuple for a list": gives("(1, 2)", [1, 2]),
    "a list for a tuple": gives("[1, 2]", (1, 2)),
    "nested tuples": gives("[(1, (2, 3))]", [[1, [2, 3]]]),
    "another order": gives("[2, 1]", [1, 2], passes=False),
    "one item more": gives("[1, 2, 3]", [1, 2], passes=False),
    "True for 1": gives("True", 1, passes=False),
    "1 for True": gives("1", True, passes=False),
    "True": gives("3 > 2", True),
    "None": gives("None", None),
    "nothing returned": Row("def f(): pass", (), 0, passes=False),
    "0 for False": gives("0", False, passes=False),
    "0 for None": gives("0", None, passes=False),
    "1.0 for 1": gives("1.0", 1),
    "a float nearby": gives("0.1 + 0.2", 0.3),
    "a float not so near": gives("0.3001", 0.3, passes=False),
    "nan": gives("float('nan')", float("nan")),
    "inf": gives("float('inf')", float("inf")),
    "-inf for inf": gives("float('-inf')", float("inf"), passes=False),
    "a large integer": gives("2 ** 200", 2**200),
    "a large integer, off by one": gives("2 ** 200 + 1", 2**200, passes=False),
    "an integer beyond any float": gives("10 ** 400", 1.0, passes=False),
    "a text": gives("'é✓\\x00\\ud800'", "é✓\x00\ud800"),
    "a text for a number": gives("'3'", 3, passes=False),
    "bytes": gives("b'\\xff'", b"\xff"),
    "a set": gives("{1, 2}", {2, 1}),
    "a set for a list": gives("{1}", [1], passes=False),
    "a dict": gives("{'a': [1, (2,)]}", {"a": [1, [2]]}),
    "a dict with numbers for keys": gives("{1: 2, 2.5: 3}", {"1": 2, "2.5": 3}),
    "a dict with other keys": gives("{'b': 1}", {"a": 1}, passes=False),
    "a defaultdict": Row("import collections\ndef f(): return collections.defaultdict(int, a=1)", (), {"a": 1}),
    "a Counter": Row("import collections\ndef f(): return collections.Counter('aab')", (), {"a": 2, "b": 1}),
    "a namedtuple": Row("import collections\ndef f(): return collections.namedtuple('P', 'x')(1)", (), [1]),
    "an IntEnum": Row("import enum\nclass C(enum.IntEnum):\n    A = 3\ndef f(): return C.A", (), 3),
    "a Decimal": Row("from decimal import Decimal as D\ndef f(): return D('1.5')", (), 1.5),
    "a Decimal that is whole": Row("from decimal import Decimal as D\ndef f(): return [D(2)]", (), [2]),
    "another Decimal": Row("from decimal import Decimal as D\ndef f(): return D('1.6')", (), 1.5, passes=False),
    "a Decimal for a text": Row("from decimal import Decimal as D\ndef f(): return D('1.5')", (), "1.5", passes=False),
    "a Decimal for a Decimal": Row(
        "from decimal import Decimal as D\ndef f(a): return a + D('0.1')", (Decimal("0.2"),), Decimal("0.3")
    ),
    "no number": Row("from decimal import Decimal as D\ndef f(): return D('nan')", (), 1, passes=False),
    "a NaN that signals": Row("from decimal import Decimal as D\ndef f(): return D('sNaN')", (), 1, passes=False),
    "a Decimal beyond all": Row("from decimal import Decimal as D\ndef f(): return D('1e99999999')", (), 1, passes=False),
    "a Decimal of many digits": Row("from decimal import Decimal as D\ndef f(): return D('1' * 9999)", (), 1, passes=False),
    "a Fraction": Row("from fractions import Fraction as F\ndef f(): return F(1, 2)", (), 0.5),
    "a Fraction for a Fraction": Row("from fractions import Fraction as F\ndef f(): return [F(1, 3)]", (), [Fraction(1, 3)]),
    "another Fraction": Row("from fractions import Fraction as F\ndef f(): return F(1, 3)", (), 0.5, passes=False),
    "a Fraction of many digits": Row(
        "from fractions import Fraction as F\ndef f(): return F(1, 1 << 99_999)", (), 0, passes=False
    ),
    "a Decimal that equals everything": Row(
        "from decimal import Decimal\nclass D(Decimal):\n    __eq__ = lambda *_: True\n    __hash__ = None\n"
        "def f(): return D(4)", (), 3, passes=False
    ),
    "a class of that name": Row(
        "class Decimal:\n    adjusted = is_snan = lambda s: 0\n    __str__ = lambda s: '3\\u0000'\n"
        "Decimal.__module__ = 'decimal'\ndef f(): return Decimal()", (), 3, passes=False
    ),
    "a generator": Row("def f(): yield 1", (), [1], passes=False),
    "a map": gives("map(str, [1])", ["1"], passes=False),
    "a range": gives("range(2)", [0, 1], passes=False),
    "a deque": Row("import collections\ndef f(): return collections.deque([1])", (), [1], passes=False),
    "an object that equals everything": Row("class E:\n    __eq__ = lambda *_: True\ndef f(): return E()", (), 3, passes=False),
    "a number that equals everything": Row(
        "class E(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef f(): return E(4)", (), 3, passes=False
    ),
    "a list that holds itself": Row("def f():\n    a = []\n    a.append(a)\n    return a", (), [], passes=False),
    "a list nested 90 deep": Row(
        "def f():\n    a = []\n    for _ in range(90): a = [a]\n    return a", (), eval("[" * 91 + "]" * 91)
    ),
    "an exception": Row("def f(): raise ValueError('x')", (), None, passes=False),
    "exit(0)": Row("def f(): exit(0)", (), None, passes=False),
    "os._exit(0)": Row("import os\ndef f(): os._exit(0)", (), None, passes=False),
    "too many arguments": Row("def f(a): return a", (1, 2), 1, passes=False),
    "prints and returns": Row("def f():\n    print('noise', flush=True)\n    return 1", (), 1),
    "keeps standard streams for itself": Row(
        "import os, sys\ndef f():\n    os.close(1)\n    sys.stdout = None\n    return 1", (), 1
    ),
    "json is not there": Row(
        "import sys\nsys.modules['json'] = sys.modules['_json'] = None\ndef f(): return 1", (), 1
    ),
    "a megabyte": gives("'x' * 1_500_000", "x" * 1_500_000),
    "seven megabytes for one": gives("'x' * 7_000_000", "x", passes=False),
    "a recursion": Row("def f(n): return 0 if n == 0 else 1 + f(n - 1)", (900,), 900),
    "the code's own future": Row("from __future__ import annotations\ndef f(n: NoSuch): return n", (1,), 1),
    "an import that is missing": Row("def f(a: List[int]): return a", ([1],), [1], passes=False),
    "a main block": Row("def f(): return 1\nif __name__ == '__main__': raise SystemExit(3)", (), 1),
    "forged answers": Row("import os\nos.write(5, b'3\\n')\ndef f(): return 4", (), 3, passes=False),
    "forged and gone": Row("import os\ndef f():\n    os.write(5, b'3\\n')\n    os._exit(0)", (), 3, passes=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_verdict_of_a_call(name: str, outcome: Callable[..., Outcome]) -> None:
    row = CALLS[name]
    found = outcome(Task(code=row.code, tests=[CallCase("f", row.args, row.expected)]))
    assert found.verdict is (Verdict.PASSED if row.passes else Verdict.FAILED), found
    assert found.grading_mode == "separate"


def test_many_calls_in_one_process_until_one_ends_it(outcome: Callable[..., Outcome]) -> None:
    code = (
        "import os\nn = 0\ndef f(x):\n    global n\n    n += 1\n    if x == 2: os._exit(0)\n"
        "    while x == 4: pass\n    return [n, x]"
    )
    wanted = [[1, 0], [2, 1], None, [1, 3], None, [1, 5], [2, 6]]
    cases = [CallCase("f", [x], wanted[x], timeout_seconds=1.0 if x == 4 else None) for x in range(7)]
    found = outcome(Task(code=code, tests=cases))
    assert [case.reason for case in found.cases] == [
        *("passed", "passed", "ended_early", "passed", "timed_out", "passed", "passed")
    ]


def test_names_arguments_and_json_lines(outcome: Callable[..., Outcome]) -> None:
    code = (
        "class Box:\n    def __init__(self): self.kept = []\n    def put(self, x, *, n=1):\n"
        "        self.kept += [x] * n\n        return self.kept\n"
        "class Solution:\n    def add(self, a, b): return a + b"
    )
    cases = [
        CallCase("Box.put", ["a"], ["a", "a"], kwargs={"n": 2}),
        CallCase("Box.put", ["b"], ["a", "a", "b"]),
        CallCase.from_json_lines("add", "[1, 2]\n[3]\n", "[1, 2, 3]"),
        CallCase.from_json_lines("add", '"a"\n\n"b"', '"ab"'),
        CallCase("Box.get", [], None),
    ]
    found = outcome(Task(code=code, tests=cases))
    assert [case.passed for case in found.cases] == [True, True, True, True, False]
    assert "has no attribute 'get'" in found.cases[4].message


def test_a_prelude_only_where_it_is_asked_for(outcomes: Callable[..., list[Outcome]]) -> None:
    code = "from __future__ import annotations\ndef f(a: List[int]) -> int: return gcd(*a)"
    cases = [CallCase("f", [[4, 6]], 2)]
    without, with_it = outcomes(
        [Task(code=code, tests=cases, prelude=text) for text in ("", "from math import *\nfrom typing import *")]
    )
    assert (without.verdict, with_it.verdict) == (Verdict.FAILED, Verdict.PASSED)
    late = Task(code="x = 1\nfrom __future__ import annotations\ndef f(a): return 2", tests=cases, prelude="import math")
    assert outcomes([late])[0].verdict is Verdict.FAILED


def test_judges_of_calls(outcome: Callable[..., Outcome]) -> None:
    def half(case: CallCase, actual: Any) -> bool | str:
        return actual * 2 == case.expected or f"{actual} is not half of {case.expected}"

    cases = [
        CallCase("f", [(1, 2)], [1, 2], judge=exact),
        CallCase("f", [[1, 2.0]], [1, 2.0], judge=exact),
        CallCase("f", [[3, 1, (2,)]], [1, [2], 3], judge=unordered),
        CallCase("f", [[3, 1]], [1, 1], judge=unordered),
        CallCase("f", [1.05], 1.0, judge=value(rtol=0.1)),
        CallCase("f", [2], 4, judge=half),
        CallCase("f", [3], 4, judge=half),
        CallCase("f", ["x"], 4, judge=lambda case, actual: actual / case.expected == 1),
    ]
    found = outcome(Task(code="def f(x): return x", tests=cases))
    assert [case.passed for case in found.cases] == [False, True, True, False, True, True, False, False]
    assert found.cases[6].message == "3 is not half of 4" and "could not read the answer" in found.cases[7].message


def test_a_judge_that_does_not_work_is_no_verdict(outcomes: Callable[..., list[Outcome]]) -> None:
    for judge in (lambda case, actual: 1 / 0, lambda case, actual: None):
        right, wrong = outcomes([Task(code=f"def f(): return {n}", tests=[CallCase("f", [], 1, judge=judge)]) for n in (1, 2)])
        for found in (right, wrong):
            assert found.is_infrastructure and found.reward() is None and "judge" in found.message, found


def test_what_cannot_be_meant_is_refused_early() -> None:
    for wrong in (
        lambda: CallCase("f", [object()], 1),
        lambda: CallCase("f", "ab", 1),
        lambda: CallCase("not a name", [], 1),
        lambda: CallCase("f", [], 1, judge=value),
        lambda: CallCase("f", [], 1, timeout_seconds=0),
        lambda: CallCase.from_json_lines("f", "not json", "1"),
        lambda: Task(code="x", tests=[CallCase("f", [], 1), "assert f() == 1"]),
        lambda: Task(code="x", tests=[CallCase("f", [], 1)], language="cpp"),
        lambda: Task(code="x", tests=[CallCase("f", [], 1)], expected_output="x"),
        lambda: Task(code="x", tests=[CallCase("f", [], 1)], files={"solution.py": b""}),
        lambda: Task(code="x", prelude="import math"),
        lambda: Task(code="x", language="cobol"),
    ):
        with pytest.raises((aviato.AviatoValidationError, TypeError)):
            wrong()


def test_names_of_a_prelude_are_not_the_codes(outcomes: Callable[..., list[Outcome]]) -> None:
    methods = {"search": ([4, 5], 5, 1), "merge": ([1], [2], [1, 2]), "compress": ("aab", "b", "aab")}
    prelude = "from re import *\nfrom heapq import *\nfrom itertools import *\nfrom math import *"
    bodies = {"search": "a.index(b)", "merge": "a + b", "compress": "a"}
    tasks = [
        Task(
            code=f"from math import *\nclass Solution:\n    def {name}(self, a, b): return {bodies[name]}",
            prelude=prelude,
            tests=[CallCase(name, [a, b], wanted)],
        )
        for name, (a, b, wanted) in methods.items()
    ]
    missing = Task(code="x = 1", prelude=prelude, tests=[CallCase("gcd", [4, 6], 2)])
    assert [one.reward() for one in outcomes([*tasks, missing])] == [1.0, 1.0, 1.0, 0.0]


def test_values_that_would_take_for_ever_are_none(outcome: Callable[..., Outcome]) -> None:
    code = (
        "class S(set):\n    def __iter__(self): return iter([k * (2**61 - 1) for k in range(30_000)])\ndef f(): return S([1])"
    )
    begin = time.monotonic()
    found = outcome(Task(code=code, tests=[CallCase("f", [], 1)]))
    assert found.reward() == 0.0 and "hashes" in found.message and time.monotonic() - begin < 20


EXACT = {
    "assert f(1) == Decimal('0.1')": True,
    "assert f(1) + Decimal('0.2') == Decimal('0.3')": True,
    "assert f(1) == 0.1": False,
    "assert f(1) * 10 == 1": True,
    "assert isinstance(f(1), Decimal)": True,
    "assert str(f(3)) == '0.3'": True,
    "assert sum([f(1), f(2)]) == Decimal('0.3')": True,
    "assert f(4) == Fraction(2, 5)": True,
    "assert Fraction(f(4)) == Fraction(2, 5)": True,
    "assert f('0.5').as_tuple().exponent == -2": True,
    "assert {f(1): 1} == {Decimal('0.1'): 1}": True,
}


@pytest.mark.parametrize("grading", ["separate", "in_process"])
def test_exact_numbers_cross_as_they_are(grading: str, outcomes: Callable[..., list[Outcome]]) -> None:
    code = "from decimal import Decimal\ndef f(n): return Decimal(n) / 10"
    head = "from decimal import Decimal\nfrom fractions import Fraction\n"
    tasks = [Task(code=code, tests=[head + test], code_names=["f"], grading=grading) for test in EXACT]
    assert dict(zip(EXACT, [one.passed for one in outcomes(tasks)], strict=True)) == EXACT
