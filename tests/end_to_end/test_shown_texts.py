"""No text that a person sees carries what code inside wrote as it was: not in a verdict, an error, a repr or a table."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import aviato
from aviato.cli.ls import command
from aviato.exceptions import AviatoError
from aviato.rl import CallCase, ProgramCase, Task, evaluate
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict
from aviato.values.text import line, printable, shown

KINDS = {
    "an escape sequence": "\x1b[2J",
    "a title": "\x1b]0;owned\x07",
    "C1 controls": "\x9b2J\x85\x90",
    "marks of direction": "\u202eabc\u202c\u2066x\u2069\u200f",
    "separators of lines": "\u2028\u2029",
    "NUL": "\x00",
    "steps back": "\b\b\x7f",
    "a return": "good\rbad",
    "a line": "good\nbad",
    "feeds": "\x0b\x0c",
    "nothing to see": "\u200b\ufeff\u00ad",
    "tags": "\U000e0041\ue000",
    "half a character": "\ud83d",
    "a byte that was none": "\udcff",
}
HOSTILE = "begin" + "".join(KINDS.values()) + "end"
INSIDE = f"bytes.fromhex({HOSTILE.encode('utf-8', 'surrogatepass').hex()!r}).decode('utf-8', 'surrogatepass')"
"""The text as an expression, since the file of a program has to be UTF-8."""
BYTES = HOSTILE.encode("utf-8", "surrogatepass").replace(b"\0", b"")
NAME = HOSTILE.encode("utf-8", "replace").replace(b"\0", b"").decode()
"""What a path can be that a client gives."""


def is_clean(text: str) -> bool:
    return all(part.isprintable() for part in text.replace("\t", "").split("\n"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_escaped_wherever_text_is_kept(kind: str) -> None:
    text = f"é ☃ {KINDS[kind]} 'it' \\x1b"
    for clean in (line(text), shown(text)):
        assert clean.isprintable() and clean.startswith("é ☃ ") and clean.endswith(" 'it' \\x1b")
        assert line(clean) == clean
    assert is_clean(printable(text)) and printable("a\n\tb") == "a\n\tb"
    case = CaseOutcome(name="c", passed=False, reason="exception", message=text, traceback=text, stdout=text)
    assert case.message.isprintable() and is_clean(case.traceback) and case.stdout == text
    one_line = (
        Outcome(verdict=Verdict.FAILED, message=text).message,
        aviato.GradeResult(passed=False, cases=[], exec_result=None, mode="separate", message=text).message,  # type: ignore[arg-type]
        aviato.GradeCase(name=text, passed=False, message=text).message,
        aviato.GradeCase(name=text, passed=False).name,
    )
    assert all(each.isprintable() for each in one_line), one_line
    errors = [kind for kind in vars(aviato.exceptions).values() if isinstance(kind, type) and issubclass(kind, AviatoError)]
    assert len(errors) > 20
    for error in (kind(text) for kind in errors):
        assert is_clean(str(error)) and is_clean(str(pickle.loads(pickle.dumps(error))))
    raised = aviato.SandboxExecutionError("x", exception_type=text, exception_message=text)
    assert is_clean(f"{raised.exception_type}{raised.exception_message}")


def says(statement: str, test: Any = "assert f(1) == 2") -> Task:
    return Task(code=f"X = {INSIDE}\ndef f(n):\n    {statement}\n", tests=[test])


TASKS = {
    "an exception": says("raise ValueError(X)"),
    "an assertion": says("assert False, X"),
    "the name of an exception": says(f"raise type({NAME!r}, (Exception,), {{}})"),
    "a way out": says("raise SystemExit(X)"),
    "a value": says("return X"),
    "a test's own words": says("return X", "got = f(1)\nassert got == 2, got"),
    "a repr": says("return type('R', (), {'__repr__': lambda self: X})()"),
    "a call that raises": says("raise ValueError(X)", CallCase("f", [1], 2)),
    "data": says("return X", CallCase("f", [1], 2)),
    "what is printed": Task(code=f"import sys; sys.stdout.buffer.write({BYTES!r})", expected_output="x"),
    "last words": Task(code=f"import sys; sys.stderr.buffer.write({BYTES!r}); sys.exit(3)", expected_output="x"),
    "a syntax error": Task(code="x = \x1b[2J\u202e", expected_output="x"),
    "a compiler's": Task(code="int main() { \x1b[2J \u202e }", language="c", tests=[ProgramCase("", "x")]),
    "a program that is not there": Task(command=[NAME, NAME]),
}


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    return session.sandbox()


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_verdicts(session: aviato.Session, mode: str) -> None:
    tasks = [replace(task, grading=mode) if task.tests else task for task in TASKS.values()]
    outcomes = dict(zip(TASKS, evaluate(tasks, session=session).result(55), strict=True))
    for name, found in outcomes.items():
        assert not found.passed and found.message, (name, found)
        assert is_clean(str(found.error))
        texts = [found.message, repr(found), *(each for case in found.cases for each in (case.message, repr(case)))]
        assert all(each.isprintable() for each in texts), (name, texts)
        assert all(is_clean(case.traceback) for case in found.cases), name
    assert "begin" in outcomes["an exception"].message


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_grades(sandbox: aviato.Sandbox, mode: Any) -> None:
    sandbox.write_file("solution.py", f"X = {INSIDE}\ndef f(n):\n    raise ValueError(X)\n".encode()).result()
    test = (
        "import unittest\nfrom solution import f\n"
        "class TestIt(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(f(1), 2)\n"
        "    def test_parts(self):\n"
        f"        with self.subTest({NAME!r}):\n            f(1)\n"
        f"setattr(TestIt, 'test_' + {NAME!r}, TestIt.test_it)\n"
    )
    command = ["python3", "-m", "unittest", "-v"]
    found = sandbox.grade({"test_it.py": test.encode()}, command, result_paths=["solution.py"], mode=mode).result(55)
    assert not found.passed and len(found.cases) == 3 and any("begin" in case.name for case in found.cases), found
    texts = [found.message, repr(found), *found.statuses, *(case.message for case in found.cases)]
    assert all(each.isprintable() for each in texts), texts


def raises(text: str) -> None:
    raise ValueError(text)


def leaves(text: str) -> None:
    raise SystemExit(text)


def returns(text: str) -> Any:
    return type(text.replace("\0", "").encode("utf-8", "replace").decode(), (), {})()


def writes(text: str) -> None:
    import os

    os.write(2, text.encode("utf-8", "surrogatepass"))
    os._exit(3)


def forges(text: str) -> None:
    import json
    import os
    import sys

    with open(sys.argv[2], "w") as file:
        file.write(json.dumps({"outcome": "exception", "type": text, "message": text, "traceback": text}) + "\n")
    os._exit(0)


@pytest.mark.parametrize("function", [raises, leaves, returns, writes, forges])
def test_errors_of_functions(session: aviato.Session, function: Callable[[str], Any]) -> None:
    text = HOSTILE.encode("utf-8", "replace").decode()  # JSON has no half of a character
    with pytest.raises(AviatoError) as caught:
        session.function()(function)(text).result(30)
    error: Any = caught.value
    assert "begin" in str(error) or "end" in str(error)
    told = [str(error), repr(error), *(getattr(error, name, None) or "" for name in ("exception_type", "exception_message"))]
    assert all(map(is_clean, told)), told


PRINT = "import sys; sys.stderr.buffer.write(bytes.fromhex(sys.argv[1])); sys.exit(3)"
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "last words": lambda box, _: box.exec(["python3", "-c", PRINT, BYTES.hex()], check=True),
    "a command that took too long": lambda box, _: box.exec(["sh", "-c", "sleep 9", NAME], timeout_seconds=0.1),
    "a command that failed": lambda box, _: box.exec(["false", NAME], check=True),
    "a directory for it": lambda box, _: box.exec(["true"], cwd=f"/{NAME}"),
    "reading": lambda box, _: box.read_file(NAME),
    "looking": lambda box, _: box.stat(NAME),
    "listing": lambda box, _: box.list_files(NAME),
    "removing": lambda box, _: box.remove(NAME),
    "copying out what is not there": lambda box, path: box.download(NAME, path / "out"),
    "copying out a link that leads away": lambda box, path: box.download("tree", path / "out"),
    "copying in what is not there": lambda box, path: box.upload(path / NAME, "in"),
}


@pytest.fixture(scope="module")
def tree(sandbox: aviato.Sandbox) -> None:
    source = "import os, sys; os.mkdir('tree'); os.symlink('/etc/' + sys.argv[1], 'tree/' + sys.argv[1])"
    sandbox.exec(["python3", "-c", source, NAME], check=True).result()


@pytest.mark.parametrize("call", CALLS)
def test_errors_of_calls(sandbox: aviato.Sandbox, tree: None, call: str, tmp_path: Path) -> None:
    def told(error: BaseException) -> None:
        assert "begin" in str(error) or "end" in str(error)
        assert is_clean(str(error)) and repr(error).isprintable() and is_clean(repr(getattr(error, "exec_result", "")))

    with pytest.raises((AviatoError, OSError)) as caught:
        CALLS[call](sandbox, tmp_path).result(30)
    told(caught.value)

    async def same() -> None:
        async with aviato.AsyncClient(base_url=sandbox._state.config.connection.base_url) as client:
            await CALLS[call](await client.from_id(sandbox.sandbox_id), tmp_path)

    with pytest.raises((AviatoError, OSError)) as caught:
        asyncio.run(same())
    told(caught.value)


def test_what_stays_as_it_is(sandbox: aviato.Sandbox) -> None:
    found = sandbox.exec(["python3", "-c", PRINT, BYTES.hex()]).result()
    assert found.stderr_bytes == BYTES and "\x1b[2J" in found.stderr
    assert repr(found).isprintable()


def test_names_in_a_log(sandbox: aviato.Sandbox, tree: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "aviato"):
        sandbox.download("tree", tmp_path / "out", outside_links="skip").result()
        sandbox.exec(["false", NAME]).result()
    assert "left out" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records), caplog.messages


def test_reprs(sandbox: aviato.Sandbox) -> None:
    process = sandbox.exec(["true", NAME])
    process.wait()
    sandbox.exec(["touch", NAME], check=True).result()
    [found] = [each for each in sandbox.list_files().result() if "begin" in each.path]
    assert NAME in found.path
    for each in (process, process.result(), process.stdout, found, sandbox):
        assert repr(each).isprintable()


def test_a_table(server: Any) -> None:
    tag = "begin\u202e\u2066\u200bend"
    with aviato.Sandbox(base_url=server.url, tags=[tag]) as sandbox:
        done = CliRunner().invoke(command, ["--base-url", server.url])
        machine_readable = CliRunner().invoke(command, ["--base-url", server.url, "--json"])
    assert done.exit_code == 0 and sandbox.sandbox_id in done.output
    assert "begin\\u202e\\u2066\\u200bend" in done.output and is_clean(done.output)
    assert machine_readable.output.isascii()
