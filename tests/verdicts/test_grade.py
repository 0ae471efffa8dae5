"""What pytest and unittest say of their tests in a bare run, beside what `Sandbox.grade` says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.results import CaseStatus
from tests.attacks.grading.test_hacks import tools
from tests.matrices import deep, every

PYTEST = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-v", "test_it.py"]
UNITTEST = ["python3", "-m", "unittest", "-v"]
ENV = {"PYTHONPATH": "/workspace/tools.zip"}
SOLUTION = "def double(n):\n    return 2 * n\n"


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    made = session.sandbox()
    made.write_file("solution.py", SOLUTION.encode()).result()
    return made


def graded(sandbox: aviato.Sandbox, test: str, command: list[str], mode: str, **options: Any) -> aviato.GradeResult:
    files = {"test_it.py": test.encode(), **({"tools.zip": tools()} if command is PYTEST else {}), **options.pop("files", {})}
    given: dict[str, Any] = {"result_paths": ["solution.py"], "timeout_seconds": 20, "env": ENV, **options}
    return sandbox.grade(files, command, mode=mode, **given).result(55)  # type: ignore[arg-type]


def bare(session: aviato.Session, test: str, command: list[str]) -> aviato.ProcessResult:
    sandbox = session.sandbox()
    for path, content in {"test_it.py": test.encode(), "solution.py": SOLUTION.encode(), "tools.zip": tools()}.items():
        sandbox.write_file(path, content).result()
    return sandbox.exec(command, env=ENV, timeout_seconds=30).result()


PYTEST_KINDS = """
import unittest
import pytest
from solution import double

def test_passes():
    assert double(2) == 4

def test_fails():
    assert double(2) == 5

def test_raises():
    raise KeyError("x")

@pytest.fixture
def broken():
    raise RuntimeError("setup")

def test_setup(broken):
    pass

@pytest.fixture
def late():
    yield
    raise RuntimeError("teardown")

def test_teardown(late):
    pass

@pytest.mark.skip(reason="by mark")
def test_skip_mark():
    pass

@pytest.mark.skipif(True, reason="by condition")
def test_skipif():
    pass

@pytest.fixture
def absent():
    pytest.skip("by fixture")

def test_skip_fixture(absent):
    pass

def test_skip_call():
    pytest.skip("in the test")

@pytest.mark.xfail
def test_xfail():
    assert False

@pytest.mark.xfail(run=False, reason="crashes")
def test_xfail_not_run():
    assert False

def test_xfail_call():
    pytest.xfail("in the test")

@pytest.mark.xfail
def test_xpass():
    pass

@pytest.mark.xfail(strict=True)
def test_xpass_strict():
    pass

@pytest.mark.parametrize("text", ["a b", "[x]", "ä-☃", "", "a::b", "line\\nend", "x", "x"])
def test_ids(text):
    assert double(text) == text + text

class TestClass:
    def test_method(self):
        assert double(1) == 2

class Cases(unittest.TestCase):
    def test_one(self):
        self.assertEqual(double(1), 2)

    @unittest.skip("decorated")
    def test_skipped(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    def test_raises_skip(self):
        raise unittest.SkipTest("in the test")
"""
SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (test_it\.py::.*?)(?: - .*)?$", re.MULTILINE)
WORDS = {"XFAIL": "xfailed", "XPASS": "xpassed"}
UNCOUNTED = {
    *("test_fails", "test_raises", "test_setup", "test_teardown", "test_xpass_strict"),
    *("test_skip_call", "test_xfail_call", "Cases::test_raises_skip"),
}
"""With one of these a grade in process has not passed; a bare run passes with those of the second line."""


def said_by_pytest(output: str) -> dict[str, str]:
    """Test → status, by the lines of a verbose run, and its summary where one test has two of them."""
    found = re.findall(r"^(test_it\.py::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", output, re.MULTILINE)
    return {name: WORDS.get(word, word.lower()) for name, word in [*found, *((b, a) for a, b in SUMMARY.findall(output))]}


def test_statuses_of_pytest(session: aviato.Session, sandbox: aviato.Sandbox) -> None:
    plain = bare(session, PYTEST_KINDS, PYTEST)
    said = said_by_pytest(plain.stdout)
    assert len(said) == 27 and plain.returncode == 1, plain.stdout
    for mode in ("separate", "in_process"):
        result = graded(sandbox, PYTEST_KINDS, PYTEST, mode)
        assert {case.name: str(case.status) for case in result.cases} == said
        assert result.statuses == {name: CaseStatus(status) for name, status in said.items()}
        assert all(case.passed == (case.status in ("passed", "xpassed")) for case in result.cases)
        assert {"test_it.py::test_ids[a b]", "test_it.py::test_ids[[x]]", "test_it.py::test_ids[x0]"} <= set(said)


@pytest.mark.parametrize(
    "name", every(3, [*sorted(UNCOUNTED), "test_skip_mark or test_skipif or test_skip_fixture or xfail_not_run"])
)
def test_one_of_them_beside_one_that_passes(name: str, sandbox: aviato.Sandbox, session: aviato.Session) -> None:
    chosen = name.rsplit("::", 1)[-1]
    command = [*PYTEST, "-k", f"test_passes or {chosen}"]
    plain = bare(session, PYTEST_KINDS, command)
    files = {"test_it.py": PYTEST_KINDS.encode(), "tools.zip": tools()}
    for mode in ("separate", "in_process"):
        result = sandbox.grade(files, command, result_paths=["solution.py"], mode=mode, env=ENV, timeout_seconds=20).result(50)  # type: ignore[arg-type]
        counts = name not in UNCOUNTED or (mode == "separate" and plain.returncode == 0)
        assert result.passed is counts, (mode, result.message, result.cases)


UNITTEST_KINDS = """
import unittest
from solution import double

class TestAll(unittest.TestCase):
    def test_passes(self):
        self.assertEqual(double(2), 4)

    def test_fails(self):
        self.assertEqual(double(2), 5)

    def test_raises(self):
        raise KeyError("x")

    @unittest.skip("decorated")
    def test_skipped(self):
        pass

    @unittest.skipIf(True, "by condition")
    def test_skipped_if(self):
        pass

    def test_skips(self):
        self.skipTest("in the test")

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass

    def test_parts(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(n, 1)

class TestTearDown(unittest.TestCase):
    def tearDown(self):
        raise RuntimeError("late")

    def test_late(self):
        pass

class TestSetUp(unittest.TestCase):
    def setUp(self):
        raise RuntimeError("early")

    def test_early(self):
        pass

class TestSkipsSetUp(unittest.TestCase):
    def setUp(self):
        self.skipTest("early")

    def test_early(self):
        pass

@unittest.skip("all of it")
class TestSkippedClass(unittest.TestCase):
    def test_it(self):
        pass
"""
UNITTEST_SAID = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}
CLASSES = """

class TestSetUpClass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("early")

    def test_one(self):
        pass

    def test_two(self):
        pass

class TestSkipsClass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("early")

    def test_three(self):
        pass
"""


def test_statuses_of_unittest(session: aviato.Session, sandbox: aviato.Sandbox) -> None:
    plain = bare(session, UNITTEST_KINDS, UNITTEST)
    lines = re.findall(r"^(test_\w+) \((\S+?)\).* \.\.\. (.*)$", plain.stderr, re.MULTILINE)
    said = {
        (where if where.endswith(name) else f"{where}.{name}"): UNITTEST_SAID.get(word, word.split(" ")[0])
        for name, where, word in lines
    }
    parts = "test_it.TestAll.test_parts"
    said[parts] = "failed"  # Its line is not ended, since its parts have lines of their own.
    assert len(said) == 13 and plain.returncode == 1, plain.stderr
    for mode in ("separate", "in_process"):
        result = graded(sandbox, UNITTEST_KINDS, UNITTEST, mode)
        assert {case.name: str(case.status) for case in result.cases} == said
        assert not result.passed


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
def test_what_unittest_says_of_classes_is_said_of_their_tests(sandbox: aviato.Sandbox, mode: str) -> None:
    result = graded(sandbox, f"import unittest\n{CLASSES}", UNITTEST, mode)
    assert {name.split(".", 1)[1]: str(status) for name, status in result.statuses.items()} == {
        "TestSetUpClass.test_one": "error",
        "TestSetUpClass.test_two": "error",
        "TestSkipsClass.test_three": "skipped",
    }


def test_a_name_that_comes_twice_has_the_worse_status(sandbox: aviato.Sandbox) -> None:
    test = "import unittest\nfrom more import TestMore\nclass TestIt(unittest.TestCase):\n    def test_it(self): pass\n"
    more = (
        b"import unittest\nn = 0\nclass TestMore(unittest.TestCase):\n    def test_more(self):\n"
        b"        global n\n        n += 1\n        self.assertEqual(n, 1)\n"
    )
    again = b"from more import TestMore\n"
    result = graded(sandbox, test, UNITTEST, "separate", files={"more.py": more, "test_again.py": again})
    assert sorted(case.name for case in result.cases) == ["more.TestMore.test_more"] * 2 + ["test_it.TestIt.test_it"]
    assert result.statuses == {"more.TestMore.test_more": "failed", "test_it.TestIt.test_it": "passed"}


LIMITS = {
    "while True: pass": CaseStatus.TIMED_OUT,
    "bytearray(1 << 40)": CaseStatus.FAILED,
    "import os; os._exit(0)": CaseStatus.FAILED,
    "keep = [bytearray(1 << 20) for _ in range(4096)]": CaseStatus.OUT_OF_MEMORY,
}


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize("body", LIMITS)
def test_what_ends_the_command_is_the_status_of_the_test_under_way(session: aviato.Session, body: str, mode: str) -> None:
    sandbox = session.sandbox(resources={"memory": "256Mi"})
    test = f"def test_a(): pass\ndef test_b():\n    {body}\ndef test_c(): pass\n"
    for seconds in (4, 20) if "while" in body else (20,):
        result = graded(sandbox, test, PYTEST, mode, result_paths=[], timeout_seconds=seconds)
        if result.cases:
            break  # Else the machine is busy, and pytest had not come to the tests.
    status = LIMITS[body]
    last = "passed" if "1 << 40" in body else "not_run"
    assert [str(case.status) for case in result.cases] == ["passed", str(status), last]
    assert not result.passed and result.exec_result.timed_out is (status is CaseStatus.TIMED_OUT)
    assert result.exec_result.oom_killed is (status is CaseStatus.OUT_OF_MEMORY)


TEXTS = {
    "control characters": "raise ValueError('\\0\\x1b[31m\\r\\n\\x07')",
    "lone surrogates": "raise ValueError('a\\ud800b')",
    "a text of 30 MB": "raise ValueError('x' * (30 << 20))",
    "an error that has no text": "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "a name of a kind": "raise type('a\\nb\\0\\ud800', (Exception,), {})('x')",
    "binary output": "import os\n    os.write(1, bytes(range(256)) * 4096)\n    os.write(2, b'\\xff\\0')\n    assert 0",
    "a surrogate that is printed": "import os\n    os.write(1, '\\ud800'.encode(errors='surrogatepass'))\n    assert 0",
    "an end of the line that is none": "raise ValueError('a\\u2028b\\x85c\\x0bd')",
}
CALLS = {
    "pytest": ("from solution import f\ndef test_it():\n    assert f(1) == 2\n", PYTEST),
    "unittest": (
        "import unittest\nfrom solution import f\nclass TestIt(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(f(1), 2)\n",
        UNITTEST,
    ),
    "a script": ("from solution import f\nassert f(1) == 2\n", ["python3", "test_it.py"]),
}


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize("kind", TEXTS)
def test_whatever_is_written_reaches_a_verdict(session: aviato.Session, kind: str, mode: str) -> None:
    sandbox = session.sandbox()
    sandbox.write_file("solution.py", f"def f(n):\n    {TEXTS[kind]}\n".encode()).result()
    for test, command in CALLS.values():
        result = graded(sandbox, test, command, mode)
        assert not result.passed and result.message and result.message.isprintable() and len(result.message) <= 2000
        assert all(case.message.isprintable() and len(case.message) <= 2000 for case in result.cases)
        for text in (result.message, result.exec_result.stdout, result.exec_result.stderr):
            text.encode()  # no lone surrogate


def test_a_text_that_is_shown_is_one_printable_line() -> None:
    from aviato.values.text import encode, is_unicode, shown

    for text, line in (
        ("plain é ☃", "plain é ☃"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x1b[31m", "\\x00\\x1b[31m"),
        ("\ud800", "\\ud800"),
        ("\u202etext", "\\u202etext"),
        ('it\'s "x"', 'it\'s "x"'),
    ):
        assert shown(text) == line and shown(text).isprintable()
        assert encode(text).decode("utf-8", "surrogatepass") == text
        assert is_unicode(text) is ("\ud800" not in text)
    assert shown("x" * 10_000_000, 10) == "x" * 9 + "…" and len(shown("\0" * 5000)) == 2000


VERSIONS = ["3.8", "3.9", "3.10", "3.12", "3.13"]


@pytest.mark.parametrize("version", deep(VERSIONS))
def test_statuses_of_unittest_of_other_versions(session: aviato.Session, sandbox: aviato.Sandbox, version: str) -> None:
    test = f"{UNITTEST_KINDS}{CLASSES}"
    usual = graded(sandbox, test, UNITTEST, "in_process").statuses
    other = session.sandbox(container_image=f"python:{version}")
    try:
        other.write_file("solution.py", SOLUTION.encode()).result()
    except aviato.SandboxImageError:
        pytest.skip(f"no Python {version} here")
    for mode in ("separate", "in_process"):
        assert graded(other, test, UNITTEST, mode).statuses == usual
    with pytest.raises(aviato.SandboxExecutionError, match="no_such_module"):
        graded(other, f"import no_such_module\n{UNITTEST_KINDS}", UNITTEST, "in_process")
