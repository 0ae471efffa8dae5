"""What decides cannot run: that is said, and is no verdict on the code. Nothing that the code does can bring it about."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import CallCase, CaseStatus, Outcome, ProgramCase, Task, Verdict, evaluate
from tests.matrices import deep

RIGHT = "def f(n):\n    return 2 * n\n"
WRONG = "def f(n):\n    return n\n"

TESTS = {
    "a module that is missing": "import no_such_module\nassert f(2) == 4",
    "a name that is missing in one": "from math import no_such_name\nassert f(2) == 4",
    "a submodule that is missing": "import os.no_such_module\nassert f(2) == 4",
    "a module that is missing, in a function": "def check(g):\n    import no_such_module\n    assert g(2) == 4\ncheck(f)",
    "a module that is missing, in a test function": "def test_f():\n    import no_such_module\n    assert f(2) == 4",
    "one of several": "import math, no_such_module\nassert f(2) == 4",
    "under if": "if True:\n    import no_such_module\nassert f(2) == 4",
    "a star": "from no_such_module import *\nassert f(2) == 4",
    "by import_module": "import importlib\nm = importlib.import_module('no_such_module')\nassert m.g(f(2)) == 4",
    "by __import__": "assert __import__('no_such_module.sub').g(f(2)) == 4",
    "tried, and let go on its way": "try:\n    import no_such_module\nfinally:\n    pass\nassert f(2) == 4",
    "tried for another failure": "try:\n    import no_such_module\nexcept ValueError:\n    pass\nassert f(2) == 4",
    "where nothing failed": "try:\n    pass\nexcept ValueError:\n    pass\nelse:\n    import no_such_module\nassert f(2) == 4",
    "where something failed": "try:\n    {}[0]\nexcept KeyError:\n    import no_such_module\nassert f(2) == 4",
    "finally": "try:\n    pass\nfinally:\n    import no_such_module\nassert f(2) == 4",
    "finally, after a call": "try:\n    assert f(2) == 4\nfinally:\n    import no_such_module",
    "after a check": "assert f(2) == 4\nimport no_such_module",
    "in a test function, after a call": "def test_f():\n    n = f(2)\n    import no_such_module\n    assert n == 4",
    "in a function, after a call": "def check(g):\n    n = g(2)\n    import no_such_module\n    assert n == 4\ncheck(f)",
    "in a class": "class A:\n    import no_such_module\nassert f(2) == 4",
    "in a test class": (
        "import unittest\nclass T(unittest.TestCase):\n    def setUp(self):\n        import no_such_module\n"
        "    def test_f(self): self.assertEqual(f(2), 4)"
    ),
    "by exec": "exec('import no_such_module')\nassert f(2) == 4",
    "by runpy": "import runpy\nrunpy.run_module('no_such_module')\nassert f(2) == 4",
    "in a loop": "for n in (1, 2):\n    import no_such_module\n    assert f(n) == 2 * n",
    "a file that is no Python": "import broken\nassert f(2) == 4",
    "a file that imports what is missing": "import lacking\nassert f(2) == 4",
    "a file that lacks a name": "from lacking_all import g\nassert f(2) == g(2)",
    "a file that fails": "import failing\nassert f(2) == 4",
    "a file that fails, in a function": "def test_f():\n    from failing import g\n    assert f(2) == g(2)",
    "numpy, where there is none": "import numpy as np\nnp.testing.assert_allclose(f(2), 4)",
}


FILES = {"broken.py": b"def (", "lacking.py": b"import no_such_module", "lacking_all.py": b"", "failing.py": b"1 / 0"}


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize("name", TESTS)
def test_tests_that_cannot_be_loaded(name: str, mode: str, outcomes: Callable[..., list[Outcome]]) -> None:
    if mode == "separate" and "import *" in TESTS[name]:
        pytest.skip("refused when the Task is made")
    tasks = [Task(code=code, tests=[TESTS[name]], files=FILES, grading=mode, code_names=["f"]) for code in (RIGHT, WRONG)]
    # A wrong answer ends a test before an import that stands behind.
    for found in outcomes(tasks)[: 1 if name == "after a check" else 2]:
        if name.startswith("numpy") and not found.is_infrastructure:
            pytest.skip("numpy is there")
        assert (found.verdict, found.reward()) == (Verdict.INFRASTRUCTURE, None), found
        assert found.error is not None and (found.error.reason, found.error.is_infrastructure) == ("grader_failed", True)
        assert re.search("No module named|cannot import name|invalid syntax|ZeroDivisionError in", found.message), found
        assert found.attempts == 1, "it is not tried again"


GOOD = {
    "what is tried may be missing": "try:\n    import no_such_module\nexcept ImportError:\n    pass\nassert f(2) == 4",
    "what a call may be without": (
        "import importlib\ntry:\n    importlib.import_module('no_such_module')\nexcept ImportError:\n    pass\nassert f(2) == 4"
    ),
    "what is never reached": "if f(2) != 4:\n    import no_such_module\nassert f(2) == 4",
}


@pytest.mark.parametrize("name", GOOD)
def test_what_tests_can_do_without(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    assert outcomes([Task(code=RIGHT, tests=[GOOD[name]])])[0].passed
    if not name.startswith("what is never"):
        assert outcomes([Task(code=WRONG, tests=[GOOD[name]])])[0].verdict is Verdict.FAILED


UNNEEDED = {
    "a block for the program": "assert f(2) == 4\nif __name__ == '__main__':\n    import no_such_module",
    "another system": "import sys\nif sys.platform == 'win32':\n    import winreg\nassert f(2) == 4",
    "a checker of types": "import typing\nif typing.TYPE_CHECKING:\n    import no_such_module\nassert f(2) == 4",
    "a function that nobody calls": "def g():\n    import no_such_module\nassert f(2) == 4",
    "suppressed": "import contextlib\nwith contextlib.suppress(ImportError):\n    import no_such_module\nassert f(2) == 4",
    "expected to fail": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
        "        with self.assertRaises(ImportError):\n            import no_such_module\n        self.assertEqual(f(2), 4)"
    ),
    "tried for any failure": "try:\n    import no_such_module\nexcept Exception:\n    pass\nassert f(2) == 4",
    "tried for one of several": "try:\n    import no_such_module\nexcept (KeyError, ImportError):\n    pass\nassert f(2) == 4",
    "when the code fails": "try:\n    n = f(2)\nexcept Exception:\n    import no_such_module\n    raise\nassert n == 4",
    "by a choice": "g = __import__('no_such_module').g if f(2) == 5 else f\nassert g(2) == 4",
    "in a lambda": "g = lambda: __import__('no_such_module')\nassert f(2) == 4",
    "from the code's module": "from solution import f as g\nassert g(2) == 4",
    "from the main module": "from __main__ import f as g\nassert g(2) == 4",
    "a helper that imports the code": "import helper\nassert helper.g() == 4 and f(2) == 4",
}
LOOKS_LIKE = {
    "no Python": "def f(n:\n",
    "an import of its own": "import no_such_module_of_the_code\n" + RIGHT,
    "an import when it is called": "def f(n):\n    import no_such_module\n    return 4",
    "what it raises": "def f(n): raise ImportError('x')",
    "just what the tests would raise": "raise ModuleNotFoundError(\"No module named 'no_such_module'\")",
}


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize("name", UNNEEDED)
def test_what_tests_never_import_is_no_excuse_for_the_code(
    name: str, mode: str, outcomes: Callable[..., list[Outcome]]
) -> None:
    if mode == "separate" and name in ("from the main module", "a helper that imports the code"):
        pytest.skip("names of the code are those of the test itself")
    files = {"helper.py": b"from solution import f\ndef g(): return f(2)\n"}
    codes = [RIGHT, WRONG, *LOOKS_LIKE.values()]
    names = [] if name == "from the code's module" else ["f"]
    tasks = [Task(code=code, tests=[UNNEEDED[name]], files=files, grading=mode, code_names=names) for code in codes]
    assert [one.reward() for one in outcomes(tasks)] == [1.0, *[0.0] * (len(codes) - 1)]


PRELUDES = {
    "a module that is missing": "import no_such_module",
    "no Python": "def (",
    "an exception": "x = 1 / 0",
    "a name that nobody defines": "y = no_such_name",
    "a file of the task that fails": "from failing import g",
    "an end": "import sys\nsys.exit(0)",
}


@pytest.mark.parametrize("name", PRELUDES)
def test_a_prelude_that_fails_is_no_matter_of_the_code(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    tests = (["assert f(2) == 4"], [CallCase("f", [2], 4)])
    tasks = [Task(code=c, tests=t, prelude=PRELUDES[name], files=FILES) for c in (RIGHT, WRONG, "(") for t in tests]
    for found in outcomes(tasks):
        assert found.error is not None and (found.reward(), found.error.reason) == (None, "grader_failed"), found
        assert "prelude" in found.message or "no_such_module" in found.message
    good = [Task(code=c, tests=t, prelude="import math") for c in (RIGHT, WRONG, "(", "import math2") for t in tests]
    assert [one.reward() for one in outcomes(good)] == [1.0, 1.0, *[0.0] * 6]


CODES = {
    "imports what is missing": "import no_such_module\n" + RIGHT,
    "raises ModuleNotFoundError": "raise ModuleNotFoundError('No module named pytest')",
    "raises ImportError when it is called": "def f(n): raise ImportError('x')",
    "raises SyntaxError when it is called": "def f(n): raise SyntaxError('x')",
    "is no Python": "def f(n:\n",
    "takes modules away": "import sys\nsys.modules['math'] = None\n" + RIGHT,
    "takes all modules away": "import sys\nsys.meta_path.clear()\nsys.path.clear()\n" + RIGHT,
    "ends with 127": "import os\nos._exit(127)",
    "ends with 126": "import os, sys\nsys.stderr.write('python3: command not found\\n')\nos._exit(126)",
    "makes itself unheard": (
        "import os\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try: fd > 2 and os.close(fd)\n"
        "    except OSError: pass\nos._exit(127)"
    ),
    # The last descriptor says what became of a case; the one before it tells to go on.
    "fills what tells it to go on": (
        "import os\ngo = sorted(map(int, os.listdir('/proc/self/fd')))[-2]\n"
        "os.write(os.open(f'/proc/self/fd/{go}', os.O_WRONLY | os.O_NONBLOCK), b'g' * 60000)\nos._exit(127)"
    ),
    "pretends that it cannot be separated": "class NotSeparable(BaseException): pass\ndef f(n): raise NotSeparable('x')",
    "says that it cannot be separated": "def f(n): raise AssertionError('NotSeparable: x')",
    "kills the process before it": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(127)",
}


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize("name", CODES)
def test_no_code_makes_it_the_graders_failure(name: str, mode: str, outcome: Callable[..., Outcome]) -> None:
    tests = ["import math\nassert f(math.floor(2.5)) == 4"]
    found = outcome(Task(code=CODES[name], tests=tests, grading=mode))
    assert found.reward() == 0.0 or (found.passed and mode == "separate" and "takes" in name), found


@pytest.mark.parametrize("name", CODES)
def test_nor_of_calls_and_programs(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    found = outcomes([
        Task(code=CODES[name], tests=[CallCase("f", [2], 5)]),
        Task(code=CODES[name] + "\nf(2)", expected_output="x"),
    ])  # fmt: skip
    assert [one.reward() for one in found] == [0.0, 0.0], found


def test_a_program_that_takes_its_interpreter_away(outcome: Callable[..., Outcome]) -> None:
    away = (
        "import os, sys\nfor folder in os.environ['PATH'].split(':'):\n"
        "    for name in os.listdir(folder) if os.path.isdir(folder) else ():\n"
        "        if 'python' in name:\n            try: os.remove(os.path.join(folder, name))\n"
        "            except OSError: pass\nprint('ok')"
    )
    found = outcome(Task(code=away, tests=[ProgramCase("", "ok"), ProgramCase("", "ok"), ProgramCase("", "no")]))
    assert found.reward() == 0.0 and found.cases[0].passed


COMPILED = {
    "asks for a loader that is not there": (
        '__attribute__((section(".interp"))) const char loader[] = "/no/such/loader";\nint main() { return 0; }'
    ),
    "includes what is not there": "#include <no/such/file.h>\nint main() { return 0; }",
    "includes without end": '#include "main.c"\n',
    "has no main": "int x;",
    "is an error": "#error g++: command not found\nint main() { return 0; }",
}


@pytest.mark.parametrize("name", COMPILED)
def test_nor_by_what_is_compiled(name: str, outcome: Callable[..., Outcome]) -> None:
    found = outcome(Task(code=COMPILED[name], language="c", tests=[ProgramCase("", "x"), ProgramCase("", "y")]))
    if "no gcc" in found.message:
        pytest.skip(found.message)
    assert found.reward() == 0.0, found


COMMANDS = {
    "no such program": (["no-such-program", "x"], None),
    "a word of 200,000 characters": (["echo", "x" * 200_000], None),
    "words of 3 MB together": (["echo", *["x" * 100_000] * 30], None),
    "a shell's own 127": (["sh", "-c", "no-such-program"], 0.0),
    "a shell's own 126": (["sh", "-c", "exit 126"], 0.0),
    "a path that is not there": (["./main", "x"], 0.0),
    "NUL in a word": (["echo", "a\0b"], 0.0),
    "NUL in the program": (["ec\0ho"], 0.0),
    "a lone surrogate": (["echo", "\ud800"], 0.0),
    "an empty word": (["echo", ""], 1.0),
    "an empty program": ([""], 0.0),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_cannot_be_started(name: str, outcome: Callable[..., Outcome]) -> None:
    words, reward = COMMANDS[name]
    found = outcome(Task(command=words))
    assert found.reward() == reward, found
    assert (found.error is not None and found.error.reason == "grader_failed") is (reward is None)


def test_no_interpreter_in_the_image(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A root directory with a shell and nothing else."""
    root = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    try:
        bare_root(root)
        monkeypatch.setenv("AVIATO_BASE_URL", make_server(image=f"bare={root}").url)
        tasks = [
            Task(code=RIGHT, tests=["assert f(2) == 4"]),
            Task(code=RIGHT, tests=[CallCase("f", [2], 4)]),
            Task(code="print('ok')", expected_output="ok"),
            Task(code="int main() {}", language="c", expected_output=""),
            Task(command=["python3", "-c", "pass"]),
            Task(code=RIGHT, tests=["assert f(2) == 4"], grading="separate"),
            Task(code=RIGHT, tests=["n = 2\nassert f(n) == 4"], grading="separate"),
            Task(code="echo ok", language="bash", expected_output="ok"),
            Task(command=["sh", "-c", "exit 3"]),
        ]
        found = evaluate(tasks, container_image="dir:bare", retry_budget_seconds=5).result(50)
    finally:
        shutil.rmtree(root)
    images = [one for one in found if one.error is not None and isinstance(one.error, aviato.SandboxImageError)]
    if images:
        pytest.skip(f"no directory can be an image here: {images[0].message}")
    assert [one.reward() for one in found] == [None] * 8 + [0.0], found
    assert all(one.error is not None and one.error.reason == "grader_failed" for one in found[:8]), found
    assert [one.attempts for one in found] == [1] * 9, "it is not tried again"


def bare_root(root: Path) -> None:
    """Put a shell there, and what it needs."""
    for name in ("tmp", "proc", "dev", "sys", "run", "etc", "root", "workspace", "usr/bin", "bin"):
        (root / name).mkdir(parents=True)
    for program in filter(None, map(shutil.which, ("sh", "head", "mkdir", "cat"))):
        shutil.copy(program, root / "bin" / Path(program).name)
        said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for word in said.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    root.chmod(0o755)


def test_a_case_that_reaches_no_check_has_not_passed(outcomes: Callable[..., list[Outcome]]) -> None:
    tests = {
        "for n in f(0) or []: assert n == 1": "not_checked",
        "if f(0):\n    assert f(2) == 4": "not_checked",
        "import unittest\nif not f(0): raise unittest.SkipTest('no')\nassert f(2) == 4": "skipped",
        "for n in [2]: assert f(n) == 4": "passed",
    }
    found = outcomes([Task(code=RIGHT, tests=[test]) for test in tests])
    assert [one.cases[0].reason for one in found] == list(tests.values()), found
    assert [one.reward() for one in found] == [0.0, 0.0, 0.0, 1.0]
    assert [one.cases[0].status for one in found[:3]] == [CaseStatus.NOT_RUN, CaseStatus.NOT_RUN, CaseStatus.SKIPPED]


def test_tests_that_are_defined_are_run(outcomes: Callable[..., list[Outcome]]) -> None:
    pytests = "def test_two():\n    assert f(2) == 4\ndef test_three():\n    assert f(3) == 6"
    units = (
        "import unittest\nclass T(unittest.TestCase):\n    def test_two(self): self.assertEqual(f(2), 4)\n"
        "if __name__ == '__main__': unittest.main()"
    )
    humaneval = "def check(candidate):\n    assert candidate(2) == 4\ncheck(f)"
    for source in (pytests, units, humaneval, "from solution import f as g\ndef test_g(): assert g(2) == 4"):
        right, wrong = outcomes([Task(code=code, tests=[source]) for code in (RIGHT, WRONG)])
        assert (right.verdict, wrong.verdict) == (Verdict.PASSED, Verdict.FAILED), (source, right, wrong)


def test_tests_that_can_check_nothing_are_refused() -> None:
    for source in (
        "f(2) == 4",
        "[1, 2]",
        "# assert f(2) == 4",
        "def check(c):\n    assert c(2) == 4",
        "print(f(2))",
        "assert f(2) == 4 if",
    ):
        with pytest.raises(aviato.AviatoValidationError, match="can check nothing"):
            Task(code=RIGHT, tests=[source])
