"""Tests that a source defines are collected and run: the verdicts of pytest and unittest on the same source, and those here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aviato.rl.test_source import look
from tests.verdicts.oracles import COLLECT, DRIVEN, ENVIRONMENT, RIGHT, WRONG, by_pytest, here, plain


@dataclass(frozen=True)
class Row:
    """A source, whose verdict on the right and the wrong code is asked of `how`; None where there is no other verdict."""

    source: str
    how: str = "pytest"
    said: tuple[str, str] = ("passed", "failed")
    kind: str = "pytest"
    got: tuple[str, str] | None = None

    @property
    def expected(self) -> tuple[str, str]:
        return self.got or self.said


UNIT = "import unittest\nclass Checks(unittest.TestCase):\n"
ROWS = {
    "function": Row("def test_f():\n    assert f(2) == 4"),
    "function called test": Row("def test():\n    assert f(2) == 4"),
    "prefix without underscore": Row("def testing():\n    assert f(2) == 4"),
    "default": Row("def test_f(x=2):\n    assert f(x) == 4"),
    "several": Row("def test_f():\n    assert callable(f)\ndef test_g():\n    assert f(2) == 4"),
    "under if": Row("if callable(f):\n    def test_f():\n        assert f(2) == 4"),
    "statements too": Row("assert callable(f)\ndef test_f():\n    assert f(2) == 4"),
    "statements fail": Row("assert f(2) == 4\ndef test_f():\n    assert callable(f)"),
    "class": Row("class TestF:\n    def test_f(self):\n        assert f(2) == 4"),
    "class with setup": Row(
        "class TestF:\n    def setup_method(self):\n        self.x = 2\n    def test_f(self):\n        assert f(self.x) == 4"
    ),
    "setup_class": Row(
        "class TestF:\n    @classmethod\n    def setup_class(cls):\n        cls.x = 2\n"
        "    def test_f(self):\n        assert f(self.x) == 4"
    ),
    "setup_function": Row("def setup_function():\n    global x\n    x = 2\ndef test_f():\n    assert f(x) == 4"),
    "setup_module": Row("def setup_module(module):\n    module.x = 2\ndef test_f():\n    assert f(x) == 4"),
    "teardown fails": Row(
        "def teardown_function(function):\n    assert f(2) == 4 and function is test_f\ndef test_f():\n    assert callable(f)"
    ),
    "inherited": Row("class Base:\n    def test_f(self):\n        assert f(2) == 4\nclass TestF(Base):\n    pass"),
    "parametrize": Row(
        "import pytest\n@pytest.mark.parametrize('a, b', [(2, 4), (3, 6)])\ndef test_f(a, b):\n    assert f(a) == b"
    ),
    "parametrized with nothing": Row(
        "import pytest\n@pytest.mark.parametrize('a', [])\ndef test_f(a):\n    assert f(a) == 4",
        said=("passed", "passed"),
        got=("skipped", "skipped"),
    ),
    "fixture": Row("import pytest\n@pytest.fixture\ndef two():\n    return 2\ndef test_f(two):\n    assert f(two) == 4"),
    "fixture in a class": Row(
        "import pytest\nclass TestF:\n    @pytest.fixture(autouse=True)\n    def made(self):\n        self.x = 2\n"
        "    def test_f(self):\n        assert f(self.x) == 4"
    ),
    "tmp_path": Row("def test_f(tmp_path):\n    assert tmp_path.exists() and f(2) == 4"),
    "capsys": Row("def test_f(capsys):\n    print(f(2))\n    assert capsys.readouterr().out == '4\\n'"),
    "monkeypatch": Row("def test_f(monkeypatch):\n    monkeypatch.setenv('A', '2')\n    assert f(2) == 4"),
    "raises": Row("import pytest\ndef test_f():\n    with pytest.raises(ValueError):\n        f(-1)"),
    "approx": Row("from pytest import approx\ndef test_f():\n    assert f(2) == approx(4.0)"),
    "pytest.fail": Row("import pytest\ndef test_f():\n    if f(2) != 4:\n        pytest.fail('wrong')"),
    "skipped by mark": Row(
        "import pytest\n@pytest.mark.skip(reason='later')\ndef test_f():\n    assert f(2) == 4",
        said=("passed", "passed"),
        got=("skipped", "skipped"),
    ),
    "skipped inside": Row(
        "import pytest\ndef test_f():\n    pytest.skip('later')\n    assert f(2) == 4",
        said=("passed", "passed"),
        got=("skipped", "skipped"),
    ),
    "one skipped": Row(
        "import pytest\n@pytest.mark.skip\ndef test_f():\n    assert f(2) == 4\ndef test_g():\n    assert f(3) == 6"
    ),
    "xfail": Row(
        "import pytest\n@pytest.mark.xfail\ndef test_f():\n    assert f(2) == 5",
        said=("passed", "passed"),
        got=("xfailed", "xfailed"),
    ),
    "strict xfail": Row(
        "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_f():\n    assert f(2) == 7\ndef test_g():\n    assert f",
    ),
    "async": Row("async def test_f():\n    assert f(2) == 4", said=("failed", "failed"), got=("passed", "failed")),
    "exit inside": Row("def test_f():\n    assert f(2) == 4\n    exit(0)", said=("failed", "failed")),
    "main block": Row("def test_f():\n    assert f(2) == 4\nif __name__ == '__main__':\n    import pytest\n    pytest.main()"),
    "main block with calls": Row("def test_f():\n    assert f(2) == 4\nif __name__ == '__main__':\n    test_f()"),
    "unittest and pytest": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\ndef test_g():\n    assert callable(f)"
    ),
    "swallowed": Row(
        "def test_f():\n    try:\n        assert f(2) == 4\n    except Exception:\n        pass",
        said=("passed", "passed"),
        got=("refused", "refused"),
    ),
    "compares only": Row("def test_f():\n    f(2) == 4", said=("passed", "passed"), got=("refused", "refused")),
    "prints only": Row("def test_f():\n    print(f(2) == 4)", said=("passed", "passed"), got=("refused", "refused")),
    "returns": Row("def test_f():\n    return f(2) == 4", said=("passed", "passed"), got=("refused", "refused")),
    "class with __init__": Row(
        "class TestF:\n    def __init__(self):\n        pass\n    def test_f(self):\n        assert f(2) == 4",
        said=("not_run", "not_run"),
        got=("refused", "refused"),
    ),
    "class without tests": Row(
        "class TestF:\n    def check(self):\n        assert f(2) == 4", said=("not_run", "not_run"), got=("refused", "refused")
    ),
    "unknown fixture": Row(
        "def test_f(candidate):\n    assert candidate(2) == 4", said=("failed", "failed"), got=("refused", "refused")
    ),
    "empty loop": Row(
        "def test_f():\n    for x in list():\n        assert f(x) == 4", said=("passed", "passed"), got=("not_run", "not_run")
    ),
    "unittest": Row(f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)", "unittest", kind="unittest"),
    "unittest with setUp": Row(
        f"{UNIT}    def setUp(self):\n        self.x = 2\n    def test_f(self):\n        self.assertEqual(f(self.x), 4)",
        "unittest",
        kind="unittest",
    ),
    "unittest plain assert": Row(f"{UNIT}    def test_f(self):\n        assert f(2) == 4", "unittest", kind="unittest"),
    "unittest assertRaises": Row(
        f"{UNIT}    def test_f(self):\n        with self.assertRaises(ValueError): f(-1)", "unittest", kind="unittest"
    ),
    "unittest subTest": Row(
        f"{UNIT}    def test_f(self):\n        for x in (2, 3):\n            with self.subTest(x=x):\n"
        "                self.assertEqual(f(x), 2 * x)",
        "unittest",
        kind="unittest",
    ),
    "unittest setUpClass fails": Row(
        f"{UNIT}    @classmethod\n    def setUpClass(cls):\n        assert f(2) == 4\n    def test_f(self):\n"
        "        self.assertTrue(f)",
        "unittest",
        kind="unittest",
    ),
    "setUpModule": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(x), 4)\ndef setUpModule():\n    global x\n    x = 2",
        "unittest",
        kind="unittest",
    ),
    "unittest async": Row(
        "from unittest import IsolatedAsyncioTestCase\nclass Checks(IsolatedAsyncioTestCase):\n"
        "    async def test_f(self):\n        self.assertEqual(f(2), 4)",
        "unittest",
        kind="unittest",
    ),
    "unittest subclass of a subclass": Row(
        "from unittest import TestCase\nclass Base(TestCase):\n    def same(self, a, b):\n        self.assertEqual(a, b)\n"
        "class Checks(Base):\n    def test_f(self):\n        self.same(f(2), 4)",
        "unittest",
        kind="unittest",
    ),
    "unittest.main at the end": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\nunittest.main()", "python", kind="unittest"
    ),
    "unittest.main in a main block": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\nif __name__ == '__main__':\n    unittest.main()",
        "python",
        kind="unittest",
    ),
    "unittest.main(exit=False)": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\nunittest.main(argv=[''], exit=False,\n  verbosity=2)",
        "python",
        ("passed", "passed"),
        "unittest",
        got=("passed", "failed"),
    ),
    "a runner of its own": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\n"
        "suite = unittest.TestLoader().loadTestsFromTestCase(Checks)\nunittest.TextTestRunner().run(suite)",
        "python",
        ("passed", "passed"),
        "unittest",
        got=("passed", "failed"),
    ),
    "a runner of its own, asked": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\n"
        "suite = unittest.TestLoader().loadTestsFromTestCase(Checks)\n"
        "assert unittest.TextTestRunner().run(suite).wasSuccessful()",
        "python",
        kind="statements",
    ),
    "a suite of nothing, asked": Row(
        f"{UNIT}    def test_f(self):\n        self.assertEqual(f(2), 4)\n"
        "suite = unittest.TestSuite()\nassert unittest.TextTestRunner().run(suite).wasSuccessful()",
        "python",
        ("passed", "passed"),
        "statements",
        got=("not_run", "not_run"),
    ),
    "unittest skipped": Row(
        f"{UNIT}    @unittest.skip('later')\n    def test_f(self):\n        self.assertEqual(f(2), 4)",
        "unittest",
        ("passed", "passed"),
        "unittest",
        got=("skipped", "skipped"),
    ),
    "unittest skips inside": Row(
        f"{UNIT}    def test_f(self):\n        self.skipTest('later')\n        self.assertEqual(f(2), 4)",
        "unittest",
        ("passed", "passed"),
        "unittest",
        got=("skipped", "skipped"),
    ),
    "unittest expected failure": Row(
        f"{UNIT}    @unittest.expectedFailure\n    def test_f(self):\n        self.assertEqual(f(2), 5)",
        "unittest",
        ("passed", "passed"),
        "unittest",
        got=("xfailed", "xfailed"),
    ),
    "unittest unexpected success": Row(
        f"{UNIT}    @unittest.expectedFailure\n    def test_f(self):\n        self.assertEqual(f(2), 7)\n"
        "    def test_g(self):\n        self.assertTrue(f)",
        "unittest",
        kind="unittest",
    ),
    "unittest compares only": Row(
        f"{UNIT}    def test_f(self):\n        f(2) == 4", "unittest", ("passed", "passed"), got=("refused", "refused")
    ),
    "unittest asserts what is true": Row(
        f"{UNIT}    def test_f(self): self.assertTrue((f(2) == 4, 'wrong'))",
        "unittest",
        ("passed", "passed"),
        got=("refused", "refused"),
    ),
    "unittest compares constants": Row(
        f"{UNIT}    def test_f(self):\n        x = f(2)\n        self.assertEqual(4, 4)",
        "unittest",
        ("passed", "passed"),
        got=("refused", "refused"),
    ),
    "unittest expects its own error": Row(
        f"{UNIT}    def test_f(self):\n        with self.assertRaises(ValueError): raise ValueError(f(2))",
        "unittest",
        ("passed", "passed"),
        got=("passed", "passed"),
        kind="unittest",
    ),
    "unittest expects Python's error": Row(
        f"{UNIT}    def test_f(self):\n        with self.assertRaises(ValueError): int('x')\n        x = f(2)",
        "unittest",
        ("passed", "passed"),
        got=("refused", "refused"),
    ),
    "unittest by another name": Row(
        "from unittest import TestCase as Case\nclass Checks(Case):\n    def test_f(self):\n        self.assertEqual(f(2), 4)",
        "unittest",
        kind="unittest",
    ),
    "unittest async in TestCase": Row(
        f"{UNIT}    async def test_f(self):\n        self.assertEqual(f(2), 4)",
        "unittest",
        ("passed", "passed"),
        got=("refused", "refused"),
    ),
    "unittest async by a base": Row(
        "import unittest\nclass Base(unittest.IsolatedAsyncioTestCase):\n    pass\nclass Checks(Base):\n"
        "    async def test_f(self):\n        self.assertEqual(f(2), 4)",
        "unittest",
        kind="unittest",
    ),
    "unittest generator": Row(
        f"{UNIT}    def test_f(self):\n        yield self.assertEqual(f(2), 4)",
        "unittest",
        ("passed", "passed"),
        got=("refused", "refused"),
    ),
    "generator": Row("def test_f():\n    assert f(2) == 4\n    yield", said=("failed", "failed"), got=("refused", "refused")),
    "generator of a class": Row(
        "class TestF:\n    def test_f(self):\n        yield f(2) == 4", said=("failed", "failed"), got=("refused", "refused")
    ),
    "decorator that swallows": Row(
        "import functools\ndef quiet(g):\n    @functools.wraps(g)\n    def inner():\n        try: g()\n"
        "        except Exception: pass\n    return inner\n@quiet\ndef test_f():\n    assert f(2) == 4",
        said=("passed", "passed"),
        got=("passed", "not_run"),
    ),
    "decorator that drops": Row(
        "def drop(g):\n    def inner(): f(2)\n    return inner\n@drop\ndef test_f():\n    assert f(2) == 4",
        said=("passed", "passed"),
        got=("not_run", "not_run"),
    ),
    "decorator of a class that drops": Row(
        "def drop(c):\n    class TestF:\n        def test_f(self): f(2)\n    return TestF\n@drop\nclass TestF:\n"
        "    def test_f(self):\n        assert f(2) == 4",
        said=("passed", "passed"),
        got=("not_run", "not_run"),
    ),
    "decorator that calls": Row(
        "def twice(g):\n    def inner():\n        g()\n        g()\n    return inner\n@twice\ndef test_f():\n"
        "    assert f(2) == 4"
    ),
    "raises nothing of the code's": Row(
        "import pytest\ndef test_f():\n    with pytest.raises(ValueError):\n        int('x')\n    f(2) == 4",
        said=("passed", "passed"),
        got=("refused", "refused"),
    ),
    "a fixture asked": Row(
        "def test_f(monkeypatch):\n    monkeypatch.setenv('A', str(f(2) == 4))",
        said=("passed", "passed"),
        got=("refused", "refused"),
    ),
    "called by the source": Row("def test_f():\n    assert f(2) == 4\ntest_f()", "python", kind="statements"),
    "one called by the source": Row(
        "calls = []\ndef test_f():\n    calls.append(1)\n    assert f(2) == 4 and len(calls) == 1\n"
        "def test_g():\n    assert len(calls) == 1\ntest_f()",
        said=("failed", "failed"),
        got=("passed", "failed"),
    ),
    "called in a loop": Row("def test_f():\n    assert f(2) == 4\nfor test in [test_f]:\n    test()"),
    "kept in a list": Row("def test_f():\n    assert f(2) == 4\ntests = [test_f]"),
    "called under a try": Row(
        "def test_f():\n    assert f(2) == 4\ntry:\n    test_f()\nexcept AssertionError as e:\n    print('failed', e)"
    ),
    "called by name": Row(
        "def test_f():\n    assert f(2) == 4\nfor name, one in list(globals().items()):\n    if name[:5] == 'test_': one()"
    ),
    "called as a method": Row("class TestF:\n    def test_f(self):\n        assert f(2) == 4\nTestF().test_f()"),
}


@pytest.fixture(scope="module")
def pytest_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    sources = {name: row.source for name, row in ROWS.items() if row.how == "pytest"}
    return by_pytest((RIGHT, WRONG), sources, tmp_path_factory.mktemp("oracle"))


@pytest.mark.parametrize("name", ROWS)
def test_tests_that_a_source_defines(name: str, pytest_says: dict[str, list[str]], tmp_path: Path) -> None:
    row = ROWS[name]
    told = look(row.source)
    assert told.kind == ("nothing" if row.expected[0] == "refused" else row.kind), told
    said = pytest_says.get(name) or [plain(row.how, code, row.source, tmp_path) for code in (RIGHT, WRONG)]
    assert tuple(said) == row.said
    left = sorted(tmp_path.iterdir())
    got = tuple(here(code, row.source, tmp_path) for code in (RIGHT, WRONG))
    assert tuple(one.partition(":")[0] for one in got) == row.expected
    assert sorted(tmp_path.iterdir()) == left


OTHERS = [
    # Tests that the code under test has, or that the test source only imports: they are not the source's.
    "from solution import *\nassert f(2) == 4",
    "from solution import test_code\nassert f(2) == 4\ndef test_f():\n    assert f(2) == 4",
    "assert f(2) == 4\ndef test_f():\n    assert f(2) == 4",
]


@pytest.mark.parametrize("source", OTHERS)
def test_tests_of_the_code_are_not_collected(source: str, tmp_path: Path) -> None:
    own = "def test_code():\n    assert False\nclass TestCode:\n    def test_m(self):\n        assert False\n"
    assert here(RIGHT + own, source, tmp_path) == "passed"


def test_a_test_of_the_same_name_as_the_codes_is_the_sources(tmp_path: Path) -> None:
    own = "def test_f():\n    assert False\n"
    source = "def test_f():\n    assert f(2) == 4"
    assert here(RIGHT + own, source, tmp_path) == "passed"
    assert here(WRONG + "def test_f(): pass\n", source, tmp_path).startswith("failed: test_f")


@pytest.mark.parametrize(
    "source", ["def test_f(tmp_path):\n    assert f(2) == 4", "import pytest\ndef test_f():\n    assert f(2) == 4"]
)
def test_a_missing_pytest_is_named_and_is_no_failure(source: str, tmp_path: Path) -> None:
    told = look(source)
    job = {"code": RIGHT, "source": told.instrumented, "kind": told.kind, "counts_checks": False, "already_run": []}
    found = subprocess.run([sys.executable, "-I", "-S", DRIVEN, COLLECT], input=json.dumps(job), capture_output=True, text=True)
    assert found.stdout.split("\n")[-2] == "no pytest", found


def test_plain_tests_need_no_pytest(tmp_path: Path) -> None:
    source = "def test_f():\n    assert f(2) == 4\nclass TestF:\n    def test_m(self):\n        assert f(3) == 6"
    told = look(source)
    job = {"code": RIGHT, "source": told.instrumented, "kind": told.kind, "counts_checks": False, "already_run": []}
    found = subprocess.run([sys.executable, "-I", "-S", DRIVEN, COLLECT], input=json.dumps(job), capture_output=True, text=True)
    assert found.stdout.split("\n")[-2] == "passed", found


def collected(source: str, folder: Path) -> Any:
    """What `collect` gives or raises for a source."""
    program = (
        "import json, sys, types\n"
        "tool = {'__name__': 'aviato_collect'}\n"
        f"exec(open({str(COLLECT)!r}).read(), tool)\n"
        "module = sys.modules['solution'] = types.ModuleType('solution')\n"
        f"exec({RIGHT!r}, module.__dict__)\n"
        "before = dict(module.__dict__)\n"
        f"exec({source!r}, module.__dict__)\n"
        "sys.stdout, out = sys.stderr, sys.stdout\n"
        f"try: found = tool['collect']('pytest', module.__dict__, before)\n"
        "except Exception as error: found = [type(error).__name__, str(error), error.tests]\n"
        "print(json.dumps(found), file=out)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, cwd=folder)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.split("\n")[0])


STATUSES = """
import pytest, unittest
def test_passes(): assert f(2) == 4
def test_skips(): pytest.skip("later")
@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(): assert f(2) == 5
@pytest.mark.xfail
def test_passes_unexpectedly(): assert f(2) == 4
class Unit(unittest.TestCase):
    def test_m(self): self.assertEqual(f(2), 4)
"""


def test_what_became_of_each_test_is_told(tmp_path: Path) -> None:
    expected = [
        ["test_passes", "passed", ""],
        ["test_skips", "skipped", "Skipped: later"],
        ["test_is_expected_to_fail", "xfailed", "known"],
        ["test_passes_unexpectedly", "xpassed", ""],
        ["Unit::test_m", "passed", ""],
    ]
    assert [list(one.values()) for one in collected(STATUSES, tmp_path)] == expected


def test_the_first_failure_is_named_and_all_tests_are_told(tmp_path: Path) -> None:
    source = "def test_a(): assert f(2) == 4\ndef test_b(): assert f(2) == 5, 'five'\ndef test_c(): f('x').y"
    kind, message, tests = collected(source, tmp_path)
    assert (kind, message) == ("AssertionError", "test_b: five")
    assert [one["status"] for one in tests] == ["passed", "failed", "error"]
    assert tests[2]["message"] == "TypeError: '<' not supported between instances of 'str' and 'int'"
