"""Skips in mode `in_process`: the grader's own let a right solution pass, and none that the solution brings about does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from tests.attacks.grading.hacks import RIGHT
from tests.attacks.grading.test_hacks import ENV, tools
from tests.matrices import every

pytestmark = pytest.mark.attack

ASIDE = "def test_aside():\n    pass\n"
PYTEST = f"import pytest\n{ASIDE}from solution import double\ndef test_it():\n    assert double(2) == 4\n"
FIXTURE = (
    f"import pytest\n{ASIDE}@pytest.fixture\ndef four():\n    from solution import double\n    return double(2)\n"
    "def test_it(four):\n    assert four == 4\n"
)
OPTIONAL = (
    "import pytest\ntry:\n    from solution import double\nexcept ImportError:\n"
    "    pytest.skip('no solution', allow_module_level=True)\ndef test_it():\n    assert double(2) == 4\n"
)
SUBTEST = "def test_it(subtests):\n    from solution import double\n    with subtests.test():\n        assert double(2) == 4\n"
UNITTEST = (
    "import unittest\nclass TestIt(unittest.TestCase):\n    def test_aside(self):\n        pass\n"
    "    def test_it(self):\n        from solution import double\n        self.assertEqual(double(2), 4)\n"
)
SET_UP = UNITTEST.replace(
    "def test_aside", "def setUp(self):\n        from solution import double\n        double(2)\n    def test_aside"
)
SET_UP_CLASS = (
    f"{UNITTEST}\nclass TestMore(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n"
    "        from solution import double\n        cls.four = double(2)\n"
    "    def test_more(self):\n        self.assertEqual(self.four, 4)\n"
)
MODULE = (
    "import unittest\nfrom solution import double\n"
    "class TestIt(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(double(2), 4)\n"
)
BESIDE = "import unittest\nclass TestBeside(unittest.TestCase):\n    def test_aside(self):\n        pass\n"

CALL = "def double(n):\n    {}\n"
WAYS: dict[str, tuple[str, str]] = {
    "pytest.skip in a call": (PYTEST, CALL.format("import pytest; pytest.skip()")),
    "SkipTest in a call": (PYTEST, CALL.format("import unittest; raise unittest.SkipTest")),
    "pytest.xfail in a call": (PYTEST, CALL.format("import pytest; pytest.xfail('hard')")),
    "pytest.importorskip in a call": (PYTEST, CALL.format("import pytest; pytest.importorskip('no_such_module')")),
    "SkipTest at import": (PYTEST, "import unittest\nraise unittest.SkipTest"),
    "pytest.skip at import": (PYTEST, "import pytest\npytest.skip('no', allow_module_level=True)"),
    "from a file of its own": (
        PYTEST,
        "open('more.py', 'w').write('import pytest, os\\npytest.skip(str(1), allow_module_level=True)')\nimport os\n"
        "os.utime('more.py', (1, 1))\nimport more",
    ),
    "from source without a file": (PYTEST, 'exec("import unittest\\ndef double(n): raise unittest.SkipTest")'),
    "in a fixture": (FIXTURE, CALL.format("import pytest; pytest.skip()")),
    "xfail in a fixture": (FIXTURE, CALL.format("import pytest; pytest.xfail()")),
    "at import in a fixture": (FIXTURE, "import unittest\nraise unittest.SkipTest"),
    "a name left out": (OPTIONAL, "pass"),
    "an ImportError": (OPTIONAL, "raise ImportError"),
    "in a part of a test": (SUBTEST, CALL.format("import pytest; pytest.skip()")),
    "unittest, in a call": (UNITTEST, CALL.format("import unittest; raise unittest.SkipTest")),
    "unittest, at import in a test": (UNITTEST, "import unittest\nraise unittest.SkipTest"),
    "unittest, in setUp": (SET_UP, CALL.format("import unittest; raise unittest.SkipTest")),
    "unittest, in setUpClass": (
        SET_UP_CLASS,
        RIGHT + "plain = double\ndef double(n):\n    import sys, unittest\n"
        "    if sys._getframe(1).f_code.co_name == 'setUpClass': raise unittest.SkipTest\n    return plain(n)\n",
    ),
    "unittest, at import": (MODULE, "import unittest\nraise unittest.SkipTest"),
}
"""Way → the grader's file and a solution; beside it a test passes that has nothing to do with it."""


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    return session.sandbox()


def of(test: str) -> tuple[dict[str, bytes], list[str]]:
    if "unittest.TestCase" in test:
        return {"test_it.py": test.encode(), "test_beside.py": BESIDE.encode()}, ["python3", "-m", "unittest"]
    files = {"test_it.py": test.encode(), "test_beside.py": ASIDE.encode(), "tools.zip": tools()}
    return files, ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q"]


@pytest.mark.parametrize("way", every(4, WAYS))
def test_no_solution_skips_its_way_to_a_pass(way: str, sandbox: aviato.Sandbox, session: aviato.Session) -> None:
    test, solution = WAYS[way]
    files, command = of(test)
    for code, passes in ((RIGHT, True), (solution, False)):
        sandbox.write_file("solution.py", code.encode()).result()
        result = sandbox.grade(
            files, command, result_paths=["solution.py"], mode="in_process", env=ENV, timeout_seconds=20
        ).result(50)
        assert result.passed is passes, (result.message, result.cases)
    assert result.message
    naive = session.sandbox()
    for path, content in {**files, "solution.py": solution.encode()}.items():
        naive.write_file(path, content).result()
    # Positive control: whoever goes by the command's returncode is deceived.
    assert naive.exec(command, env=ENV, timeout_seconds=20).result().returncode == 0


OWN = {
    "importorskip": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): assert False\n",
    "module level": "import pytest\npytest.skip('not here', allow_module_level=True)\ndef test_it(): assert False\n",
    "pytestmark": "import pytest\npytestmark = pytest.mark.skip\ndef test_it(): assert False\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef absent(): pytest.skip('no')\ndef test_it(absent): assert False\n",
    "xfail": "import pytest\nfrom solution import double\n@pytest.mark.xfail\ndef test_it(): assert double(2) == 5\n",
    "unittest's class": f"{BESIDE}@unittest.skip('no')\nclass TestIt(unittest.TestCase):\n    def test_it(self): self.fail()\n",
    "unittest's module": "import unittest\nraise unittest.SkipTest('no')\n",
    "unittest's setUpClass": (
        f"{BESIDE}class TestIt(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls): raise unittest.SkipTest('no')\n"
        "    def test_it(self): self.fail()\n"
    ),
    "unittest's setUp": (
        f"{BESIDE}class TestIt(unittest.TestCase):\n    def setUp(self): self.skipTest('no')\n"
        "    def test_it(self): self.fail()\n"
    ),
    "unittest's expectedFailure": (
        f"{BESIDE}class TestIt(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_it(self): self.fail()\n"
    ),
}


@pytest.mark.parametrize("way", OWN)
def test_skips_of_the_graders_own_do_not_stand_in_the_way(way: str, sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("solution.py", RIGHT.encode()).result()
    files, command = of(OWN[way])
    for mode in ("separate", "in_process"):
        result = sandbox.grade(files, command, result_paths=["solution.py"], mode=mode, env=ENV, timeout_seconds=20).result(50)  # type: ignore[arg-type]
        assert result.passed, (mode, result.message, result.cases)
        assert {"skipped", "xfailed"} & {str(case.status) for case in result.cases}
