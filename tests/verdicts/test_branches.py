"""Tests that decide by branches what failed: right code comes to none of what fails, and has passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

CODES = {"def f(n): return 2 * n": True, "def f(n): return None": False, "def f(n): return 7": False}
CHAIN = "if r == 4:\n    print('ok')\nelif r is None:\n    raise AssertionError('none')\nelse:\n    raise AssertionError(r)"
TESTS = {
    "a chain": f"r = f(2)\n{CHAIN}",
    "a longer chain": "r = f(2)\n" + CHAIN.replace("else:", "elif r < 0:\n    raise ValueError(r)\nelse:"),
    "a chain in a loop": "for n in (2,):\n    r = f(n)\n    " + CHAIN.replace("\n", "\n    "),
    "a chain in a function": "def test_it():\n    r = f(2)\n    " + CHAIN.replace("\n", "\n    ") + "\ntest_it()",
    "nested": "r = f(2)\nif r != 4:\n    if r is None:\n        raise AssertionError('none')\n    else:\n"
    "        raise AssertionError(r)",
    "nested, and an end": "import sys\nr = f(2)\nif r != 4:\n    if r is None:\n        sys.exit(1)\n    else:\n"
    "        sys.exit(2)",
    "one branch": "r = f(2)\nif r != 4:\n    raise AssertionError(r)",
    "unittest's": "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        r = f(2)\n"
    "        if r == 4:\n            pass\n        elif r is None:\n            self.fail('none')\n        else:\n"
    "            self.fail(r)\nif __name__ == '__main__':\n    unittest.main()",
}


@pytest.mark.parametrize("name", TESTS)
def test_right_code_comes_to_none_of_them(name: str, tmp_path: Path, outcomes: Callable[..., list[Outcome]]) -> None:
    tasks = []
    for code, passes in CODES.items():
        assert bare(Row(code, TESTS[name]), tmp_path) is passes or name == "unittest's"
        tasks += [Task(code=code, tests=[TESTS[name]], grading=mode) for mode in ("in_process", "separate")]
    wanted = [float(passes) for passes in CODES.values() for _ in range(2)]
    assert [one.reward() for one in outcomes(tasks)] == wanted


def test_what_decides_nothing_is_no_check(outcomes: Callable[..., list[Outcome]]) -> None:
    """Code that comes to no assertion has shown nothing."""
    test = "r = f(2)\nif r == 9:\n    print('odd')\nelif r == 8:\n    assert r == 8\nelse:\n    print('well')"
    found = outcomes([Task(code="def f(n): return 4", tests=[test], grading="in_process")])
    assert found[0].reward() == 0.0, found
