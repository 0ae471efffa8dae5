"""`grade` itself: what it ends, what it copies, what it refuses, and whose fault what is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.core import files
from aviato.grading import hiding
from aviato.rl import Task, evaluate
from tests.attacks.grading.hacks import ASSERTS, PLAIN, RIGHT, UNITTEST, WRONG
from tests.rl.machine import supervisors

pytestmark = pytest.mark.attack

FILES = {"check.py": PLAIN.encode()}
CHECK = ["python3", "check.py"]


@pytest.fixture
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    made = session.sandbox()
    made.write_file("solution.py", RIGHT.encode()).result()
    return made


def grade(sandbox: aviato.Sandbox, test: str, *, results: tuple[str, ...] = ("solution.py",), **options: Any) -> Any:
    return sandbox.grade({"check.py": test.encode()}, CHECK, result_paths=results, timeout_seconds=20, **options).result(50)


def processes(sandbox: aviato.Sandbox) -> set[str]:
    found = sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"]).result().stdout
    return {word for word in found.split() if word in ("1234", "4321")}


def living(sandbox: aviato.Sandbox) -> int:
    return len(sandbox.exec(["sh", "-c", "echo /proc/[0-9]*"]).result().stdout.split())


def test_the_sandbox_keeps_nothing_but_its_main_command(server: Any) -> None:
    with aviato.Sandbox(base_url=server.url, command="sleep", args=["1234"]) as sandbox:
        sandbox.write_file("solution.py", RIGHT.encode()).result()
        daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execvp('sleep', ['sleep', '4321'])"
        assert sandbox.exec(["python3", "-c", daemon]).result().returncode == 0
        command, detached = sandbox.exec(["sleep", "4321"]), sandbox.exec(["sleep", "4321"], detach=True)
        deadline = time.monotonic() + 20
        while processes(sandbox) != {"1234", "4321"}:
            assert time.monotonic() < deadline
        assert grade(sandbox, PLAIN).passed
        assert processes(sandbox) == {"1234"}
        for ended in (command, detached):
            with pytest.raises(aviato.OperationCancelledError):
                ended.result(20)
        assert sandbox.get_status() == "running"


def test_a_fork_bomb_does_not_outlast_it(sandbox: aviato.Sandbox) -> None:
    bomb = (
        "import os\nfor _ in range(3): os.fork()\nwhile True:\n"
        "  try:\n    if os.fork() == 0: os.setsid()\n    else: os._exit(0)\n  except OSError: pass"
    )
    sandbox.exec(["python3", "-c", bomb], detach=True)
    deadline = time.monotonic() + 20
    while living(sandbox) < 8:
        assert time.monotonic() < deadline
    assert grade(sandbox, PLAIN).passed
    assert living(sandbox) <= 3


def test_only_the_named_results_reach_the_graders(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("notes/data.json", b"[1, 2]", mode=0o755).result()
    sandbox.write_file("other.txt", b"not named").result()
    sandbox.write_file("/root/.bashrc", b"exit 0").result()
    test = (
        "import json, os\nassert sorted(os.listdir('.')) == ['aviato_solution.py', 'check.py', 'notes', 'solution.py']\n"
        "assert json.load(open('notes/data.json')) == [1, 2] and not os.access('notes/data.json', os.X_OK)\n"
        "assert 'n * n' not in open('solution.py').read() and '2 * n' not in open('solution.py').read()\n"
        "from aviato_solution import run\n"
        "assert run(['sh', '-c', 'cat; ls; exit 3'], stdin='in ') == (3, 'in notes\\nsolution.py\\n', '')\n"
    )
    graded = grade(sandbox, test, results=("solution.py", "notes/data.json"))
    assert graded.passed, graded.exec_result.stderr
    assert sandbox.exec(["ls"]).result().stdout.split() == ["notes", "other.txt", "solution.py"]


def test_code_of_the_policy_is_not_run_by_the_grader(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("run.sh", b"exit 0").result()
    sandbox.write_file("answer", b"#!/bin/sh\nexit 0", mode=0o755).result()
    results = ["solution.py", "run.sh", "answer"]
    for command in (["python3", "solution.py"], ["sh", "run.sh"], ["sh", "-c", "./answer"], ["python3", "-m", "solution"]):
        graded = sandbox.grade({}, command, result_paths=results, timeout_seconds=20).result(50)
        assert not graded.passed and graded.exec_result.returncode != 0, command
    test = "from aviato_solution import run\nassert run(['sh', 'run.sh'])[0] == 0 and run(['./answer'])[0] == 0"
    assert grade(sandbox, test, results=tuple(results)).passed


def test_what_steers_programs_is_not_taken_over(server: Any) -> None:
    steering = {
        "PYTHONSTARTUP": "x",
        "PYTHONPATH": "/root",
        "LD_LIBRARY_PATH": "/root",
        "PATH": "/root:/usr/bin",
        "KEPT": "yes",
    }
    with aviato.Sandbox(base_url=server.url, environment_variables=steering) as sandbox:
        sandbox.write_file("solution.py", RIGHT.encode()).result()
        test = (
            "import os\nassert not [name for name in os.environ if name.startswith(('PYTHON', 'LD_'))], os.environ\n"
            "assert os.environ['KEPT'] == 'yes' and '/root:' not in os.environ['PATH'] and os.environ['GIVEN'] == 'too'"
        )
        for mode in ("separate", "in_process"):
            graded = grade(sandbox, test, mode=mode, env={"GIVEN": "too"})
            assert graded.passed, graded.exec_result.stderr


def test_it_is_the_same_kind_of_sandbox(server: Any) -> None:
    options: Any = {"working_dir": "/opt/work", "mounted_files": [{"mount_path": "/data/x", "file_content": "mounted"}]}
    with aviato.Sandbox(base_url=server.url, resources={"memory": "256Mi"}, **options) as sandbox:
        code = "def look(): return open('/data/x').read()\ndef big(): return len(bytearray(1 << 30))"
        sandbox.write_file("solution.py", code.encode()).result()
        test = "import os\nfrom solution import look\nassert look() == 'mounted' and os.getcwd() == '/opt/work'"
        for results in (("solution.py",), ("/opt/work/solution.py",)):
            for mode in ("separate", "in_process"):
                graded = grade(sandbox, test, results=results, mode=mode)
                assert graded.passed, graded.exec_result.stderr
        for mode in ("separate", "in_process"):
            graded = grade(sandbox, "from solution import big\nbig()", mode=mode)
            assert not graded.passed and graded.message


def test_data_crosses_as_it_is_and_nothing_else_does(sandbox: aviato.Sandbox) -> None:
    code = (
        "import collections, enum\nPoint = collections.namedtuple('Point', 'x y')\n"
        "def same(value, *more, **named): return value\n"
        "def takes(values, kind): return [value for value in values if type(value) is kind]\n"
        "def odd(): return [Point(1, 2), collections.Counter('aab'), enum.IntEnum('Kind', 'A B').B]\n"
        "def fails(): raise KeyError('gone')\ndef leaves(): raise SystemExit(0)\ndef function(): return same\n"
        "class Stack(list):\n    def put(self, x): self.append(x); return len(self)\n"
        "class Other:\n    def __init__(self): self.n = 0\n    def more(self, n=1): self.n += n; return self.n\n"
        "def uses(other): return other.more(5)\n"
    )
    test = (
        "from solution import same, takes, odd, fails, leaves, function, Other, uses\n"
        "for value in (None, True, 1, -(10**6000), 1.5, 1e400, 'ä\\ud800\\0', b'\\xff', bytearray(b'x'), 1j, [], [1, [2]],\n"
        "              (1, (2,)), {1, 2}, frozenset({(1,)}), {1: {'a': (None,)}, (1, 2): [3]}, {}):\n"
        "    found = same(value, 1, named=2)\n    assert found == value and type(found) is type(value), (found, value)\n"
        "names = ['Point', 'Counter', 'Kind']\n"
        "assert odd() == [(1, 2), {'a': 2, 'b': 1}, 2] and [type(item).__name__ for item in odd()] == names\n"
        "assert takes([1, 'a'], str) == ['a']\n"
        "other = Other(); assert other.more() == 1 and other.more(n=2) == 3 and uses(other) == 8\n"
        "import aviato_solution\nno_answer = aviato_solution.SolutionFailed\n"
        "wrongs = (fails, KeyError), (leaves, SystemExit), (lambda: eval('other + 1'), TypeError)\n"
        "wrongs += ((lambda: function()(), TypeError),)\n"
        "for wrong, kind in wrongs:\n"
        "    try: wrong()\n    except kind: continue\n    raise AssertionError(wrong)\n"
        "for wrong in ('same == 1', 'same.x', 'bool(same)', 'same(lambda: 1)', 'len(same)'):\n"
        "    try: eval(wrong)\n    except aviato_solution.NotSeparable: continue\n    raise AssertionError('separable')\n"
    )
    sandbox.write_file("solution.py", code.encode()).result()
    graded = grade(sandbox, test)
    assert graded.passed, graded.exec_result.stderr


def test_packages_and_siblings(sandbox: aviato.Sandbox) -> None:
    for path, text in (
        ("pkg/__init__.py", ""),
        ("pkg/inner.py", "from pkg.more import n\ndef f(): return n"),
        ("pkg/more.py", "n = 7"),
    ):
        sandbox.write_file(path, text.encode()).result()
    results = ("pkg/__init__.py", "pkg/inner.py", "pkg/more.py")
    for test in ("from pkg.inner import f; assert f() == 7", "from pkg import inner; assert inner.f() == 7"):
        for mode in ("separate", "in_process"):
            graded = grade(sandbox, test, results=results, mode=mode)
            assert graded.passed, graded.exec_result.stderr


def test_each_test_is_a_case(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("solution.py", WRONG.encode()).result()
    for mode in ("separate", "in_process"):
        graded = sandbox.grade(
            {"test_double.py": UNITTEST.encode()},
            ["python3", "-m", "unittest"],
            result_paths=["solution.py"],
            mode=mode,  # type: ignore[arg-type]
        ).result(50)
        assert not graded.passed and graded.message == "test_double.TestDouble.test_three: AssertionError: 9 != 6"
        assert {case.name.rsplit(".")[-1]: case.passed for case in graded.cases} == {"test_two": True, "test_three": False}
        assert all(case.duration_seconds > 0 for case in graded.cases)
        assert graded.exec_result.command == ("python3", "-m", "unittest") and "FAILED" in graded.exec_result.stderr


def test_a_solution_that_never_answers_runs_out_of_time(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("solution.py", b"def double(n):\n    while True: pass").result()
    for mode in ("separate", "in_process"):
        graded = sandbox.grade(FILES, CHECK, result_paths=["solution.py"], mode=mode, timeout_seconds=0.7).result(50)  # type: ignore[arg-type]
        assert not graded.passed and graded.exec_result.timed_out and "time limit" in graded.message


def test_results_that_are_none(sandbox: aviato.Sandbox) -> None:
    sandbox.exec(["sh", "-c", "ln -s /etc/passwd link; mkfifo fifo; mkdir folder; truncate -s 300M large"], check=True).result()
    sandbox.exec(["sh", "-c", "ln -s /proc/self kernel; ln -s /proc/self/fd/6 layer"], check=True).result()
    reasons = {"missing": "no_such_file", "large": "too_large"}
    for path in ("missing", "link", "fifo", "folder", "large", "kernel/maps", "layer/etc/hosts"):
        with pytest.raises(aviato.SandboxFileError) as caught:
            sandbox.grade(FILES, CHECK, result_paths=[path]).result(20)
        error = caught.value
        assert (error.filepath, error.reason) == (path, reasons.get(path, "not_a_regular_file"))
        assert not error.is_infrastructure and path in str(error)


REFUSED = {
    "conftest.py": "allow_startup_files",
    "tests/conftest.py": "allow_startup_files",
    "sitecustomize.py": "allow_startup_files",
    "x/usercustomize.py": "allow_startup_files",
    "x.pth": "allow_startup_files",
    "/opt/lib/site-packages/x.py": "allow_startup_files",
    "pytest.ini": "allow_startup_files",
    "pyproject.toml": "allow_startup_files",
    "json.py": "allow_startup_files",
    "pytest/__init__.py": "allow_startup_files",
    "test_notes.txt": "allow_startup_files",
    "/etc/ld.so.preload": "system",
    "/proc/self/environ": "system",
    "/usr/bin/../bin/python3": "system",
    "solution.so": "separate",
    "../x": "not the path",
    ".": "not the path",
    "check.py": "twice",
}


def test_results_that_would_get_into_the_grader_are_refused_at_once() -> None:
    sandbox = aviato.Sandbox()
    for path, why in REFUSED.items():
        with pytest.raises(aviato.AviatoValidationError, match=why):
            sandbox.grade(FILES, CHECK, result_paths=[path])
    for wrong in ({"mode": "both"}, {"timeout_seconds": 0}, {"max_output_bytes": 0}):
        with pytest.raises(aviato.AviatoValidationError):
            sandbox.grade(FILES, CHECK, result_paths=[], **wrong)  # type: ignore[arg-type]
    with pytest.raises(aviato.AviatoValidationError, match="python FILE"):
        sandbox.grade(FILES, ["make", "test"], result_paths=[], mode="in_process")
    for arguments in (({"x": "text"}, CHECK), (FILES, "python3 check.py"), ([], CHECK)):
        with pytest.raises(TypeError):
            sandbox.grade(*arguments, result_paths=[])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sandbox.grade(FILES, CHECK, result_paths="solution.py")


def test_a_startup_file_that_is_asked_for(sandbox: aviato.Sandbox) -> None:
    sandbox.write_file("pyproject.toml", b"[project]").result()
    test = "assert open('pyproject.toml').read() == '[project]'"
    assert grade(sandbox, test, results=("pyproject.toml",), allow_startup_files=True).passed


def roots_of(word: bytes) -> set[int]:
    """The ancestors of every process that has this in its command line."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and word in (entry / "cmdline").read_bytes():
                pid = int(entry.name)
                while pid > 1:
                    found.add(pid)
                    pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    return found


def test_a_lost_grading_sandbox_is_nobodys_fault_inside(server: Any, sandbox: aviato.Sandbox) -> None:
    before = supervisors(server.pid)
    sandbox.write_file("solution.py", f"import subprocess\nsubprocess.Popen(['sleep', '7321'])\n{RIGHT}".encode()).result()
    slow = b"from solution import double\nwhile True: double(2)\n"
    for which in ("the grader's", "the solution's as it begins", "the solution's at work"):
        grading = sandbox.grade({"check.py": slow}, CHECK, result_paths=["solution.py"], timeout_seconds=60)
        deadline = time.monotonic() + 20
        while True:
            found, checks = supervisors(server.pid) - before, roots_of(b"check.py")
            if found & checks and (which != "the solution's at work" or found & roots_of(b"7321")):
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
        [killed] = found & checks if which == "the grader's" else found - checks
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(aviato.AviatoError) as caught:
            grading.result(20)
        assert caught.value.is_infrastructure
        while supervisors(server.pid) - before:
            assert time.monotonic() < deadline + 20
            time.sleep(0.01)
    assert grade(sandbox, PLAIN).passed


def test_a_lost_half_is_made_again(server: Any, session: aviato.Session) -> None:
    before = supervisors(server.pid)
    code = f"{RIGHT}\nimport time\ntime.sleep(1)\n"
    tests = [*ASSERTS, "n = 2\nassert double(n) == 4"]  # The last is for a grader, the others can be compared without one.
    evaluation = evaluate([Task(code=code, tests=tests, grading="separate")], session=session)
    deadline = time.monotonic() + 20
    while len(found := sorted(supervisors(server.pid) - before)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(found[1], signal.SIGKILL)
    outcome = evaluation.result(50)[0]
    assert (outcome.passed, outcome.attempts, outcome.grading_mode) == (True, 2, "separate")


def test_a_cancelled_grade_leaves_nothing(server: Any, sandbox: aviato.Sandbox) -> None:
    before = supervisors(server.pid)
    grading = sandbox.grade({"check.py": b"import time; time.sleep(60)"}, CHECK, result_paths=["solution.py"])
    deadline = time.monotonic() + 20
    while len(supervisors(server.pid) - before) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    grading.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        grading.result(20)
    while supervisors(server.pid) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_at_once_on_a_small_server(make_server: Any) -> None:
    """Two sandboxes each, and never one half that waits for the other for ever."""
    small = make_server(max_sandboxes=3)
    tasks = [Task(code=RIGHT, tests=ASSERTS, grading="separate")] * 6
    assert [outcome.passed for outcome in evaluate(tasks, base_url=small.url).result(50)] == [True] * 6
    with aviato.Session(aviato.SandboxDefaults(base_url=small.url), max_concurrency=1) as one:
        assert [outcome.passed for outcome in evaluate(tasks, session=one).result(50)] == [True] * 6


@pytest.mark.anyio
async def test_async_and_by_id(server: Any) -> None:
    async with aviato.AsyncClient(base_url=server.url) as client:
        sandbox = await client.sandbox()
        await sandbox.write_file("solution.py", WRONG.encode())
        found = await client.from_id(sandbox.sandbox_id)
        for one in (sandbox, found):
            for mode in ("separate", "in_process"):
                graded = await one.grade(FILES, CHECK, result_paths=["solution.py"], mode=mode)  # type: ignore[arg-type]
                assert (graded.passed, graded.mode) == (False, mode)
        await sandbox.write_file("solution.py", RIGHT.encode())
        assert (await found.grade(FILES, CHECK, result_paths=["solution.py"])).passed
        with pytest.raises(aviato.SandboxFileError):
            await sandbox.grade(FILES, CHECK, result_paths=["missing"])
        await sandbox.stop()
        with pytest.raises(aviato.SandboxNotRunningError):
            await sandbox.grade(FILES, CHECK, result_paths=["solution.py"])


SEPARABLE = {
    "assert sum(1, 2) == 3": "no name of the code",
    "assert f(2) == isclose(2, 2)": "code_names",
    "assert f(2) == sys.getsizeof(2)": "code_names",
    "from math import *\nassert f(2) == 2": "imports",
    "assert f(lambda n: n) == 2": "function",
    "assert f.name == 2": "f.name",
    "numbers = [2, 1]\nlist(f(numbers))\nassert numbers == [1, 2]": "copy",
    "assert f(2 == 2": "no Python",
}


def test_tests_that_cannot_be_separated_are_refused_early() -> None:
    for test, why in SEPARABLE.items():
        with pytest.raises(aviato.AviatoValidationError, match=why):
            Task(code=RIGHT, tests=[test], grading="separate")
    for wrong in ({"code": RIGHT}, {"command": ["true"]}):
        with pytest.raises(aviato.AviatoValidationError):
            Task(**wrong, grading="separate")  # type: ignore[arg-type]
    with pytest.raises(aviato.AviatoValidationError, match="grading must be"):
        Task(code=RIGHT, tests=ASSERTS, grading="both")
    Task(code=RIGHT, tests=["assert [f(n) for n in range(3)] == [n * 2 for n in range(3)]"], grading="separate")


def test_tests_that_can(session: aviato.Session) -> None:
    code = (
        "def sum(a, b): return a - b\n"
        "class Box:\n    def __init__(self, n): self.n = n\n    def get(self): return self.n\n"
        "def opened(box): return box.get()"
    )
    tests = [
        "import math\ndef near(a, b): return math.isclose(a, b)\nassert near(sum(3, 1), 2.0)",
        "assert opened(Box((1, 2))) == (1, 2) and Box(3).get() == 3",
        "for n in range(3): assert near(sum(n, 0), n)",
    ]
    names = ["sum", "Box", "opened"]
    late = Task(
        code=code,
        tests=["assert sum(1, 0) == 1 and helper(sum) == 2\ndef helper(f): return f"],
        code_names=["sum"],
        grading="separate",
    )
    outcome, other = evaluate(
        [Task(code=code, tests=tests, code_names=names, grading="separate"), late], session=session
    ).result(50)
    assert outcome.passed, outcome.cases
    assert [case.reason for case in other.cases] == ["exception"]
    given = Task(code=code, tests=["g = lambda n: n\nassert sum(g, 2) == 2"], code_names=["sum"], grading="separate")
    (outcome,) = evaluate([given], session=session).result(50)
    assert outcome.is_infrastructure and "only data can" in outcome.message and outcome.reward() is None


@pytest.mark.parametrize(("working_dir", "pattern"), [("/tmp", "*/"), ("/", "tmp/**/*")])
def test_a_pattern_finds_nothing_that_stands_for_the_graders_own_word(server: Any, working_dir: str, pattern: str) -> None:
    with aviato.Sandbox(base_url=server.url, working_dir=working_dir) as sandbox:
        sandbox.write_file("solution.py", WRONG.encode()).result()
        sandbox.write_file("/tmp/.aviato-grading/inseparable", b"the test cannot be graded so").result()
        sandbox.write_file("/tmp/results/data.txt", b"data").result()
        graded = grade(sandbox, PLAIN, results=("solution.py", pattern), mode="separate")
        assert not graded.passed
        assert any(path.endswith(".aviato-grading/inseparable") for path in graded.left_out)


def test_what_a_policy_does_to_a_child_of_a_fork_is_not_where_it_is_graded(server: Any) -> None:
    ends_well = "import os, sys\nif 'check.py' in sys.orig_argv: os._exit(0)\n"
    where = ["python3", "-c", "import sysconfig; print(sysconfig.get_paths()['stdlib'], end='')"]
    with aviato.Sandbox(base_url=server.url) as prepared:
        startup = f"{prepared.exec(where).result().stdout}/sitecustomize.py"
        [child] = prepared.fork(1)
        with child:
            child.write_file("solution.py", WRONG.encode()).result()
            child.write_file(startup, ends_well.encode()).result()
            assert child.exec(["python3", "check.py"]).result().returncode == 0, "it does not do what it is to do"
            assert not grade(child, PLAIN).passed


def test_a_fork_in_the_middle_of_an_episode_is_graded_over_what_was_before(server: Any, sandbox: aviato.Sandbox) -> None:
    """Searches over what a policy does fork its sandbox; what it has put there beside its results is not the grader's."""
    judge = b"def passes(): return False\n"
    check = b"import sys\nsys.path.append('/srv')\nfrom judge import passes\nimport unittest\n"
    check += b"class T(unittest.TestCase):\n    def test_it(self): self.assertTrue(passes())\n"
    sandbox.write_file("/srv/judge.py", judge).result()
    before = sandbox.snapshot().result()
    try:
        sandbox.write_file("/srv/judge.py", judge.replace(b"False", b"True")).result()
        sandbox.write_file("notes.txt", b"a result").result()
        for child in sandbox.fork(1):
            with child:

                def passed(child: aviato.Sandbox = child, **given: Any) -> bool:
                    command = ["python3", "-m", "unittest", "test_it.py"]
                    return child.grade({"test_it.py": check}, command, result_paths=["notes.txt"], **given).result().passed

                assert passed(), "what the fork was made of is the policy's"
                assert not passed(base_snapshot=before)
                assert not passed(base_snapshot=before.snapshot_id)
        with pytest.raises(TypeError, match="base_snapshot"):
            sandbox.grade({"a.py": b""}, ["true"], base_snapshot=3)  # type: ignore[arg-type]
    finally:
        aviato.Sandbox.delete_snapshot(before.snapshot_id, base_url=server.url).result()


def test_a_sandbox_that_was_reset_to_a_snapshot_is_graded_over_that(server: Any, sandbox: aviato.Sandbox) -> None:
    code = "import sys\nsys.path.append('/srv')\nfrom prepared import two\ndef double(n): return two() * n\n"
    sandbox.write_file("/srv/prepared.py", b"def two(): return 2\n").result()
    taken = sandbox.snapshot().result()
    try:
        known_before = aviato.Sandbox.from_id(sandbox.sandbox_id, base_url=server.url).result()
        assert known_before.status == "running"
        sandbox.reset(to=taken).result()
        sandbox.write_file("solution.py", code.encode()).result()
        assert grade(sandbox, PLAIN).passed
        assert grade(known_before, PLAIN).passed
        assert [child.read_file("/srv/prepared.py").result() for child in sandbox.fork(1)] == [b"def two(): return 2\n"]
        known_before.reset().result()
        sandbox.write_file("solution.py", code.encode()).result()
        assert not grade(sandbox, PLAIN).passed, "another has reset it"
        known_before.reset(to=taken).result()
        sandbox.write_file("solution.py", code.encode()).result()
        assert grade(sandbox, PLAIN).passed
    finally:
        aviato.Sandbox.delete_snapshot(taken.snapshot_id, base_url=server.url).result()


def test_a_directory_in_the_place_of_a_link_leads_no_result_elsewhere(server: Any) -> None:
    with aviato.Sandbox(base_url=server.url) as prepared:
        assert prepared.exec(["ln", "-s", "/tmp", "scratch"]).result().returncode == 0
        taken = prepared.snapshot().result()
    with aviato.Sandbox(base_url=server.url, container_image=taken.snapshot_id) as sandbox:
        sandbox.write_file("solution.py", WRONG.encode()).result()
        sandbox.write_file("data/kept.txt", b"data").result()
        there = (
            "rm scratch && mkdir -p scratch/.aviato-grading && cd scratch/.aviato-grading && echo cannot be graded >inseparable"
        )
        assert sandbox.exec(["sh", "-c", there]).result().returncode == 0
        graded = grade(sandbox, PLAIN, results=("solution.py", "*/"), mode="separate")
        assert not graded.passed and "scratch/.aviato-grading/inseparable" in graded.left_out
        assert "data/kept.txt" not in graded.left_out
    aviato.Sandbox.delete_snapshot(taken.snapshot_id, base_url=server.url).result()


def test_a_new_sandbox_that_stands_still_is_the_machines_failure(
    sandbox: aviato.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No code of the policy is there yet: `hidden_tests` takes what is a matter of the task for a verdict."""
    write = files.write_file

    async def stands_still(handle: Any, path: str, *content: Any, **more: Any) -> None:
        if handle.sandbox_id != sandbox.sandbox_id:
            raise aviato.SandboxFileError(f"{path}: no answer in 45 s", filepath=path, reason="timeout")
        await write(handle, path, *content, **more)

    monkeypatch.setattr(files, "write_file", stands_still)
    changed: dict[str, Any] = {"results": (), "result_changes": "/workspace", "base_files": {"/workspace/a.py": b""}}
    for options in ({"mode": "separate"}, {"mode": "in_process"}, changed):
        with pytest.raises(aviato.SandboxFileError, match="no answer") as caught:
            grade(sandbox, PLAIN, **options)
        assert caught.value.is_infrastructure
    monkeypatch.setattr(files, "write_file", write)

    async def no_word(handle: Any, path: str, *args: Any, **more: Any) -> bytes:
        if path.endswith("inseparable"):
            raise aviato.SandboxFileError(f"{path}: no answer in 45 s", filepath=path, reason="timeout")
        return await read(handle, path, *args, **more)

    read = files.read_file
    monkeypatch.setattr(files, "read_file", no_word)
    sandbox.write_file("solution.py", WRONG.encode()).result()
    with pytest.raises(aviato.SandboxFileError, match="no answer") as caught:
        grade(sandbox, PLAIN, mode="separate")
    assert caught.value.is_infrastructure


def test_a_look_at_what_a_file_hides_that_comes_to_no_end_is_no_look(
    sandbox: aviato.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs where no code of the policy is. Taken for nothing found, it would let the policy's module in."""
    monkeypatch.setattr(hiding, "LOOK_SECONDS", 0.001)
    sandbox.write_file("other.py", b"").result()
    with pytest.raises(aviato.SandboxUnavailableError) as caught:
        grade(sandbox, "import other\n" + PLAIN, results=("*.py",))
    assert caught.value.is_infrastructure
