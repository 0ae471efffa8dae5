"""What tasks and cases refuse when they are made, in tables, and that what they take can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import aviato
from aviato.rl import CallCase, Outcome, ProgramCase, Task, TestCase, Verdict, evaluate, exact, judges

CALL, PROGRAM, TEST = CallCase("f", [1], 1), ProgramCase("5", "5"), TestCase(source="assert f(1) == 1")


def nested(depth: int, make: Callable[[Any], Any]) -> Any:
    one: Any = 0
    for _ in range(depth):
        one = make(one)
    return one


def in_list(one: Any) -> list[Any]:
    return [one]


def in_dict(one: Any) -> dict[str, Any]:
    return {"a": one}


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    # tests
    "tests, stdin beside a call": (lambda: Task(code="x", tests=[CALL], stdin="5"), "give each ProgramCase its stdin"),
    "tests, stdin beside a program": (lambda: Task(code="x", tests=[PROGRAM], stdin=""), "give each ProgramCase its stdin"),
    "tests, stdin beside a source": (lambda: Task(code="x", tests=[TEST], stdin=b""), "give each ProgramCase its stdin"),
    "tests, a dict": (lambda: Task(code="x", tests={"assert f(1) == 1": 1}), "tests must be a list .* not dict"),
    "tests, a set": (lambda: Task(code="x", tests={"assert f(1) == 1"}), "tests must be a list .* not set"),
    "tests, None": (lambda: Task(code="x", tests=None), r"tests must be a list .* \(\) for none"),
    "tests, a number": (lambda: Task(code="x", tests=5), "tests must be a list .* not int"),
    "tests, bytes": (lambda: Task(code="x", tests=b"assert 1"), r"write \[case\]"),
    "tests, one case": (lambda: Task(code="x", tests=CALL), r"write \[case\]"),
    "tests, of numbers": (lambda: Task(code="x", tests=[1]), "tests must be cases or sources, not int"),
    # files
    "files, a list": (lambda: Task(code="x", files=["a"]), "files must be a dict"),
    "files, None": (lambda: Task(code="x", files=None), "files must be a dict"),
    "files, text": (lambda: Task(code="x", files={"a": "text"}), r"'a' is text: write \.encode\(\)"),
    "files, text of a case": (lambda: ProgramCase(files={"a": "text"}), r"'a' is text: write \.encode\(\)"),
    "files, no content": (lambda: Task(code="x", files={"a": None}), "not NoneType as that of 'a'"),
    "files, a path of bytes": (lambda: Task(code="x", files={b"a": b""}), "paths that are str, not bytes"),
    "files, no path": (lambda: Task(code="x", files={"": b""}), "'' is empty"),
    "files, a directory": (lambda: ProgramCase(files={"d/": b""}), "'d/' is a directory"),
    "files, this directory": (lambda: ProgramCase(files={".": b""}), "'.' is a directory"),
    "files, NUL": (lambda: Task(code="x", files={"a\0b": b""}), "NUL or a lone surrogate"),
    "files, a surrogate": (lambda: Task(code="x", files={"\udc80": b""}), "NUL or a lone surrogate"),
    "files, outside": (lambda: Task(code="x", files={"../a": b""}), "leads out"),
    "files, outside in between": (lambda: Task(code="x", files={"a/../../b": b""}), "leads out"),
    "files, a long name": (lambda: Task(code="x", files={"a" * 256: b""}), "longer than a system takes"),
    "files, a long path": (lambda: Task(code="x", files={"a/" * 2048 + "b": b""}), "longer than a system takes"),
    "files, one twice": (lambda: Task(code="x", files={"a": b"", "./a": b""}), "are one file"),
    "files, a file and a directory": (lambda: Task(code="x", files={"a": b"", "a/b": b""}), "needs a directory"),
    "files, the code": (lambda: Task(code="x", files={"main.py": b""}), "file of the code itself"),
    "files, the code otherwise": (lambda: Task(code="x", files={"./main.py": b""}), "file of the code itself"),
    "files, the code as a directory": (lambda: Task(code="x", files={"main.py/a": b""}), "file of the code itself"),
    "files, the code's module": (lambda: Task(code="x", tests=[TEST], files={".//solution.py": b""}), "of the code itself"),
    "files, the code beside a case": (
        lambda: Task(code="x", tests=[PROGRAM, ProgramCase(files={"./main.py": b""})]),
        "file of the code itself",
    ),
    "files, what is compiled": (lambda: Task(code="x", language="c", files={"main": b""}), "file of the code itself"),
    # programs
    "returncode, text": (lambda: ProgramCase(returncode="0"), "returncode must be an int"),
    "returncode, a bool": (lambda: ProgramCase(returncode=False), "returncode must be an int"),
    "returncode, a float": (lambda: ProgramCase(returncode=0.0), "returncode must be an int"),
    "returncode, a signal": (lambda: ProgramCase(returncode=-9), "killed by signal 9 is 137"),
    "returncode, too much": (lambda: ProgramCase(returncode=256), "0 to 255"),
    "args, one text": (lambda: ProgramCase(args="ab"), "args must be a list of strings"),
    "args, a number": (lambda: ProgramCase(args=5), "args must be a list of strings"),
    "args, numbers": (lambda: ProgramCase(args=[5]), "args must be strings"),
    "args, NUL": (lambda: ProgramCase(args=["a\0"]), "NUL"),
    "args, a surrogate": (lambda: ProgramCase(args=["a", "\udc80"]), "argument 2 of args has a lone surrogate"),
    "args, long": (lambda: ProgramCase(args=["x" * 200_000]), "give what is long as stdin"),
    "args, many": (lambda: ProgramCase(args=["x" * 1000] * 140), "give what is long as stdin"),
    "stdin, a number": (lambda: ProgramCase(5), "stdin must be a str or bytes"),
    "expected_stdout, a number": (lambda: ProgramCase("", 5), "expected_stdout must be a str or bytes"),
    # calls
    "expected, left out": (lambda: CallCase("f", [1]), "expected is missing: .* None included"),
    "expected, an object": (lambda: CallCase("f", [1], object()), "expected holds a object"),
    "expected, a generator": (lambda: CallCase("f", [1], (n for n in range(3))), "expected holds a generator"),
    "expected, a range": (lambda: CallCase("f", [1], {"a": [range(3)]}), "expected holds a range"),
    "expected, a date where types count": (lambda: CallCase("f", [1], date.min, judge=exact), "expected holds a date"),
    "expected, a Decimal beyond all reckoning": (
        lambda: CallCase("f", [1], Decimal("1e9999"), judge=exact),
        "expected holds a Decimal",
    ),
    "expected, deep": (lambda: CallCase("f", [1], nested(150, in_list)), "nested more than"),
    "expected, endless": (lambda: CallCase("f", [1], _endless()), "nested more than"),
    "args, deep lists": (lambda: CallCase("f", [nested(150, in_list)], 1), "args holds a value that is nested more than"),
    "args, deep dicts": (lambda: CallCase("f", [nested(98, in_dict)], 1), "args holds a value that is nested more than"),
    "args, an object": (lambda: CallCase("f", [object()], 1), "args holds a object"),
    "kwargs, deep": (lambda: CallCase("f", [], 1, kwargs={"a": nested(98, in_dict)}), "kwargs holds a value"),
    "kwargs, numbers as names": (lambda: CallCase("f", [], 1, kwargs={1: 2}), "kwargs must be a dict of names"),
    "kwargs, a list": (lambda: CallCase("f", [], 1, kwargs=[1]), "kwargs must be a dict of names .* list"),
    "from JSON, deep": (lambda: CallCase.from_json_lines("f", "[" * 100_000, "1"), "must be JSON"),
    # tasks
    "language, None": (lambda: Task(code="x", language=None), "language must be a str"),
    "language, not known": (lambda: Task(code="x", language="cobol"), r"one of bash \(sh.*cpp \(c[+][+].*python \(py"),
    "language, a later C++": (lambda: Task(code="x", language="c++23"), "language must be one of"),
    "prelude, bytes": (lambda: Task(code="x", tests=[CALL], prelude=b""), "prelude must be a str, not bytes"),
    "prelude, None": (lambda: Task(code="x", tests=[CALL], prelude=None), "prelude must be a str"),
    "stdin of a command, a number": (lambda: Task(command=["cat"], stdin=5), "stdin must be a str or bytes"),
    "stdin of code, a list": (lambda: Task(code="x", stdin=["a"]), "stdin must be a str or bytes"),
    "expected_output, a number": (lambda: Task(code="x", expected_output=5), "expected_output must be a str or bytes"),
    "command, a number": (lambda: Task(command=5), "command must be a list of strings"),
    "command, a dict": (lambda: Task(command={"a": 1}), "command must be a list of strings"),
    "stop_at_first_failure": (
        lambda: Task(code="x", stop_at_first_failure="no"),
        "stop_at_first_failure must be True or False",
    ),
    "fresh_grader": (lambda: Task(code="x", fresh_grader=1), "fresh_grader must be True or False"),
    "code_names, a number": (lambda: Task(code="x", code_names=5), "code_names must be a list of strings"),
    # evaluate
    "evaluate, one task": (lambda: evaluate(Task(code="x")), r"write \[task\]"),
    "evaluate, progress": (lambda: evaluate([], progress=5), "progress must be True, False, None, or a callable"),
    "evaluate, no budget": (lambda: evaluate([], retry_budget_seconds=-1), "retry_budget_seconds must be 0 or more"),
    "evaluate, NaN": (lambda: evaluate([], retry_budget_seconds=float("nan")), "retry_budget_seconds must be 0 or more"),
    "evaluate, budget of text": (lambda: evaluate([], retry_budget_seconds=""), "must be a number of seconds"),
}


def _endless() -> list[Any]:
    one: list[Any] = []
    one.append(one)
    return one


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_when_it_is_made(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises((TypeError, aviato.AviatoValidationError), match=message):
        make()


LANGUAGES = {
    " Python ": "python",
    "PY": "python",
    "python3": "python",
    "c++": "cpp",
    "C++17": "cpp",
    "cpp17": "cpp",
    "JavaScript": "nodejs",
    "golang": "go",
    "Rust\n": "rust",
    "sh": "bash",
    "C": "c",
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_languages_by_all_their_names(name: str) -> None:
    assert Task(code="x", language=name).language == LANGUAGES[name]


def test_what_is_given_is_kept_as_it_was() -> None:
    files = {"a": bytearray(b"1")}
    task = Task(code="x", files=files, tests=(PROGRAM for _ in range(2)))  # type: ignore[arg-type,dict-item]
    files["b"] = bytearray(b"2")
    assert (task.files, len(task.tests)) == ({"a": b"1"}, 2)
    assert CallCase("f", [], None).expected is None
    assert CallCase("f", [], range(3), judge=lambda case, actual: actual in case.expected).expected == range(3)
    assert ProgramCase("").judge is judges.text, "whose output does not matter has no need of another"


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


def show(files: str) -> str:
    return f"for name in {files}: print(open(name).read())"


DEEP_LISTS, DEEP_DICTS = nested(94, in_list), nested(94, in_dict)
TAKEN: dict[str, Task] = {
    "lists as deep as may be": Task(code="def f(x): return x", tests=[CallCase("f", [DEEP_LISTS], DEEP_LISTS)]),
    "dicts as deep as may be": Task(code="def f(x): return x", tests=[CallCase("f", [DEEP_DICTS], DEEP_DICTS)]),
    "dicts by name": Task(code="def f(*, x): return 1", tests=[CallCase("f", [], 1, kwargs={"x": DEEP_DICTS})]),
    "deep tuples as keys": Task(code="def f(x): return {x: 1}", tests=[CallCase("f", [(1, (2, (3,)))], {(1, (2, (3,))): 1})]),
    "arguments as long as may be": Task(
        code="import sys\nprint(len(sys.argv[1]))", tests=[ProgramCase("", "131071", args=["x" * ((128 << 10) - 1)])]
    ),
    "files of a task": Task(code=show("['a', 'd/b']"), files={"./a": b"1", "d//b": b"2"}, expected_output="1\n2"),
    "files of a case": Task(
        code=show("['a', 'd/b', '-c']"),
        tests=[ProgramCase("", "1\n2\n3", files={"./a": b"1", "d/./b": bytearray(b"2"), "-c": b"3"})],  # type: ignore[dict-item]
    ),
    "a name as long as may be": Task(code=show("['a' * 255]"), tests=[ProgramCase("", "1", files={"a" * 255: b"1"})]),
    "a returncode of a signal": Task(
        code="import os\nos.kill(os.getpid(), 9)", tests=[ProgramCase(returncode=137), ProgramCase(returncode=None)]
    ),
    "another returncode": Task(code="exit(255)", tests=[ProgramCase(returncode=255)]),
    "a Decimal": Task(code="def f(): return [0.1 + 0.2]", tests=[CallCase("f", [], [Decimal("0.3")])]),
}


def test_what_is_taken_can_be_run(session: aviato.Session) -> None:
    found: list[Outcome] = evaluate(list(TAKEN.values()), session=session, timeout_seconds=30).result(55)
    assert {name: (one.verdict, one.message) for name, one in zip(TAKEN, found, strict=True)} == dict.fromkeys(
        TAKEN, (Verdict.PASSED, "")
    )
