"""What kind of value code gives chooses no verdict: wrong code has failed, whether that is data, an object or too much."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aviato.rl import Outcome, Task, Verdict

WRONG = {
    "a number": "return n * n",
    "an object": "return type('C', (), {})()",
    "a large text": "return 'x' * 20_000",
    "too large a text": "return 'x' * (5 << 20)",
    "a generator": "yield 6",
    "no such module": "import no_such_module",
    "what says so": "raise ModuleNotFoundError(\"No module named 'pytest'\")",
    "what says so of another": "raise ImportError('cannot import name x from y')",
    "an end": "import os; os._exit(0)",
    "a class": "return int",
    "a number of its own": "return type('N', (), {'__float__': lambda _: 1e300})()",
}
RIGHT = "if n is None: raise TypeError('no number')\n    return 2 * n"
TESTS = {
    # The sandboxes of these tests have no pytest: no right answer needs it.
    "an import that is not there": "import pytest\ndef test_x():\n    assert double(3) == 6",
    "what that expects": "import pytest\ndef test_x():\n    assert double(3) == 6\n    with pytest.raises(TypeError):\n"
    "        double(None)",
    "a pickle": "import pickle\nfound = double(3)\nassert pickle.loads(pickle.dumps(found)) == 6",
    "a copy": "import copy\nassert copy.deepcopy(double(3)) == 6",
    "threads": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n"
    "    assert list(pool.map(double, [3, double(3)])) == [6, 12]",
    "given again": "found = double(3)\nassert double([found][0]) == 12",
    "between": "found = double(3)\nassert 5.9 < found < 6.1",
}


@pytest.mark.parametrize("test", TESTS)
def test_it_is_the_same_for_all_wrong_answers(test: str, outcomes: Callable[..., list[Outcome]]) -> None:
    codes = [f"def double(n):\n    {body}" for body in (RIGHT, *WRONG.values())]
    found = outcomes([Task(code=code, tests=[TESTS[test]], grading="separate", code_names=["double"]) for code in codes])
    assert found[0].reward() == 1.0, found[0]
    rewards = {name: one.reward() for name, one in zip(WRONG, found[1:], strict=True)}
    assert rewards == dict.fromkeys(WRONG, 0.0), [one for one in found if one.reward() is None]


def test_a_large_answer_is_compared_where_the_tests_cannot_be_run(outcomes: Callable[..., list[Outcome]]) -> None:
    tests = ["import pytest\ndef test_x():\n    assert len(many(20000)) == 20000"]
    codes = ["def many(n): return 'x' * n", "def many(n): return 'x' * (n + 1)"]
    found = outcomes([Task(code=code, tests=tests, grading="separate") for code in codes])
    assert [one.reward() for one in found] == [1.0, 0.0], found


TWO_FACED = """
class N:
    said = 0
    def {}(self):
        N.said += 1
        return {} if N.said % 2 else {}
    def __ge__(self, other): return True
    __le__ = __lt__ = __gt__ = __ge__
def f(n): return N()
"""
BOTH_WAYS = {
    "in a chain": "found = f(1)\nassert 3.14 < found < 3.15",
    "in two": "found = f(1)\nassert found > 3\nassert found < 4",
    "unittest's": "import unittest\nt = unittest.TestCase()\nfound = f(1)\nt.assertGreater(found, 3)\nt.assertLess(found, 4)",
    "in turn with another": "a, b = f(1), f(2)\nassert a > 3 and b > 3\nassert a < 4 and b < 4",
    "reckoned with": "found = f(1)\nassert found + 0 > 3\nassert found + 0 < 4",
}


@pytest.mark.parametrize("test", BOTH_WAYS)
def test_a_number_is_not_two(test: str, outcomes: Callable[..., list[Outcome]]) -> None:
    faces = [("__float__", "1e300", "-1e300"), ("__float__", "-1e300", "1e300"), ("__index__", "9**99", "-9**99")]
    codes = [TWO_FACED.format(*face) for face in faces]
    found = outcomes([Task(code=code, tests=[BOTH_WAYS[test]], grading="separate") for code in codes])
    assert [one.reward() for one in found] == [0.0] * 3, found


def test_a_number_that_changes_is_another_one(outcomes: Callable[..., list[Outcome]]) -> None:
    """Once something else was asked."""
    code = "class Count:\n    n = 0\n    def up(self): self.n += 1\n    def __index__(self): return self.n\n"
    code += "    def __eq__(self, other): return self.n == other\n    def __lt__(self, other): return self.n < other\n"
    code += "def make(): return Count()"
    test = "from solution import make\nc = make()\nassert c < 1\nc.up()\nc.up()\nassert not c < 2 and c < 3"
    found = outcomes([Task(code=code, tests=[test], grading=mode) for mode in ("in_process", "separate")])
    assert [one.verdict for one in found] == [Verdict.PASSED] * 2, found
