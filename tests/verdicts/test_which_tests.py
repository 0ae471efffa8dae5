"""Which tests of a source run: code says nothing of that, by files, by variables or by what finds them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from aviato.rl import Outcome, Task

pytest.importorskip("pytest")
PACKAGES = os.path.dirname(os.path.dirname(pytest.__file__))
WRONG = "def f(n): return 7\n"
RIGHT = "def f(n): return 2 * n\n"
BY_PYTEST = (
    "import pytest\n@pytest.mark.parametrize('a, b', [(1, 2), (2, 4)])\ndef test_pairs(a, b): assert f(a) == b\n"
    "def test_some(): assert f(1) is not None\n"
)
BY_UNITTEST = (
    "import unittest\nclass T(unittest.TestCase):\n    def test_some(self): self.assertIsNotNone(f(1))\n"
    "    def test_two(self): self.assertEqual(f(2), 4)\n"
)
HOOK = "def pytest_collection_modifyitems(items): items[:] = [one for one in items if one.name == 'test_some']"
PASSES = (
    "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    found = yield\n"
    "    found.get_result().outcome = 'passed'\n"
)


def writes(name: str, text: str) -> str:
    return f"open({name!r}, 'w').write({text!r})\n"


HOSTILE = {
    **{
        name: writes(name, "[pytest]\naddopts = -k test_some\n")
        for name in ("pytest.ini", ".pytest.ini", "tox.ini", "../pytest.ini")
    },
    "pyproject.toml": writes("pyproject.toml", '[tool.pytest.ini_options]\naddopts = "-k test_some"\n'),
    "setup.cfg": writes("setup.cfg", "[tool:pytest]\naddopts = -k test_some\n"),
    "names of functions": writes("pytest.ini", "[pytest]\npython_functions = test_some\n"),
    "a hook that chooses": writes("conftest.py", HOOK),
    "a hook that passes": writes("conftest.py", PASSES),
    "a plugin": writes("own_plugin.py", HOOK) + "import os\nos.environ['PYTEST_PLUGINS'] = 'own_plugin'",
    "a variable": "import os\nos.environ['PYTEST_ADDOPTS'] = '-k test_some'",
    "names for unittest": "import unittest\nunittest.defaultTestLoader.testNamePatterns = ['*test_some']",
    "names of unittest": "import unittest\nunittest.defaultTestLoader.testMethodPrefix = 'test_some'",
    "names of all of unittest": "import unittest\nunittest.TestLoader.testMethodPrefix = 'test_some'",
    "nothing": "",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_code_does_not_choose_its_tests(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    tasks = [Task(code=code + HOSTILE[name], tests=[test]) for code in (WRONG, RIGHT) for test in (BY_PYTEST, BY_UNITTEST)]
    found = outcomes(tasks, packages=PACKAGES)
    assert [one.reward() for one in found] == [0.0, 0.0, 1.0, 1.0], found


@pytest.mark.parametrize(
    "files",
    [
        {"pytest.ini": b"[pytest]\naddopts = -k 'not test_pairs'\n"},
        {"pyproject.toml": b'[tool.pytest.ini_options]\naddopts = "-k test_some"\n'},
        {"conftest.py": HOOK.encode()},
    ],
    ids=["pytest.ini", "pyproject.toml", "conftest.py"],
)
def test_those_of_the_task_do(files: dict[str, bytes], outcomes: Callable[..., list[Outcome]]) -> None:
    """Unless the code has written something else there."""
    (name,) = files
    codes = [WRONG, WRONG + writes("x.txt", "x"), WRONG + writes(name, "")]
    found = outcomes([Task(code=code, tests=[BY_PYTEST], files=files) for code in codes], packages=PACKAGES)
    assert [one.reward() for one in found] == [1.0, 1.0, 0.0], (found, sys.version)
