"""Tests that expect an exception: an end of the code, or something that is no data, is none, in any mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aviato.rl import Outcome, Task

BODIES = {
    "raises it": ("raise ValueError('no')", True),
    "raises one of its own": ("raise Refused('no')", False),
    "raises one that is derived from it": ("raise RefusedValue('no')", True),
    "raises another": ("raise KeyError('no')", False),
    "exits": ("raise SystemExit(0)", False),
    "exits by a function": ("import sys; sys.exit('no')", False),
    "ends its process": ("import os; os._exit(0)", False),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", False),
    "raises what is no Exception": ("raise BaseException('no')", False),
    "interrupts": ("raise KeyboardInterrupt", False),
    "gives an object": ("return object()", False),
    "gives a class": ("return ValueError", False),
    "gives what is not known": ("return open", False),
    "gives a value": ("return 0", False),
}
CLASSES = "class Refused(Exception): pass\nclass RefusedValue(ValueError): pass\n"
TESTS = {
    "try": "try:\n    double(-1)\nexcept {kind}:\n    pass\nelse:\n    raise AssertionError('it raises nothing')\n",
    "unittest": (
        "import unittest\nclass Refusing(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertRaises({kind}):\n            double(-1)\n"
    ),
    "a bare except": "try:\n    double(-1)\nexcept {kind}:\n    refused = True\nassert refused\n",
}


@pytest.mark.parametrize("mode", ["in_process", "separate"])
@pytest.mark.parametrize("test", TESTS)
def test_only_an_exception_is_one(test: str, mode: str, outcomes: Callable[..., list[Outcome]]) -> None:
    tasks, expected = [], []
    for body, raises in BODIES.values():
        code = f"{CLASSES}def double(n):\n    if n == -1:\n        {body}\n    return 2 * n\n"
        for kind in ("ValueError", "Exception"):
            tasks.append(Task(code=code, tests=[TESTS[test].format(kind=kind)], grading=mode, code_names=["double"]))
            expected.append(raises or (kind == "Exception" and body.startswith(("raise Refused", "raise KeyError"))))
    found = outcomes(tasks)
    assert [one.passed for one in found] == expected, [(one.message, want) for one, want in zip(found, expected, strict=True)]


@pytest.mark.parametrize("mode", ["in_process", "separate"])
@pytest.mark.parametrize("load", ["raise ValueError('no')", "import os; os._exit(0)", "raise SystemExit(0)", "def ("])
def test_code_that_cannot_be_loaded_raises_nothing(load: str, mode: str, outcomes: Callable[..., list[Outcome]]) -> None:
    code = f"def double(n): return 2 * n\n{load}\n"
    for found in outcomes([Task(code=code, tests=[test.format(kind="Exception")], grading=mode) for test in TESTS.values()]):
        assert not found.passed and not found.is_infrastructure, found
