"""The program that runs cases inside, without a sandbox: the test plays process 1 and hears its records."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import os
import select
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from aviato.grading import driver
from aviato.grading.inside import program, stand_ins
from aviato.grading.link import HOST

LOWEST_FD = 20
"""None of those that the program has its own ends at."""
PATIENCE_SECONDS = 50.0


class Told(NamedTuple):
    """What the program has said and printed."""

    bodies: list[list[str]]
    stdout: str
    stderr: str
    reports: str


def follow(command: driver.Command, first: int = 0) -> Told:
    """Run the program from a case on, as process 1 does, and let it go on after each record but the last."""
    with ExitStack() as stack:
        kept = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)]
        kept[0].write(command.given)
        kept[0].seek(0)
        records, theirs = _pipe(stack)
        ours, go = _pipe(stack)
        begun = round(time.monotonic() - 0.001, 6)
        fds = [theirs.fileno(), ours.fileno(), fcntl.fcntl(kept[3], fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)]
        moves = "".join(f"os.dup2({fd}, {number}); os.close({fd})\n" for number, fd in enumerate(fds, 3))
        child = subprocess.Popen(
            [*command.argv[:-1], f"import os\n{moves}{command.argv[-1]}"],
            stdin=kept[0],
            stdout=kept[1],
            stderr=kept[2],
            pass_fds=fds,
            cwd=stack.enter_context(tempfile.TemporaryDirectory()),
        )
        stack.callback(child.wait)
        stack.callback(child.kill)
        theirs.close()
        ours.close()
        os.close(fds[2])
        go.write(b"%d\n" % first)
        bodies: list[list[str]] = []
        while (body := _record(records, command.cases["token"].encode())) is not None:
            bodies.append(body.decode().split("\0"))
            if not bodies[1:]:
                kind, when = bodies.pop()
                assert kind == "begin" and begun <= float(when) <= time.monotonic()
                bodies.append([kind])
            if len(bodies) > len(command.cases["timeout_seconds"]) - first:
                go.close()
            elif bodies[1:]:
                with suppress(BrokenPipeError):  # One that goes no further may be gone.
                    go.write(b"g")
        assert child.wait(PATIENCE_SECONDS) == 0, _text(kept[2])
        return Told(bodies, *map(_text, kept[1:]))


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    low = os.pipe()
    read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD) for fd in low)
    for fd in low:
        os.close(fd)
    return stack.enter_context(open(read, "rb", buffering=0)), stack.enter_context(open(write, "wb", buffering=0))


def _record(records: IO[bytes], token: bytes) -> bytes | None:
    """The next one; None: there is none, and the program has ended."""
    if not (head := _read(records, len(token) + 8)):
        return None
    assert head.startswith(token)
    return _read(records, int(head[len(token) :]))


def _read(records: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        assert select.select([records], [], [], PATIENCE_SECONDS)[0], "the program stands still"
        piece = records.read(size - len(data))
        if not piece:
            break
        data += piece
    return data


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def of(code: str, *sources: str, **options: Any) -> driver.Command:
    cases = [driver.Case(source, f"test_{number}") for number, source in enumerate(sources, 1)]
    return driver.command(code, cases, python=options.pop("python", sys.executable), **options)


COUNTS = "kept = []\ndef f():\n    kept.append(1)\n    return len(kept)\n"
CASES = ["assert f() == 1", "assert f() == 1", "import sys; print('out'); print('err', file=sys.stderr); assert f() == 1"]


@pytest.mark.parametrize("agrees", [True, False], ids=["as here", "another version"])
def test_wherever_it_runs(agrees: bool) -> None:
    """With what the other kind of Python would take made useless."""
    command, (program, source) = of(COUNTS, *CASES), driver.cases_program()
    magic = importlib.util.MAGIC_NUMBER if agrees else b"\0\0\0\0"
    unused = source if agrees else program
    given = magic + command.given[len(magic) :].replace(unused, bytes(len(unused)))
    told = follow(command._replace(given=given))
    assert [body[:2] for body in told.bodies] == [["begin"], ["passed"], ["failed", "assertion"], ["passed"]]
    assert (told.stdout, told.stderr) == ("out\n", "err\n")


def test_bytecode_is_used_where_the_versions_agree() -> None:
    program, source = driver.cases_program()
    given = of("", "").given
    assert given.startswith(importlib.util.MAGIC_NUMBER) and program in given and source in given
    assert len(given) < 36 << 10  # It is to fit the 64 KiB of its command's request with room for the cases.


def test_it_begins_with_any_case() -> None:
    told = follow(of("print('code')", "print(1)", "print(2)", "print(3)"), first=1)
    assert (told.bodies, told.stdout) == ([["begin"], ["passed"], ["passed"]], "code\n2\n3\n")


def test_a_case_waits_until_it_may_begin() -> None:
    """Told nothing more after the number, it has run one case and is at its end where the writer is gone."""
    command = of("", "print(1)", "print(2)")
    token = command.cases["token"].encode()
    with ExitStack() as stack:
        records, theirs = _pipe(stack)
        ours, go = _pipe(stack)
        moves = f"import os\nos.dup2({theirs.fileno()}, 3); os.dup2({ours.fileno()}, 4)\n"
        go.write(b"0\n")
        go.close()
        done = subprocess.run(
            [*command.argv[:-1], moves + command.argv[-1]],
            input=command.given,
            capture_output=True,
            pass_fds=(theirs.fileno(), ours.fileno()),
            timeout=PATIENCE_SECONDS,
        )
        theirs.close()
        assert (done.returncode, done.stdout, done.stderr) == (0, b"1\n", b"")
        assert [(_record(records, token) or b"").split(b"\0")[0] for _ in range(3)] == [b"begin", b"passed", b""]


@pytest.mark.parametrize(("limit", "told"), [(None, []), (20.0, [["begin"]])], ids=["no limit", "a limit"])
def test_where_cases_have_limits_the_beginning_is_told_at_once(limit: float | None, told: list[list[str]]) -> None:
    cases = [driver.Case("", "test_1", limit)]
    assert follow(driver.command("import os; os._exit(0)", cases, python=sys.executable)).bodies == told


def test_after_a_failure_the_code_runs_anew_in_the_same_process() -> None:
    shown, what = "import os; print(os.getpid()); ", "ZeroDivisionError"
    told = follow(of("print('code')\n" + COUNTS, f"{shown}f(); 1 / 0", f"{shown}assert f() == 1"))
    begin, failed, passed = told.bodies
    assert (begin, failed[:3], passed) == (["begin"], ["failed", "exception", f"{what}: division by zero"], ["passed"])
    assert "test_1" in failed[3] and failed[3].endswith(f"{what}: division by zero\n")
    code, first, again, second = told.stdout.split()
    assert (code, again, first) == ("code", "code", second)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import sys; sys.exit(0)", ["last", "ended_early", "the code called exit(0)"]),
        ("raise KeyboardInterrupt", ["last", "exception", "KeyboardInterrupt: "]),
        ("raise MemoryError", ["last", "out_of_memory", "MemoryError"]),
        (
            "import threading; threading.Thread(target=threading.Event().wait).start(); assert False, 'why'",
            ["last", "assertion", "why"],
        ),
    ],
    ids=["exit", "interrupt", "no memory", "a thread"],
)
def test_after_what_leaves_something_behind_no_case_begins(source: str, told: list[str]) -> None:
    begin, last = follow(of("", source, "print('another')")).bodies
    assert (begin, last[:3]) == (["begin"], told)


def test_reports_have_a_descriptor_of_their_own() -> None:
    told = follow(of("", "__aviato_report__({'name': 'ä'}); assert False", "__aviato_report__(2)", reports=True))
    assert [body[0] for body in told.bodies] == ["begin", "failed", "passed"]
    assert told.reports == "{'name': '\\xe4'}\n2\n" and told.stdout == ""


PACKAGE = 'VALUE = "found"\n'
LATE = """
import sys
import venv
assert sys.flags.no_site == 0 and "site" not in sys.modules and exit and quit and help
try:
    import there_is_no_such_package
except ModuleNotFoundError as error:
    assert error.name == "there_is_no_such_package"
import importlib.metadata, subprocess, late_package
assert late_package.VALUE == "found" and importlib.metadata.version("late_package") == "1.5"
assert sys.prefix == {prefix!r}
asked = "import late_package, sys; sys.exit(sys.flags.isolated)"
subprocess.run([sys.executable, *subprocess._args_from_interpreter_flags(), "-c", asked], check=True)
"""
BY_METADATA = "import importlib.metadata\nassert importlib.metadata.version('late_package') == '1.5'\nimport late_package\n"


@pytest.mark.parametrize("code", [LATE, BY_METADATA], ids=["by import", "by its version"])
def test_packages_are_found_late(code: str, tmp_path: Path) -> None:
    venv.create(tmp_path)
    python = tmp_path / "bin" / "python"
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (packages / "late_package.py").write_text(PACKAGE)
    (packages / "late_package-1.5.dist-info").mkdir()
    (packages / "late_package-1.5.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: late_package\nVersion: 1.5\n"
    )
    told = follow(of(code.replace("{prefix!r}", repr(str(tmp_path))), "", python=str(python), packages_later=True))
    assert told.bodies == [["begin"], ["passed"]], told


@pytest.mark.parametrize("text", [stand_ins(), program(*HOST), program("origins", "pytests", "unittests", "runs", "probe")])
def test_no_name_stands_twice_in_a_program(text: str) -> None:
    found: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [target.id for target in targets if isinstance(target, ast.Name)]
    assert sorted({name for name in found if found.count(name) > 1}) == ["TYPE_CHECKING"]
