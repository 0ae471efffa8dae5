"""Verdicts against real sandboxes: what passes, what does not, and what is nobody's fault inside."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Task, TestCase, Verdict, evaluate
from tests.rl.machine import kill_the_new_supervisor, supervisors

RIGHT = "def double(n):\n    return 2 * n\n"
WRONG = "def double(n):\n    return n * n\n"
TESTS = ("assert double(2) == 4", "assert double(3) == 6")

EARLY_ENDS = {
    "os._exit": "import os; os._exit(0)",
    "sys.exit": "import sys; sys.exit(0)",
    "raise SystemExit": "raise SystemExit",
    "exit in a thread": "import os, threading; t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()",
    "kill the parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "kill everyone": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "exec true": "import os; os.execv('/bin/true', ['true'])",
    "close every descriptor": "import os; os.closerange(0, 4096)\nimport os; os._exit(0)",
    "forge a record": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"end\": true}')\n    except OSError: pass\nos._exit(0)"
    ),
    "forge a report": "print('0' * 32 + ' {\"passed\": true}\\n' * 2 + '{\"cases\": 2}', flush=True); import os; os._exit(0)",
    "recursion": "def f(): return f()\nf()",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
}
"""Each ends the code before its tests: after right and after wrong code alike, nothing of it may pass."""


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server


@pytest.fixture
def session(served: Any) -> Iterator[aviato.Session]:
    with aviato.Session() as made:
        yield made


def one(task: Task, **options: Any) -> Outcome:
    return evaluate([task], **options).result(50)[0]


def test_out_of_memory_is_a_verdict(session: aviato.Session) -> None:
    bomb = "kept = bytearray(b'x') * (150 << 20)\nimport time; time.sleep(20)\n"
    tasks = [Task(command=["python3", "-c", bomb]), Task(code=RIGHT + bomb, tests=TESTS), Task(code=RIGHT, tests=TESTS)]
    command, code, right = evaluate(tasks, session=session, resources={"memory": "64Mi"}).result(50)
    for outcome in (command, code):
        assert (outcome.verdict, outcome.reward(), outcome.attempts) == (Verdict.OUT_OF_MEMORY, 0.0, 1)
    assert right.verdict is Verdict.PASSED


def test_right_and_wrong_code(session: aviato.Session) -> None:
    right, wrong = evaluate([Task(code=RIGHT, tests=TESTS), Task(code=WRONG, tests=TESTS)], session=session).result(50)
    assert (right.verdict, right.reward(), right.pass_rate, right.grading_mode) == (Verdict.PASSED, 1.0, 1.0, "in_process")
    assert right.result is not None and right.duration_seconds and right.usage and right.usage.cpu_seconds
    assert (wrong.verdict, wrong.reward(), wrong.reward(failed=-1.0), wrong.pass_rate) == (Verdict.FAILED, 0.0, -1.0, 0.5)
    assert [case.reason for case in wrong.cases] == ["passed", "assertion"]
    assert wrong.message.startswith("test_2: ")


@pytest.mark.parametrize("code", [RIGHT, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("how", EARLY_ENDS)
def test_an_early_end_never_passes(how: str, code: str, session: aviato.Session) -> None:
    outcome = one(Task(code=f"{code}\n{EARLY_ENDS[how]}", tests=TESTS), session=session, timeout_seconds=20)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reward() == 0.0


def test_an_exit_handler_changes_no_verdict(session: aviato.Session) -> None:
    handler = "import atexit, os\natexit.register(lambda: os._exit(0))"
    right, wrong = evaluate([Task(code=f"{code}\n{handler}", tests=TESTS) for code in (RIGHT, WRONG)], session=session).result(
        50
    )
    assert (right.passed, wrong.passed) == (True, False)


def test_what_code_does_to_builtins_does_not_reach_the_record(session: aviato.Session) -> None:
    meddling = "import os, json, builtins\nos.write = os._exit = json.dumps = lambda *a, **k: None\nbuiltins.compile = None\n"
    right, wrong = evaluate([Task(code=meddling + code, tests=TESTS) for code in (RIGHT, WRONG)], session=session).result(50)
    assert (right.passed, wrong.passed) == (True, False)


def test_a_flood_that_code_leaves_behind_holds_nothing_up(session: aviato.Session) -> None:
    flood = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: os.write(1, b'x' * 65536)\n"
    outcome = one(Task(code=flood + RIGHT, tests=TESTS), session=session, timeout_seconds=20)
    assert outcome.passed and outcome.duration_seconds is not None and outcome.duration_seconds < 15


def test_the_processes_that_keep_the_record_are_closed_to_the_code(session: aviato.Session) -> None:
    look = """
import os
def opened():
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        if int(pid) == os.getpid(): continue
        for name in ('mem', 'environ', 'fd/0', 'fd/1', 'fd/3', 'fd/4', 'fd/5'):
            try: os.close(os.open(f'/proc/{pid}/{name}', os.O_RDWR if name == 'mem' else os.O_RDONLY | os.O_NONBLOCK))
            except OSError: continue
            found.append((pid, name))
    return found
"""
    outcome = one(
        Task(
            code=look,
            tests=[
                "others = [p for p in os.listdir('/proc') if p.isdigit()]; assert len(others) >= 2",
                "assert opened() == []",
            ],
        ),
        session=session,
    )
    assert outcome.passed, outcome.cases


def test_each_case_has_its_own_verdict_time_and_output(session: aviato.Session) -> None:
    cases = [
        TestCase(source="import time, sys; time.sleep(0.2); print('out'); print('err', file=sys.stderr); assert x", name="one"),
        TestCase(source="raise KeyError('k')"),
        TestCase(source="while x: pass\nassert x", timeout_seconds=0.3),
        TestCase(source="assert False, 'because'"),
        TestCase(source="y = [0] * 10**10; assert x"),
    ]
    outcome = one(Task(code="x = 1", tests=cases), session=session)
    assert [case.name for case in outcome.cases] == ["one", "test_2", "test_3", "test_4", "test_5"]
    assert [case.reason for case in outcome.cases][:4] == ["passed", "exception", "timed_out", "assertion"]
    slow = outcome.cases[0]
    assert (slow.stdout, slow.stderr, slow.passed) == ("out\n", "err\n", True) and 0.2 <= slow.duration_seconds < 5
    assert outcome.cases[1].message == "KeyError: 'k'" and "solution.py" not in outcome.cases[1].traceback
    assert outcome.cases[3].message == "because"
    assert outcome.verdict is Verdict.FAILED


def test_cases_run_as_one_program_until_one_does_not_pass(session: aviato.Session) -> None:
    """So that a function that remembers what it must not fails as it does in a plain program."""
    code = "import os\nprint('begun')\nstate = []\ndef f(kept=state):\n    kept.append(os.getpid())\n    return kept"
    remembers = "print(len(state)); assert len(f()) == 1"
    last = "assert len(set(state)) == 1 and len(f()) == 2; os.kill(os.getpid(), 9)"
    tests = [remembers, remembers, remembers, last, remembers]
    outcome = one(Task(code=code, tests=tests), session=session)
    assert [case.passed for case in outcome.cases] == [True, False, True, False, True]
    assert [case.reason for case in outcome.cases] == ["passed", "assertion", "passed", "killed", "passed"]
    assert [case.stdout for case in outcome.cases] == ["begun\n0\n", "1\n", "begun\n0\n", "", "begun\n0\n"]


def test_a_failing_case_spoils_none_after_it(session: aviato.Session) -> None:
    code = "import os\nseen = []\ndef take(n):\n    seen.append(n)\n    return 10 // n\n"
    tests = [
        "print(os.getpid()); take(0)",
        "print(os.getpid()); assert take(5) == 2 and seen == [5]",
        "assert seen == [5], 'not as one program'",
        "print(os.getpid()); take = None; assert seen == [6]",
        "print(os.getpid()); assert take(2) == 5 and seen == [2]",
    ]
    outcome = one(Task(code=code, tests=tests), session=session)
    assert [case.passed for case in outcome.cases] == [False, True, True, False, True], outcome.cases
    assert len({case.stdout for case in outcome.cases if case.stdout}) == 1  # All in one process.
    trace = outcome.cases[0].traceback
    assert trace.startswith("Traceback ") and trace.endswith("\nZeroDivisionError: integer division or modulo by zero\n")
    assert 'File "solution.py", line 5, in take' in trace and 'File "test_1", line 1' in trace
    assert (outcome.verdict, outcome.message) == (Verdict.FAILED, f"test_1: {outcome.cases[0].message}")


@pytest.mark.parametrize(
    "meddling",
    [
        "import io, sys\nsys.stdout = sys.stderr = io.StringIO()",
        "import os\nos.write = lambda fd, data: len(data)",
        "import sys\nsys.__excepthook__ = None",
        "import sys\nsys.__excepthook__ = lambda *error: 1 / 0",
        "import sys\nsys.stdout.flush = sys.stderr.flush = sys.stdout.write = sys.exit",
        "import io, os\nio.StringIO = os._exit",
    ],
    ids=["its output", "os.write", "no hook", "a hook that fails", "an output that exits", "io.StringIO"],
)
def test_who_meddles_spoils_only_its_own_report(meddling: str, session: aviato.Session) -> None:
    tests = ["assert double(2) == 4", "assert double(3) == 6, 'six'", "assert double(0) == 0"]
    codes = [f"{meddling}\n{code}" for code in (RIGHT, WRONG)] + [WRONG]
    right, wrong, other = evaluate([Task(code=code, tests=tests) for code in codes], session=session).result(50)
    assert right.passed, right.cases
    assert [case.passed for case in wrong.cases] == [case.passed for case in other.cases] == [True, False, True]
    assert all((case.reason, case.message) == ("assertion", "six") for case in (wrong.cases[1], other.cases[1]))
    assert other.cases[1].traceback.endswith("AssertionError: six\n")


def test_commands_and_files(session: aviato.Session) -> None:
    task = Task(command=["sh", "-c", "cat; cat given"], stdin="in ", files={"given": b"file"})
    outcome = one(task, session=session)
    assert outcome.passed and outcome.result is not None and outcome.result.stdout == "in file"
    assert outcome.grading_mode == "command"
    assert one(Task(command=["sh", "-c", "exit 3"]), session=session).message == "returncode 3"


def test_time_limits(session: aviato.Session) -> None:
    outcome = one(Task(code="print('x', flush=True)\nwhile True: pass", tests=TESTS, timeout_seconds=0.5), session=session)
    assert (outcome.verdict, outcome.reward()) == (Verdict.TIMED_OUT, 0.0)
    assert outcome.result is not None and outcome.result.timed_out
    assert one(Task(command=["sleep", "60"]), session=session, timeout_seconds=0.2).verdict is Verdict.TIMED_OUT


@pytest.mark.parametrize("code", [None, "", "  \n"])
def test_nothing_to_run_is_skipped(code: str | None, session: aviato.Session) -> None:
    outcome = one(Task(code=code, tests=TESTS), session=session)
    assert (outcome.verdict, outcome.reward(), outcome.reward(skipped=-0.5), outcome.attempts) == ("skipped", 0.0, -0.5, 0)
    assert session.get_metrics()["aviato/sandboxes_created"] == 0


@pytest.mark.parametrize(
    "code", ["x = '" + "a" * 10_000_000 + "'", "x = '\0'", "\udcff", "print('ä😀')", "\r\ndef f():\r\n    return 1\r\n"]
)
def test_odd_code_has_an_outcome(code: str, session: aviato.Session) -> None:
    assert one(Task(code=code), session=session).verdict in (Verdict.PASSED, Verdict.FAILED)


def test_as_they_finish_with_progress_and_in_order(session: aviato.Session) -> None:
    tasks = [Task(command=["sleep", str(seconds)]) for seconds in (0.6, 0, 0.3)]
    seen: list[tuple[int, int]] = []
    evaluation = evaluate(tasks, session=session, progress=lambda done, total: seen.append((done, total)))
    assert [item.index for item in evaluation.as_completed()] == [1, 2, 0]
    assert [outcome.passed for outcome in evaluation.result()] == [True] * 3
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_awaited(session: aviato.Session) -> None:
    async def main() -> list[Outcome]:
        evaluation = evaluate([Task(code=RIGHT, tests=TESTS)] * 2, session=session)
        assert [item.index async for item in evaluation.as_completed()] in ([0, 1], [1, 0])
        return await evaluation

    assert [outcome.passed for outcome in asyncio.run(main())] == [True, True]


def test_a_lost_sandbox_is_no_verdict(served: Any, session: aviato.Session) -> None:
    before = supervisors(served.pid)
    evaluation = evaluate([Task(command=["sleep", "60"])], session=session, retry_budget_seconds=0)
    kill_the_new_supervisor(served.pid, before)
    outcome = evaluation.result(50)[0]
    assert (outcome.verdict, outcome.reward(), outcome.reward(infrastructure=-1.0)) == ("infrastructure", None, -1.0)
    assert outcome.error is not None and outcome.error.is_infrastructure


def test_a_lost_sandbox_is_tried_again(served: Any, session: aviato.Session) -> None:
    before = supervisors(served.pid)
    evaluation = evaluate([Task(command=["sh", "-c", "sleep 1; echo done"])], session=session)
    kill_the_new_supervisor(served.pid, before)
    outcome = evaluation.result(50)[0]
    assert (outcome.passed, outcome.attempts) == (True, 2)


def test_a_session_that_is_used_for_long_gathers_nothing(session: aviato.Session) -> None:
    assert all(outcome.passed for outcome in evaluate([Task(code=RIGHT)] * 5, session=session).result(50))
    deadline = time.monotonic() + 20
    while session.sandbox_count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("soon_given_up")
def test_no_server_is_no_verdict(tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    outcome = one(Task(code=RIGHT, tests=TESTS), base_url=nowhere, retry_budget_seconds=0)
    assert (outcome.reward(), outcome.verdict, outcome.attempts) == (None, "infrastructure", 1)


def test_a_progress_callback_that_raises_loses_nothing(session: aviato.Session, caplog: pytest.LogCaptureFixture) -> None:
    def progress(done: int, total: int) -> None:
        raise RuntimeError("a mistake of the caller's")

    assert [each.passed for each in evaluate([Task(code=RIGHT)] * 2, session=session, progress=progress).result(50)] == [
        True
    ] * 2
    assert "a mistake of the caller's" in caplog.text


def test_cancelling_ends_everything(served: Any, session: aviato.Session) -> None:
    before = supervisors(served.pid)
    evaluation = evaluate([Task(command=["sleep", "60"])] * 3, session=session)
    deadline = time.monotonic() + 20
    while len(supervisors(served.pid) - before) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    evaluation.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        evaluation.result(20)
    while supervisors(served.pid) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_options_that_cannot_be_meant_are_refused_before_anything_starts(session: aviato.Session) -> None:
    with pytest.raises(TypeError, match="no parameter 'size'"):
        evaluate([Task(code=RIGHT)], session=session, size=1)  # type: ignore[call-arg]
    assert session.sandbox_count == 0


def test_nothing_is_left_to_a_session_of_items_that_have_ended(session: aviato.Session) -> None:
    """Their server ends them, and a session of a long run gathers none; each is counted once."""
    outcomes = evaluate([Task(command=["sh", "-c", f"exit {code}"]) for code in (0, 3, 0)], session=session).result(50)
    assert [outcome.passed for outcome in outcomes] == [True, False, True] and session.sandbox_count == 0
    counted = session.get_metrics()
    assert (counted["aviato/sandboxes_created"], counted["aviato/startup_count"]) == (3, 3)
    assert (counted["aviato/exec_completed_ok"], counted["aviato/exec_completed_nonzero"]) == (2, 1)
    assert not session._made


def test_an_item_that_is_cancelled_counts_as_cancelled(session: aviato.Session) -> None:
    running = evaluate([Task(command=["sleep", "60"])], session=session)
    until = time.monotonic() + 20
    while not session.get_metrics()["aviato/startup_count"] and time.monotonic() < until:
        time.sleep(0.05)
    running.items[0].cancel()
    with pytest.raises(aviato.OperationCancelledError):
        running.items[0].result(20)
    counted = session.get_metrics()
    assert (counted["aviato/exec_cancelled"], counted["aviato/executions"]) == (1, 0)


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="item 0 must be a Task"):
        evaluate(["print(1)"])  # type: ignore[list-item]
    with pytest.raises(aviato.AviatoValidationError, match="max_concurrency"):
        evaluate([], max_concurrency=0)
    with pytest.raises(aviato.AviatoValidationError, match="not both"):
        Task(code="x", command=["true"])
    with pytest.raises(TypeError, match="list of cases"):
        Task(code="x", tests="assert x")  # type: ignore[arg-type]
    with pytest.raises(aviato.AviatoValidationError):
        evaluate([], timeout_seconds=-1)


def test_an_evaluation_that_nobody_looked_at_says_so_once(session: aviato.Session, caplog: pytest.LogCaptureFixture) -> None:
    """As where a program ends by an error of its own before: forty lines would hide that one."""
    evaluation = evaluate([Task(command=["sleep", "60"])] * 40, session=session)
    session.close().result(30)
    evaluation.exception(30)
    evaluation._seen = False
    items = [weakref.ref(item) for item in evaluation.items]
    del evaluation
    gc.collect()
    assert all(item() is None for item in items)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("evaluate ")]
    assert [text[:48] for text in told] == ["evaluate 40 items failed and nobody looked at it"]
