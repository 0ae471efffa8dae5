"""A grader that cannot run is no verdict; a solution that makes it look so is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from tests.attacks.grading.test_hacks import ENV, tools
from tests.matrices import deep

RIGHT = "def double(n):\n    return 2 * n\n"
WRONG = "def double(n):\n    return 0\n"
PYTEST = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py"]
UNITTEST = ["python3", "-m", "unittest", "-q"]
SCRIPT = ["python3", "test_it.py"]
GOOD = "from solution import double\ndef test_it():\n    assert double(2) == 4\n"
CASE = (
    "import unittest\nfrom solution import double\nclass TestIt(unittest.TestCase):\n"
    "    def test_it(self):\n        self.assertEqual(double(2), 4)\n"
)
PLAIN = "from solution import double\nassert double(2) == 4\n"


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    return session.sandbox()


def grade(
    sandbox: aviato.Sandbox, test: str, command: list[str], solution: str, mode: str, **options: Any
) -> aviato.GradeResult:
    sandbox.write_file("solution.py", solution.encode()).result()
    files = {"test_it.py": test.encode(), **({"tools.zip": tools()} if "pytest" in command else {}), **options.pop("files", {})}
    given: dict[str, Any] = {"result_paths": ["solution.py"], "timeout_seconds": 20, "env": ENV, **options}
    return sandbox.grade(files, command, mode=mode, **given).result(55)  # type: ignore[arg-type]


BROKEN: dict[str, tuple[str, list[str], dict[str, Any], str]] = {
    "no interpreter": (GOOD, ["python3.1", "-m", "pytest"], {}, "python3.1: command not found"),
    "no pytest": (GOOD, PYTEST, {"env": {}}, "No module named 'pytest'"),
    "pytest, syntax": ("def test_it(:\n", PYTEST, {}, "SyntaxError"),
    "pytest, syntax after an import": (f"{GOOD}def test_more(:\n", PYTEST, {}, "SyntaxError"),
    "pytest, a missing module": (f"import no_such_module\n{GOOD}", PYTEST, {}, "No module named 'no_such_module'"),
    "pytest, a missing module after the solution": (f"{GOOD}import no_such_module\n", PYTEST, {}, "no_such_module"),
    "pytest, a missing module in a test": ("def test_it():\n    import no_such_module\n", PYTEST, {}, "no_such_module"),
    "pytest, a missing name": (f"from json import no_such_name\n{GOOD}", PYTEST, {}, "no_such_name"),
    "pytest, a missing module in conftest": (GOOD, PYTEST, {"files": {"conftest.py": b"import no_such_module"}}, "pytest"),
    "pytest, an unknown option": (GOOD, [*PYTEST, "--no-such-option"], {}, "code 4"),
    "pytest, a missing file": (GOOD, [*PYTEST, "test_other.py"], {}, "code 4"),
    "pytest, no tests": ("def it(): pass\n", PYTEST, {}, "code 5"),
    "pytest, a fault of its own": (f"{GOOD}1 / 0\n", PYTEST, {}, "ZeroDivisionError"),
    "unittest, syntax": ("class (:\n", UNITTEST, {}, "SyntaxError"),
    "unittest, a missing module": (f"{CASE}import no_such_module\n", UNITTEST, {}, "no_such_module"),
    "unittest, no tests": ("import unittest\n", UNITTEST, {}, "no tests"),
    "unittest, a missing module in a test": (
        f"{CASE}\n    def test_more(self):\n        import no_such_module\n",
        UNITTEST,
        {},
        "no_such_module",
    ),
    "a script, syntax": (f"{PLAIN}assert (\n", SCRIPT, {}, "SyntaxError"),
    "a script, a missing module": (f"import no_such_module\n{PLAIN}", SCRIPT, {}, "no_such_module"),
    "a script, a missing module after the solution": (
        f"from solution import double\nimport no_such_module\n{PLAIN}",
        SCRIPT,
        {},
        "no_such_module",
    ),
    "a script, a helper's syntax": (
        f"import helper\n{PLAIN}",
        SCRIPT,
        {"files": {"helper.py": b"def f(:"}},
        "helper.py: SyntaxError",
    ),
    "a script, a helper's missing module": (
        f"import helper\n{PLAIN}",
        SCRIPT,
        {"files": {"helper.py": b"import no_such_module"}},
        "no_such_module",
    ),
    "a script that is not there": (PLAIN, ["python3", "check.py"], {}, "check.py: no such file"),
}
ELSEWHERE: dict[str, tuple[list[str], str]] = {
    "a program": (["no-such-program", "x"], "command not found"),
    "a program in a shell": (["sh", "-c", "no-such-program check.py"], "no-such-program"),
    "a program without permission": (["/etc/passwd"], "Permission denied"),
}


IN_BOTH = ("pytest, syntax", "pytest, a missing module after the solution", "unittest, syntax")
"""Kinds of each program that runs tests, which are tried in both modes. What a script is costs little."""


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, "in_process") for kind in BROKEN),
        *deep((kind, "separate") for kind in BROKEN if kind in IN_BOTH or kind.startswith("a script")),
    ],
)
def test_a_grader_that_cannot_run_is_no_verdict(kind: str, mode: str, sandbox: aviato.Sandbox) -> None:
    test, command, options, why = BROKEN[kind]
    for solution in (RIGHT, WRONG):
        with pytest.raises(aviato.SandboxExecutionError) as caught:
            print(grade(sandbox, test, command, solution, mode, **dict(options)))
        error = caught.value
        assert (error.reason, error.is_infrastructure, error.retryable) == ("grader_failed", True, False)
        assert why in str(error) and error.exec_result is not None and error.exec_result.command == tuple(command)


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_any_other_program_that_is_not_there(kind: str, sandbox: aviato.Sandbox) -> None:
    command, why = ELSEWHERE[kind]
    with pytest.raises(aviato.SandboxExecutionError, match=why) as caught:
        grade(sandbox, PLAIN, command, RIGHT, "separate")
    assert caught.value.reason == "grader_failed"


@pytest.mark.parametrize("where", ["", "src/"], ids=["beside a package", "in a package"])
@pytest.mark.parametrize("kind", ["unittest", "pytest"])
def test_frameworks_ask_a_package_of_the_solution_for_nothing(kind: str, where: str, session: aviato.Session) -> None:
    """Which look in any package, and in what is called a test, for names of their own."""
    sandbox = session.sandbox()
    test = (GOOD if kind == "pytest" else CASE).replace("from solution", "from src.solution")
    command = {"pytest": PYTEST[:-1], "unittest": UNITTEST}[kind]
    files = {f"{where}test_it.py": test.encode(), **({"tools.zip": tools()} if kind == "pytest" else {})}
    for path in ("src/__init__.py", "src/test_more.py", "src/sub/__init__.py", "src/sub/test_more.py"):
        sandbox.write_file(path, b"").result()
    for solution in (RIGHT, WRONG):
        sandbox.write_file("src/solution.py", solution.encode()).result()
        graded = sandbox.grade(files, command, result_paths=["src/"], timeout_seconds=20, env=ENV).result(55)
        assert graded.passed is (solution == RIGHT), graded.exec_result.stderr + graded.exec_result.stdout
    files[f"{where}test_it.py"] = b"import no_such_module\n" + test.encode()
    paths = ["src/__init__.py", "src/solution.py"]
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        sandbox.grade(files, command, result_paths=paths, timeout_seconds=20, env=ENV).result(55)
    assert caught.value.reason == "grader_failed"


@pytest.mark.parametrize("options", [{"result_paths": ["src/"]}, {"result_paths": ["**/*.py"]}])
def test_a_tool_that_is_missing_is_none_that_a_pattern_could_find(options: dict[str, Any], sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("src/more.py", b"").result()
    with pytest.raises(aviato.SandboxExecutionError, match="No module named 'pytest'") as caught:
        grade(sandbox, GOOD, PYTEST, RIGHT, "separate", env={}, **options)
    assert caught.value.reason == "grader_failed"
    test = f"import helpers\n{CASE}"
    assert not grade(sandbox, test, UNITTEST, RIGHT, "separate", **options).passed, "that is left to the policy to make"


MODULE_LEVEL = "from solution import double\nFOUR = double(2)\ndef test_it():\n    assert FOUR == 4\n"
SUBCLASS = "from solution import Base\nclass Mine(Base): pass\ndef test_it():\n    assert Mine().f() == 4\n"
DATA = "import json\nDATA = json.load(open('out.json'))\ndef test_it():\n    assert DATA == 4\n"
EVERY = "def double(n):\n    {0}\n"
BOTH = {
    "a missing module": "import no_such_module\n",
    "a missing name": "def triple(n): return n\n",
    "syntax": "def double(:\n",
    "an ImportError": "raise ImportError(\"No module named 'numpy'\", name='numpy')\n",
    "a SyntaxError": "raise SyntaxError('invalid syntax')\n",
    "a ModuleNotFoundError of json": "raise ModuleNotFoundError(\"No module named 'json'\", name='json')\n",
    "a returncode of a shell": "import os\nos._exit(127)\n",
    "late, a missing module": EVERY.format("import no_such_module"),
    "late, a SyntaxError": EVERY.format("raise SyntaxError('invalid syntax')"),
    "late, a returncode": EVERY.format("import os; os._exit(127)"),
}
"""Solutions that make a good grader look broken."""
GRADERS = {
    "pytest": (
        f"import json\n{GOOD}def test_more():\n    import json\n    assert json.loads('4') == double(2) and json.dumps\n",
        PYTEST,
    ),
    "unittest": (f"{CASE}        import json\n        self.assertEqual(json.loads('4'), double(2))\n", UNITTEST),
    "a script": (f"{PLAIN}import json\nassert json.loads('4') == double(2)\n", SCRIPT),
    "pytest, at its module's level": (MODULE_LEVEL, PYTEST),
}


FEW = ("a missing module", "late, a missing module", "late, a SyntaxError")
CHOSEN = [(way, grader) for way in BOTH for grader in GRADERS if way in FEW or grader in ("unittest", "a script")]


@pytest.mark.parametrize("mode", ["in_process", *deep(["separate"])])
@pytest.mark.parametrize(("way", "grader"), CHOSEN)
def test_what_a_solution_does_is_its_own_failure(way: str, grader: str, mode: str, sandbox: aviato.Sandbox) -> None:
    test, command = GRADERS[grader]
    result = grade(sandbox, test, command, BOTH[way], mode)
    assert not result.passed and result.message


@pytest.mark.deep
def test_a_class_to_derive_from_and_data_that_are_missing_or_wrong(sandbox: aviato.Sandbox) -> None:
    assert not grade(
        sandbox, SUBCLASS, PYTEST, "class Base:\n    def __init_subclass__(cls): raise ImportError('x')\n", "in_process"
    ).passed
    for content in (b"", b"{", b"5"):
        sandbox.write_file("out.json", content).result()
        for mode in ("separate", "in_process"):
            assert not grade(sandbox, DATA, PYTEST, RIGHT, mode, result_paths=["solution.py", "out.json"]).passed


def test_what_no_program_can_be_given_is_refused_before_anything_runs() -> None:
    sandbox = aviato.Sandbox()
    long = "x" * (128 << 10)
    refused: list[tuple[list[str], dict[str, str], str]] = [
        (["python3", "test_it.py", long], {}, "argument 2 of the command has 131072 bytes"),
        (["make", *["y" * 100_000] * 21], {}, "have 21"),
        (["python3", "test_it.py"], {"LONG": long}, "variable 'LONG' has 131077 bytes"),
        (["python3", "test_it.py", "\ud800"], {}, "lone surrogate"),
    ]
    for command, env, why in refused:
        with pytest.raises(aviato.AviatoValidationError, match=why):
            sandbox.grade({"test_it.py": b""}, command, result_paths=[], env=env)
    with pytest.raises(aviato.AviatoValidationError, match="no Unicode"):
        sandbox.grade({"\ud800": b""}, ["make"], result_paths=[])


def test_variables_of_the_sandbox_count_too(session: aviato.Session) -> None:
    sandbox = session.sandbox(environment_variables={f"V{n}": "v" * 100_000 for n in range(10)})
    with pytest.raises(aviato.AviatoValidationError, match="in all"):
        sandbox.grade({}, ["true", *["y" * 100_000] * 15], result_paths=[]).result(30)


def test_many_names_of_tests_are_no_arguments(sandbox: aviato.Sandbox) -> None:
    """Lists of tests, as SWE-bench has them, go over by another way."""
    command = [*PYTEST[:-1], *[f"test_it.py::test_{'n' * 90}_{n}" for n in range(2000)]]
    test = "".join(f"def test_{'n' * 90}_{n}(): pass\n" for n in range(2000))
    result = grade(sandbox, test, command, RIGHT, "separate", timeout_seconds=50)
    assert result.passed and len(result.statuses) == 2000


def test_a_grader_that_is_lost_is_no_verdict(sandbox: aviato.Sandbox) -> None:
    """Without it tests would ask nobody, and be taken for failed."""
    kills = (
        "import os, signal\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    words = open(f'/proc/{pid}/cmdline').read().split('\\0')\n"
        "    if words[:2] == ['python3', '-I']: os.kill(int(pid), signal.SIGKILL)\n"
    )
    with pytest.raises(aviato.SandboxExecutionError, match="the grader was lost") as caught:
        grade(sandbox, PLAIN + kills + PLAIN, SCRIPT, RIGHT, "separate")
    assert (caught.value.reason, caught.value.is_infrastructure) == ("grader_lost", True)


def test_in_an_image_with_a_user(session: aviato.Session) -> None:
    """Who may write to little runs graders as well as root does."""
    with session.sandbox(container_image=aviato.Image.from_("host").workdir("/srv/work").user("daemon")) as sandbox:
        for mode in ("separate", "in_process"):
            found = [grade(sandbox, PLAIN, SCRIPT, solution, mode).passed for solution in (RIGHT, WRONG)]
            assert found == [True, False], mode
