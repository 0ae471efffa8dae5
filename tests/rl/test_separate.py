"""`grading="separate"`: graders that many tasks have, what reaches nobody there, and whose fault what is."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import time
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import aviato
from aviato.grading import link
from aviato.rl import Outcome, Task, Verdict, evaluate, graders
from aviato.rl.calls_ahead import calls_ahead
from aviato.rl.plain import Answers, NeedsGrader, plain_cases
from tests.matrices import deep
from tests.rl.machine import supervisors

RIGHT = "def double(n):\n    return 2 * n\n"
WRONG = "def double(n):\n    return n * n\n"
TESTS = ("assert double(2) == 4", "assert double(3) == 6")
"""Such are compared without a grader's sandbox."""
GRADED = ("n = 2\nassert double(n) == 4", "n = 3\nassert double(n) == 6")
BOTH = pytest.mark.parametrize("tests", [TESTS, GRADED], ids=["compared here", "in a grader"])
WHO = """import os
print('grader', os.getppid(), os.stat(os.path.join(os.sep, 'proc', 'self', 'ns', 'pid')).st_ino)
assert double(2) == 4
"""
"""Prints which process has forked it, in which sandbox."""


@pytest.fixture
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


def separate(*tests: str, code: str = RIGHT, **options: Any) -> Task:
    return Task(code=code, tests=tests or TESTS, grading="separate", code_names=["double"], **options)


def run(session: aviato.Session, *tasks: Task, **options: Any) -> list[Outcome]:
    return evaluate(tasks, session=session, timeout_seconds=30, **options).result(55)


def grader_of(outcome: Outcome) -> str:
    assert outcome.passed, (outcome.message, outcome.cases)
    return next(line for case in outcome.cases for line in case.stdout.splitlines() if line.startswith("grader"))


def until(what: Any) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- what one task leaves does not reach the next

LEAVES = """import json, os, sys, tempfile, types
open('left.txt', 'w').write('left')
open(tempfile.mktemp(), 'w').write('left')
os.makedirs('folder/below')
open('aviato_solution.py', 'a').write('left = True')
os.environ.update(LEFT='left')
sys.modules['left'] = types.ModuleType('left')
json.dumps = None
sys.path.insert(0, 'left')
os.fchdir(os.open('folder', os.O_RDONLY))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        for fd in range(20): os.closerange(fd, fd + 1)
        time.sleep(1000)
    os._exit(0)
os.wait()
"""
FINDS = f"""import json, os, sys, tempfile
{WHO}
assert sorted(os.listdir('.')) == ['aviato_solution.py', 'solution.py'], os.listdir('.')
assert os.listdir(tempfile.gettempdir()) == [] and tempfile.gettempdir().startswith(os.path.dirname(os.getcwd()))
assert 'left = True' not in open('aviato_solution.py').read()
assert 'LEFT' not in os.environ and 'left' not in sys.modules and 'left' not in sys.path and json.dumps(1) == '1'
ours = {{str(os.getpid()), str(os.getppid()), '1'}}
proc = os.path.join(os.sep, 'proc')
others = [name for name in os.listdir(proc) if name.isdigit() and name not in ours]
assert others == [], [open(os.path.join(proc, name, 'stat')).read() for name in others]
"""


def unseen(test: str) -> str:
    """A test of what would be refused if its text said it."""
    return f"{WHO}\nexec({test!r})\n"


@pytest.mark.parametrize("but", ["", "aviato_solution.py"], ids=["all", "but what is there for all"])
def test_what_a_task_leaves_does_not_reach_the_next(but: str, session: aviato.Session) -> None:
    leaves = "\n".join(line for line in LEAVES.splitlines() if not but or but not in line)
    graders = set()
    for _ in range(2):
        (left,) = run(session, separate(unseen(leaves)))
        graders.add(grader_of(left))
        (found,) = run(session, separate(FINDS))
        graders.add(grader_of(found))
    assert len(graders) == 1


def test_a_grader_that_was_changed_beyond_that_has_no_other_task(session: aviato.Session) -> None:
    """The control of the other tests too: there are two graders, and that is seen."""
    writes = unseen("open(os.path.join(os.sep, 'tmp', 'left.txt'), 'w').write('left')\n")
    finds = f"{WHO}\nassert not os.path.exists(os.path.join(os.sep, 'tmp', 'left.txt'))\n"
    (first,) = run(session, separate(writes))
    (second,) = run(session, separate(finds))
    assert grader_of(first) != grader_of(second)


@pytest.mark.parametrize(
    "options",
    [{"fresh_grader": True}, {"files": {"/data/x.txt": b"x"}}, {}, {}],
    ids=["asked for", "a file elsewhere", "a path", "a port"],
)
def test_some_have_a_grader_of_their_own(options: dict[str, Any], session: aviato.Session, request: Any) -> None:
    more = {"a path": "str('/tmp/x')", "a port": "import socket"}.get(request.node.callspec.id, "")
    tasks = [separate(f"{WHO}\n{more}", **options) for _ in range(2)]
    assert len({grader_of(outcome) for outcome in run(session, *tasks)}) == 2
    (shared,) = run(session, separate(WHO))
    until(lambda: session.sandbox_count == 1)
    assert grader_of(shared)


def test_files_of_a_task_are_on_both_sides(session: aviato.Session) -> None:
    code = "def double(n):\n    return open('data/n.txt').read() * n\n"
    test = "assert double(2) == open('data/n.txt').read() * 2 == 'ää'\nimport helper\nassert helper.n == len(double(3))"
    files = {"data/n.txt": "ä".encode(), "helper.py": b"n = 3"}
    outcome, without = run(session, separate(test, code=code, files=files), separate(test, code=code))
    assert outcome.passed, outcome.cases
    assert [case.reason for case in without.cases] == ["exception"]


# -- whose fault it is

SLOW = f"import time; time.sleep(1)\n{RIGHT}"


@pytest.mark.parametrize("which", ["grader", "solution", "solution alone"])
def test_a_lost_sandbox_is_made_again(which: str, server: Any, session: aviato.Session) -> None:
    before = supervisors(server.pid)
    run(session, separate(WHO))
    until(lambda: len(supervisors(server.pid) - before) == 1)
    grader = supervisors(server.pid) - before
    tests = TESTS if which == "solution alone" else GRADED
    evaluation = evaluate([separate(*tests, code=SLOW)], session=session, timeout_seconds=30)
    until(lambda: supervisors(server.pid) - before - grader)
    time.sleep(0.2)
    lost = grader if which == "grader" else supervisors(server.pid) - before - grader
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    (outcome,) = evaluation.result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.PASSED, 2), outcome.message


@BOTH
@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(-1, 9)", "os.kill(os.getppid(), 9)", "os.write(1, b'x' * 100)"])
def test_a_solution_that_ends_itself_has_failed(how: str, tests: tuple[str, ...], session: aviato.Session) -> None:
    code = f"import os\ndef double(n):\n    if n == 3:\n        {how}\n    return 2 * n\n"
    (outcome,) = run(session, separate(*tests, code=code))
    expected = (Verdict.PASSED if "write" in how else Verdict.FAILED, 1)
    assert (outcome.verdict, outcome.attempts) == expected, outcome


@BOTH
def test_who_breaks_the_rules_is_not_listened_to(tests: tuple[str, ...], session: aviato.Session) -> None:
    """The process above that of the code writes what the grader reads; here its output is the code's to write."""
    code = (
        "import os\ndef double(n):\n    fd = os.open('/proc/%d/fd/1' % os.getppid(), os.O_WRONLY)\n"
        "    os.write(fd, {!r})\n    return 2 * n\n"
    )
    lines = [b"1 9999999999\n", b"x" * 64, b"7 3\nabc" * 1000, b'1 13\n{"value": "4"}' * 3]
    outcomes = run(session, *[separate(*tests, code=code.format(line)) for line in lines], separate(*tests))
    assert [outcome.verdict for outcome in outcomes] == [*[Verdict.FAILED] * 4, Verdict.PASSED]
    assert {outcome.attempts for outcome in outcomes} == {1}


def test_a_case_without_a_call_has_not_passed(session: aviato.Session) -> None:
    cases = [
        "called = [] and double(2)\nassert called == []",
        TESTS[0],
        "import os\nif os.fork() == 0:\n    double(2)\n    os._exit(0)\nassert os.wait()[1] == 0",
    ]
    (outcome,) = run(session, separate(*cases))
    assert [case.reason for case in outcome.cases] == ["not_checked", "passed", "passed"]
    assert str(outcome.cases[0].status) == "not_run" and outcome.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "test",
    ["g = double\nassert g.name == 2", "try:\n    g = double\n    g.name\nexcept BaseException:\n    pass\nassert g(2) == 4"],
)
def test_what_cannot_cross_is_no_verdict(test: str, session: aviato.Session) -> None:
    (outcome,) = run(session, separate(test))
    assert outcome.is_infrastructure and outcome.attempts == 1 and outcome.error is not None
    assert outcome.error.reason == "grader_failed" and "double.name" in outcome.message


@pytest.mark.parametrize(
    "raised",
    ["AssertionError('NotSeparable: x')", "type('NotSeparable', (BaseException,), {})('x')", "Exception('NotSeparable')"],
)
@BOTH
def test_the_code_cannot_say_that(raised: str, tests: tuple[str, ...], session: aviato.Session) -> None:
    (outcome,) = run(session, separate(*tests, code=f"def double(n):\n    raise {raised}\n"))
    assert (outcome.verdict, outcome.attempts) == (Verdict.FAILED, 1)
    assert {case.reason for case in outcome.cases} <= {"assertion", "exception"}


def test_names_that_tests_import_from_the_solution(session: aviato.Session) -> None:
    code = f"{RIGHT}def triple(n):\n    return 3 * n\n"
    tests = [
        "from solution import double\nassert double(2) == 4",
        "from solution import triple as three\nassert three(2) == 6",
        "import solution\nassert solution.double(1) + solution.triple(1) == 5",
        "import unittest\nfrom solution import double\nclass TestDouble(unittest.TestCase):\n"
        "    def test_two(self):\n        self.assertEqual(double(2), 4)\n",
        "import subprocess, sys\nprogram = 'from solution import double; print(double(4))'\n"
        "assert subprocess.run([sys.executable, '-c', program], capture_output=True).stdout == b'8\\n'\nassert double(1) == 2",
    ]
    for wrong in (False, True):
        given = code.replace("2 * n", "n ** 3").replace("3 * n", "n") if wrong else code
        (outcome,) = run(session, Task(code=given, tests=tests, grading="separate"))
        assert [case.passed for case in outcome.cases] == [not wrong] * 5, outcome.cases


# -- many


@pytest.mark.parametrize("before", [*deep([""]), "n = 1\n"], ids=["compared here", "in a grader"])
def test_many_at_once(before: str, session: aviato.Session) -> None:
    """After a case that failed the others have a new process of the code each."""
    counts = "made = []\ndef double(n):\n    made.append(n)\n    return 2 * n if len(made) < 3 else 0\n"
    codes = [RIGHT, WRONG, counts, "def double(n):\n    import os; os._exit(0)", "def double(n): return"] * 40
    tests = [f"{before}assert double({n}) == {2 * n}" for n in (2, 3, 4, 5)]
    outcomes = run(session, *[separate(*tests, code=code) for code in codes])
    passed = [[case.passed for case in outcome.cases] for outcome in outcomes]
    expected = [[True] * 4, [True, False, False, False], [True, True, False, True], [False] * 4, [False] * 4]
    assert passed == expected * 40
    assert {outcome.attempts for outcome in outcomes} == {1}


@pytest.mark.parametrize("length", [9_000, 120_000], ids=["more than a socket takes", "more than a grader keeps"])
def test_answers_that_wait_for_their_tests_hold_nothing_up(length: int, session: aviato.Session) -> None:
    """All calls are known from the text and asked at once: their answers are there long before the first test is over."""
    slow = f"assert len(double(0)) == max([0] * 40_000_000) + {length}"
    tests = [slow, *[f"assert len(double({n})) == {length}" for n in range(30)], "assert double(3) == 6"]
    large = Task(code=f"def double(n): return [n] * {length}", tests=tests, grading="separate")
    outcomes = evaluate([large, separate(*GRADED), large], session=session, timeout_seconds=50).result(100)
    passed = [[case.passed for case in outcome.cases] for outcome in outcomes]
    assert passed == [[True] * 31 + [False], [True] * 2, [True] * 31 + [False]]
    assert {outcome.attempts for outcome in outcomes} == {1}


def test_answers_that_nobody_takes_end_with_their_task(session: aviato.Session) -> None:
    tests = ["assert len(double(0)) == 7 ** 10 ** 9", *["assert double(1)"] * 30]
    large = Task(code="def double(n): return [n] * 200_000", tests=tests, grading="separate")
    late, other = evaluate([large, separate(*GRADED)], session=session, timeout_seconds=4).result(50)
    assert (late.verdict, other.verdict) == (Verdict.TIMED_OUT, Verdict.PASSED)


def test_a_grader_that_is_stopped_is_lost(session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders, "SILENT_SECONDS", 1.0)
    stops = "pass\nimport os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nassert double(2) == 4"
    (outcome,) = evaluate([separate(stops)], session=session, timeout_seconds=2, retry_budget_seconds=0).result(50)
    assert outcome.verdict is Verdict.INFRASTRUCTURE and "no verdict in time" in outcome.message
    assert run(session, separate(*GRADED))[0].passed


@pytest.mark.parametrize("again", [True, False], ids=["one that others have", "one of its own"])
def test_who_fills_the_memory_of_a_grader_has_failed(again: bool, session: aviato.Session) -> None:
    """Not the machine has, and nobody who was in the same grader."""
    fills = separate(
        "assert [0] * double(2) == [0] * 4", code="def double(n): return 50_000_000", fresh_grader=not again, timeout_seconds=20
    )
    others = [separate("import time\nn = double(2)\ntime.sleep(1)\nassert double(3) == 6 and n == 4")] * 3
    outcomes = run(session, *others, fills, max_concurrency=4, retry_budget_seconds=0, resources={"memory": "120Mi"})
    assert [outcome.passed for outcome in outcomes[:3]] == [True] * 3, outcomes
    assert outcomes[3].verdict is Verdict.OUT_OF_MEMORY and outcomes[3].reward() == 0.0, outcomes[3]
    assert not outcomes[3].cases[0].passed


def test_tests_that_fill_it_by_themselves_are_no_verdict(session: aviato.Session) -> None:
    alone = "x = [0] * 50_000_000\nassert double(len(x)) == 2 * len(x)"
    (outcome,) = run(session, separate(alone), retry_budget_seconds=0, resources={"memory": "120Mi"})
    assert outcome.verdict is Verdict.INFRASTRUCTURE and "memory" in outcome.message


def test_a_test_that_kills_itself_is_a_verdict_once_it_has_asked(session: aviato.Session) -> None:
    kills = "import os\n{}\nos.kill(os.getpid(), 9)\nassert double(2) == 4"
    asked, unasked = run(session, separate(kills.format("double(3)")), separate(kills.format("")), retry_budget_seconds=0)
    assert (asked.verdict, asked.cases[0].reason) == (Verdict.FAILED, "killed")
    assert unasked.verdict is Verdict.INFRASTRUCTURE and "whatever the code is: they were killed" in unasked.message


def test_the_end_of_a_session_leaves_nothing(server: Any) -> None:
    before = supervisors(server.pid)
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url), max_concurrency=1) as session:
        assert [outcome.passed for outcome in run(session, *[separate(), separate(*GRADED)] * 2)] == [True] * 4
        endless = evaluate([separate("while True: double(2)\nassert double(2)")] * 2, session=session)
        until(lambda: len(supervisors(server.pid) - before) >= 2)
        endless.cancel()
    until(lambda: not supervisors(server.pid) - before)
    assert [outcome.passed for outcome in evaluate([separate(*GRADED)], base_url=server.url).result(50)] == [True]
    until(lambda: not supervisors(server.pid) - before)


def test_an_idle_grader_ends(server: Any, session: aviato.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aviato.rl.graders.IDLE_SECONDS", 0.2)
    before = supervisors(server.pid)
    run(session, separate(*GRADED))
    until(lambda: not supervisors(server.pid) - before)
    until(lambda: session.sandbox_count == 0)
    assert run(session, separate(*GRADED))[0].passed


# -- what is sent

KNOWN = {
    "assert f(2) == 4": 1,
    "assert f(2) == 4, 'why'\nassert f([1, {'a': (2, None)}], key=-1.5) == f(3)": 3,
    "assert abs(f(2.0) - 1.5) < 1e-6": 1,
    "assert sorted(f([3, 1])) == [1, 3]": 1,
    "assert not f('x')": 1,
    "from solution import f\nassert f(2)": 1,
}
UNKNOWN = [
    "x = 2\nassert f(x) == 4",
    "assert f(f(2)) == 8",
    "assert f(1) == 1 and f(2) == 2",
    "assert 1 < f(1) < f(2)",
    "assert f({1, 2}) == 3",
    "for n in range(3): assert f(n) == n",
    "assert f(2) == 4, f(3)",
    "assert f(*[1]) == 1",
    "assert F(1) == 1",
    "assert max([1, 2], key=f) == 2",
    "assert math.isclose(f(1), 1)",
    "assert (lambda: f(1))() == 1",
    "assert 1 == 1",
]


def test_calls_that_the_text_tells() -> None:
    for source, count in KNOWN.items():
        assert [len(calls) for calls in calls_ahead((source,), ("f",))] == [count], source
    for source in UNKNOWN:
        assert calls_ahead((source,), ("f", "F")) == (), source
    known = "assert f(2) == 4"
    assert len(calls_ahead((known, UNKNOWN[0], known), ("f",))) == 1
    assert calls_ahead(("assert len(2) == 4",), ("len",)) != () == calls_ahead(("assert len('xx') == 2",), ("f",))


@pytest.mark.parametrize(
    "code", [RIGHT, WRONG, "def double(n):\n    raise KeyError('a\\nb')", "double = 2", "def double(n): return [n] * 9000"]
)
def test_what_is_compared_here_has_the_graders_verdict(code: str, session: aviato.Session) -> None:
    tests = [
        "assert double(2) == 4, 'why'",
        "assert not double(0)\nassert abs(double(1.5) - 3) < 1e-9",
        "assert double('a') == 'aa'",
    ]
    tests += ["assert len(double([1])) == 2\nassert 2 != double(7)", "assert double(4) is None", "assert double(2) in (4, 5)"]
    here, there = run(session, separate(*tests, code=code), separate(*[f"pass\n{test}" for test in tests], code=code))
    assert plain_cases(tuple(tests), ("double",)) is not None and plain_cases(("pass\nassert double(2)",), ("double",)) is None
    assert plain_cases(("from solution import double\nassert double(2) == 4",), ("double",)) is not None
    assert (here.verdict, here.message, here.grading_mode) == (there.verdict, there.message, "separate")
    for one, other in zip(here.cases, there.cases, strict=True):
        assert (one.reason, one.message, one.status) == (other.reason, other.message, other.status)
        assert one.traceback.splitlines()[-1:] == other.traceback.splitlines()[-1:]


FORMS = {
    "a test function": "def test_f():\n    {}\n",
    "two of them": "def test_f():\n    assert True\ndef test_g() -> None:\n    'Of it.'\n    {}\n    assert double(5) == 10\n",
    "one that imports": "from solution import double\nimport math\n\ndef test_f():\n    from solution import double\n    {}\n",
    "one that is called": "def test_f():\n    {}\ntest_f()\n",
    "check": (
        "METADATA = {{'author': 'x'}}\n\ndef check(candidate):\n    {}\n    assert candidate(5) == 10, 'five'\ncheck(double)\n"
    ),
    "check, twice": "def check(f: object):\n    {}\ncheck(double)\ncheck(double)\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_however_assertions_are_written_they_are_compared_here(form: str, session: aviato.Session) -> None:
    codes = [RIGHT, WRONG, "def double(n):\n    raise KeyError(n)", "def double(n): return None if n == 5 else 2 * n"]
    tests = [FORMS[form].format(f"assert double({n}) == {2 * n}{why}") for n, why in ((2, ", 'why'"), (0, ""), (3, ""))]
    tasks = [separate(*given, code=code) for code in codes for given in (tests, [f"pass\n{test}" for test in tests])]
    assert plain_cases(tuple(tests), ("double",)) is not None
    assert plain_cases((f"pass\n{tests[0]}",), ("double",)) is None
    found = run(session, *tasks)
    for here, there in zip(found[::2], found[1::2], strict=True):
        assert (here.verdict, here.message) == (there.verdict, there.message)
        for one, other in zip(here.cases, there.cases, strict=True):
            assert (one.reason, one.message, one.status) == (other.reason, other.message, other.status)
            assert one.traceback.splitlines()[-1:] == other.traceback.splitlines()[-1:]


RAISING = {
    "raise ValueError('too small')": True,
    "raise UnicodeError('too small')": True,
    "raise ValueError('too large')": False,
    "raise KeyError('too small')": False,
    "return 0": False,
    "raise SystemExit('too small')": False,
    "import os; os._exit(0)": False,
    "return object()": False,
}


def test_what_is_expected_to_raise_is_compared_here(session: aviato.Session) -> None:
    test = "import pytest\ndef test_f():\n    with pytest.raises((ValueError, TypeError), match='too small'): double(-1)\n"
    assert plain_cases((test,), ("double",)) is not None
    codes = [f"def double(n):\n    if n < 0: {body}\n    return 2 * n\n" for body in RAISING]
    found = run(session, *[separate(test, code=code) for code in codes])
    assert [one.passed for one in found] == list(RAISING.values()), found


ELSEWHERE = [
    "assert double(2) * 10**9 == 4",
    "assert double(double(2)) == 8",
    "assert str(double(2)) == '4'",
    "assert double(2) == 4 and double(3) == 6",
    "assert double(2) == 4, double(3)",
    "assert [double(2)] == [4]",
    "assert double(2).real == 4",
    "assert f'{double(2)}' == '4'",
    "double(2)",
    "assert 1 == 1",
    "def test_f():\n    x = double(2)\n    assert x == 4",
    "def test_f():\n    double(2)",
    "def test_f(n):\n    assert double(2) == 4",
    "def test_f():\n    pass\nassert double(2) == 4",
    "def test_f(): assert double(2) == 4\ndef test_f(): assert double(3) == 6",
    "async def test_f(): assert double(2) == 4",
    "@decorated\ndef test_f(): assert double(2) == 4",
    "def helper(): assert double(2) == 4",
    "def check(candidate): assert candidate(2) == 4\ncheck(1)",
    "def check(candidate): assert candidate == 4\ncheck(double)",
    "def check(candidate, n=2): assert candidate(2) == 4\ncheck(double)",
    "N = 2\ndef test_f(): assert double(N) == 4",
    "len = 2\nassert len(double('a')) == 2",
    "pytestmark = []\ndef test_f(): assert double(2) == 4",
    "__test__ = False\ndef test_f(): assert double(2) == 4",
    "import numpy\ndef test_f(): assert double(2) == 4",
    "import math\ndef test_f(): assert math.isclose(double(2), 4)",
    "class TestF:\n    def test_f(self): assert double(2) == 4",
    "import pytest\ndef test_f():\n    with pytest.raises(KeyError) as found:\n        double(2)",
    "import pytest\ndef test_f():\n    with pytest.raises(KeyError, match='a.b'):\n        double(2)",
    "import pytest\ndef test_f():\n    with pytest.raises(SystemExit):\n        double(2)",
    "import pytest\ndef test_f():\n    with pytest.raises(Own):\n        double(2)",
    "import pytest\ndef test_f():\n    with pytest.raises(KeyError):\n        double(2)\n        double(3)",
    "def test_f():\n    with open('x'):\n        double(2)",
]


@pytest.mark.parametrize("source", ELSEWHERE)
def test_nothing_else_of_a_test_is_run_here(source: str) -> None:
    assert plain_cases((source,), ("double",)) is None


def test_what_a_solution_says_is_cut_however_it_comes() -> None:
    async def heard(*pieces: bytes) -> list[bytes | None]:
        answers = Answers(SimpleNamespace(linked_by=lambda _: None), 2)  # type: ignore[arg-type]
        for piece in pieces:
            answers.say(b"a", piece)
        answers.say(b"l")
        return [await answers.next() for _ in range(3)]

    whole = b"1 1\n41 1\n5"
    for at in range(len(whole)):
        assert asyncio.run(heard(whole[:at], whole[at:])) == [b"4", b"5", None]
    for noise in (b"x" * 64, b"x\n", b"1 x\n", b"1\n", b" " * 31 + b"\n", b"7 0\n" * 300):
        for pieces in ((noise + whole,), (noise, whole)):
            assert asyncio.run(heard(*pieces)) == [None] * 3, noise
    with pytest.raises(NeedsGrader):
        asyncio.run(heard(b"1 99999\n", whole))


def test_what_nobody_asked_for_is_not_kept() -> None:
    async def heard() -> int:
        told = SimpleNamespace(linked_by=lambda _: None, calls=SimpleNamespace(put=lambda _: None))
        answers = Answers(told, 300)  # type: ignore[arg-type]
        answers.say(b"a", b"1 1\n4" * 299)
        answers.ask_anew([b"", b""])
        # What was asked before and is on its way counts for nothing, and neither against it.
        answers.say(b"a", b"1 1\n4" + b"2 1\n5" * 2)
        assert [await answers.next() for _ in range(2)] == [b"5", b"5"]
        answers.say(b"a", b"2 1\n6" * 5000)
        return len(answers._found)

    assert asyncio.run(heard()) == 0


@pytest.mark.parametrize("options", [{}, {"case_timeout_seconds": 30.0}], ids=["compared here", "in a grader"])
def test_one_failure_of_many_tests_fails_no_other(options: dict[str, Any], session: aviato.Session) -> None:
    """The calls of all are asked ahead, so that hundreds of answers are on their way to a process that is gone."""
    tests = [f"assert double({n}) == {2 * n + (n in (0, 5))}" for n in range(700)]
    for _ in range(2):
        (outcome,) = run(session, separate(*tests, **options))
        assert [at for at, case in enumerate(outcome.cases) if not case.passed] == [0, 5], outcome.message


@BOTH
def test_an_item_that_runs_out_of_time(tests: tuple[str, ...], session: aviato.Session) -> None:
    code = "def double(n):\n    while n == 3: pass\n    return 2 * n\n"
    (outcome,) = evaluate([separate(*tests, tests[0], code=code)], session=session, timeout_seconds=2).result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.TIMED_OUT, 1)
    assert [case.reason for case in outcome.cases] == ["passed", "timed_out", "not_run"]


def test_no_part_of_the_graders_program_takes_a_name_of_another() -> None:
    """They are one text."""
    tree = ast.parse(zlib.decompress(link._broker()[1]))
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    names += [target.id for target in targets if isinstance(target, ast.Name)]
    names += [node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    twice = {name for name in names if names.count(name) > 1} - {"TYPE_CHECKING", "main"}
    assert twice == set()


def test_graders_of_other_kinds_are_others(server: Any, session: aviato.Session) -> None:
    test = f"{WHO}\nassert os.environ.get('KIND') is not None"
    for kind in ("a", "b", "a"):
        (outcome,) = run(session, separate(test), environment_variables={"KIND": kind})
        assert outcome.passed, outcome.cases
