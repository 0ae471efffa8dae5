"""How one item is run in a sandbox and how its verdict is read."""

from __future__ import annotations

import ast
import functools
import importlib.util
import marshal
import secrets
from importlib import resources
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxCommandTimeoutError, SandboxError
from aviato.rl.outcome import CaseOutcome, Outcome, Task, TestCase, Verdict

if TYPE_CHECKING:
    from aviato.results import ProcessResult
    from aviato.sandbox import Sandbox

NONCE_BYTES = 32
LOADER = """
import os, _frozen_importlib_external as importer
def take(count):
    data = os.read(0, count)
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more: os._exit(3)
        data += more
    return data
magic, sizes = take(4), [int(take(8)) for _ in range(3)]
program, source = take(sizes[0]), take(sizes[1])
names = {"__name__": "aviato_cases", "__builtins__": __builtins__}
if magic == importer.MAGIC_NUMBER:
    import marshal
    exec(marshal.loads(program), names)
else:
    exec(compile(source, "aviato_cases", "exec"), names)
names["main"](take, sizes[2])
os._exit(0)
"""
"""Compiling the program inside would take 5 ms, so it comes as bytecode where the versions agree."""
MAX_OUTPUT_BYTES = 64 << 20
"""Of the records; each case keeps at most 64 KiB of each stream."""


async def grade_command(sandbox: Sandbox, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """A command passes by its returncode."""
    assert task.command is not None
    stdin = task.stdin if task.stdin is not None else False
    try:
        result = await sandbox.exec(task.command, stdin=stdin, timeout_seconds=timeout_seconds)
    except SandboxError as error:
        return _of_error(error, (), "command", attempts)
    verdict, message = Verdict.PASSED, ""
    if result.oom_killed:
        verdict, message = Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    elif result.returncode != 0:
        verdict, message = Verdict.FAILED, f"returncode {result.returncode}"
    return _outcome(verdict, message, (), result, "command", attempts)


async def grade_in_process(sandbox: Sandbox, task: Task, timeout_seconds: float, attempts: int) -> Outcome:
    """Code passes if each of its cases has written its own record; without cases, if it runs to its end."""
    cases = [case for case in task.tests if isinstance(case, TestCase)]
    names = [case.name or f"test_{number}" for number, case in enumerate(cases, 1)] or ["runs"]
    sources = [{"source": case.source, "timeout_seconds": case.timeout_seconds} for case in cases]
    sources = sources or [{"source": "", "as_main": True}]
    payload = {
        "code": task.code,
        "cases": [{**source, "name": name} for source, name in zip(sources, names, strict=True)],
        "case_timeout_seconds": task.case_timeout_seconds,
    }
    nonces = [secrets.token_hex(NONCE_BYTES // 2).encode() for _ in range(len(cases or names) + 1)]
    given = _given(ascii(payload).encode(), nonces)
    command = ["python3", "-I", "-c", LOADER]
    try:
        result = await sandbox.exec(command, stdin=given, timeout_seconds=timeout_seconds, max_output_bytes=MAX_OUTPUT_BYTES)
    except SandboxCommandTimeoutError as error:
        assert error.exec_result is not None
        found, _ = _records(error.exec_result, nonces, names)
        message = f"ran longer than {timeout_seconds:g} s"
        return _outcome(Verdict.TIMED_OUT, message, _filled(found, names), error.exec_result, "in_process", attempts)
    except SandboxError as error:
        return _of_error(error, _filled([], names), "in_process", attempts)
    found, whole = _records(result, nonces, names)
    done = _filled(found, names)
    verdict, message = _verdict(done, whole, result)
    return _outcome(verdict, message, done, result, "in_process", attempts)


def _given(payload: bytes, nonces: list[bytes]) -> bytes:
    """What the loader reads: the program in both forms, then what the program reads."""
    program, source = _driver()
    sizes = b"%8d%8d%8d" % (len(program), len(source), len(payload))
    return b"".join((importlib.util.MAGIC_NUMBER, sizes, program, source, payload, *nonces))


@functools.cache
def _driver() -> tuple[bytes, bytes]:
    """The program that runs inside, compiled for Pythons of this version, and its source for others."""
    source = resources.files("aviato.rl").joinpath("inside.py").read_bytes()
    return marshal.dumps(compile(source, "aviato_cases", "exec", optimize=0)), source


def _records(result: ProcessResult, nonces: list[bytes], names: list[str]) -> tuple[list[CaseOutcome], bool]:
    """The outcomes that the keeper wrote, and whether it wrote its last line after exactly as many as there are cases.

    The n-th record begins with the n-th nonce, which the keeper had only once the n-th case was over.
    """
    found: list[CaseOutcome] = []
    for line in result.stdout_bytes.split(b"\n"):
        if not line.startswith(nonces[len(found)] + b" "):
            continue
        try:
            record: dict[str, Any] = ast.literal_eval(line[NONCE_BYTES + 1 :].decode("ascii"))
        except (ValueError, SyntaxError):
            continue
        if "cases" in record:
            return found, record["cases"] == len(names) == len(found)
        if len(found) == len(names):
            return found, False
        found.append(_case(names[len(found)], record))
    return found, False


def _case(name: str, record: dict[str, Any]) -> CaseOutcome:
    return CaseOutcome(
        name=name,
        passed=record.get("passed") is True,
        reason=str(record.get("reason", "")),
        message=str(record.get("message", "")),
        traceback=str(record.get("traceback", "")),
        duration_seconds=float(record.get("duration_seconds", 0.0)),
        stdout=str(record.get("stdout", "")),
        stderr=str(record.get("stderr", "")),
    )


def _filled(found: list[CaseOutcome], names: list[str]) -> tuple[CaseOutcome, ...]:
    missing = [CaseOutcome(name=name, passed=False, reason="not_run", message="not run") for name in names[len(found) :]]
    return (*found, *missing)


def _verdict(cases: tuple[CaseOutcome, ...], whole: bool, result: ProcessResult) -> tuple[Verdict, str]:
    if result.oom_killed:
        return Verdict.OUT_OF_MEMORY, "killed at the memory limit"
    first = next((case for case in cases if not case.passed), None)
    if first is not None:
        verdict = {"timed_out": Verdict.TIMED_OUT, "out_of_memory": Verdict.OUT_OF_MEMORY}.get(first.reason, Verdict.FAILED)
        return verdict, f"{first.name}: {first.message}"
    if not whole:
        return Verdict.FAILED, f"the last record is missing (returncode {result.returncode})"
    return Verdict.PASSED, ""


def _of_error(error: SandboxError, cases: tuple[CaseOutcome, ...], mode: str, attempts: int) -> Outcome:
    """A failure that the code may have brought about is its verdict; any other is raised, to be tried again."""
    if error.is_infrastructure or not error.started:
        raise error
    result = getattr(error, "exec_result", None)
    timed_out = isinstance(error, SandboxCommandTimeoutError)
    verdict = Verdict.TIMED_OUT if timed_out else Verdict.FAILED
    return _outcome(verdict, str(error), cases, result, mode, attempts)


def _outcome(
    verdict: Verdict, message: str, cases: tuple[CaseOutcome, ...], result: ProcessResult | None, mode: str, attempts: int
) -> Outcome:
    return Outcome(
        verdict=verdict,
        message=message,
        cases=cases,
        result=result,
        duration_seconds=None if result is None else result.duration_seconds,
        grading_mode=mode,
        attempts=attempts,
    )
