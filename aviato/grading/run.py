"""A grade, step by step: end what runs, copy what is named, grade elsewhere, read the verdict."""

from __future__ import annotations

import ast
import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxFileError
from aviato.grading import driver
from aviato.grading.arguments import is_code, same_sandbox
from aviato.grading.inside import program
from aviato.grading.link import check_linkable, linked
from aviato.grading.places import directory_of, new_sandboxes
from aviato.process import exec_request, feed, process_result, streams
from aviato.results import GradeCase, GradeResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.core.lifecycle import SandboxHandle
    from aviato.exceptions import AviatoError
    from aviato.grading.arguments import GradeRequest
    from aviato.results import ProcessResult

RESULT_BYTES = 256 << 20
"""All results of one grade together."""
KEPT_OUTPUT_BYTES = 2 << 20
"""Of each stream of a command whose tests are told apart."""

STAND_IN = '''"""Stands for the solution, which runs in another sandbox: what is called here runs there, and data comes back."""


if __name__ == "__main__":
    raise SystemExit({path!r} + ": this stands for the solution, which is in another sandbox; run it by aviato_solution.run()")


def __getattr__(name):
    import importlib.util, os, sys
    if name.startswith("_") or os.path.exists(os.path.join(os.path.dirname(__file__), name)):
        raise AttributeError(name)
    if os.path.exists(os.path.join(os.path.dirname(__file__), name + ".py")) and __file__.endswith("__init__.py"):
        raise AttributeError(name)
    link = sys.modules.get("aviato_solution")
    if link is None:
        spec = importlib.util.spec_from_file_location("aviato_solution", {link!r})
        link = sys.modules["aviato_solution"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(link)
    return link.Remote({path!r}, name)
'''
LINK_MODULE = "aviato_solution.py"


async def grade(handle: SandboxHandle, create: Mapping[str, Any] | None, request: GradeRequest) -> GradeResult:
    """Grade what a sandbox holds.

    Args:
        handle: the policy's sandbox.
        create: how it was made; None if this process does not know, then only its image is taken over.
        request: what was asked for.

    Raises:
        SandboxFileError: a result is missing, too large, or no regular file.
        AviatoError: the infrastructure failed.
    """
    info = await handle.wait_running()
    await handle.client.cancel_all(handle.sandbox_id)
    results = await _results(handle, request.result_paths)
    known = same_sandbox(create) if create is not None else {"image": info.image, "tags": info.tags}
    is_linked = request.mode == "separate" and (
        request.uses_link or any(is_code(path, content) for path, (content, _) in results.items())
    )
    if is_linked:
        check_linkable(info)
    async with AsyncExitStack() as stack:
        places = await stack.enter_async_context(new_sandboxes(handle, known, 2 if is_linked else 1))
        grader = places[0]
        directory, *_ = await asyncio.gather(*map(directory_of, places))
        broken: asyncio.Future[AviatoError] | None = None
        if is_linked:
            solution = places[1]
            await _write(solution, results)
            broken = await stack.enter_async_context(linked(grader, solution, directory))
        await _write(grader, _grader_files(request, results, directory, is_linked))
        result, graded = await _run(grader, request)
        if broken is not None and broken.done():
            raise broken.result()
    return replace(graded, exec_result=result)


async def _results(handle: SandboxHandle, paths: list[str]) -> dict[str, tuple[bytes, int]]:
    """Content and permission bits of each result."""
    from aviato.core import files

    found: dict[str, tuple[bytes, int]] = {}
    left = RESULT_BYTES
    for path in paths:
        info = await files.stat(handle, path)
        if info.type != "file":
            why = {"directory": "is a directory", "symlink": "is a link"}.get(info.type, "is no regular file")
            raise _no_result(handle, path, f"{path!r} {why}; a result is a regular file", "not_a_regular_file")
        _check_size(handle, path, info.size_bytes, left)
        content = await files.read_file(handle, path)
        _check_size(handle, path, len(content), left)
        left -= len(content)
        found[path] = (content, info.mode & 0o777)
    return found


def _check_size(handle: SandboxHandle, path: str, size: int, left: int) -> None:
    if size > left:
        message = f"{path!r} has {size} bytes; the results of one grade may have {RESULT_BYTES >> 20} MiB together"
        raise _no_result(handle, path, message, "too_large")


def _no_result(handle: SandboxHandle, path: str, message: str, reason: str) -> SandboxFileError:
    return SandboxFileError(message, filepath=path, sandbox_id=handle.sandbox_id, reason=reason)


def _grader_files(
    request: GradeRequest, results: dict[str, tuple[bytes, int]], directory: str, is_linked: bool
) -> dict[str, tuple[bytes, int | None]]:
    """What lies in the grader's sandbox: in mode `separate`, of code only what stands for it."""
    found: dict[str, tuple[bytes, int | None]] = {}
    for path, (content, mode) in results.items():
        if request.mode == "in_process":
            found[path] = (content, mode)
        elif path.endswith(".py"):
            found[path] = (STAND_IN.format(link=f"{directory}/{LINK_MODULE}", path=path).encode(), 0o644)
        elif not is_code(path, content):
            found[path] = (content, 0o644)
    if is_linked:
        found[LINK_MODULE] = (program("crossing", "standin").encode(), 0o644)
    found.update((path, (content, None)) for path, content in request.files.items())
    return found


async def _write(
    handle: SandboxHandle, contents: Mapping[str, tuple[bytes, int | None]] | dict[str, tuple[bytes, int]]
) -> None:
    from aviato.core import files

    for path, (content, mode) in contents.items():
        await files.write_file(handle, path, content, mode=mode)


async def _run(grader: SandboxHandle, request: GradeRequest) -> tuple[ProcessResult, GradeResult]:
    """The command's end and the verdict."""
    if request.kind is None:
        result = await run_command(
            grader, request.command, None, request.env, request.timeout_seconds, request.max_output_bytes
        )
        message = "" if _ended_well(result) else _why(result)
        return result, GradeResult(passed=not message, cases=[], exec_result=result, mode=request.mode, message=message)
    cases_command = driver.command(
        "",
        [driver.Case(_source(request), "grade")],
        python=request.python,
        output_bytes=min(KEPT_OUTPUT_BYTES, request.max_output_bytes),
        reports=True,
    )
    most = driver.MAX_OUTPUT_BYTES
    command, given, asked = cases_command
    result = await run_command(grader, command, given, request.env, request.timeout_seconds, most, asked)
    found, whole = driver.records(result.stdout_bytes)
    record: dict[str, Any] = found[0] if found else {}
    cases = [_case(line) for line in str(record.get("reports", "")).splitlines()]
    if request.kind == "script" and len(cases) == 1:
        cases = [replace(cases[0], duration_seconds=float(record.get("duration_seconds", 0.0)))]
    shown = _as_given(result, request, record)
    message = _complaint(request, record, whole, cases, result)
    return shown, GradeResult(passed=not message, cases=cases, exec_result=shown, mode=request.mode, message=message)


def _source(request: GradeRequest) -> str:
    strict = request.mode == "in_process"
    text = program("runs")
    return f"__aviato_names__ = {{}}\nexec(compile({text!r}, 'aviato_runs', 'exec'), __aviato_names__)\n" + (
        f"__aviato_names__['run']({request.kind!r}, {request.arguments!r}, {strict}, __aviato_report__)\n"
    )


def _case(line: str) -> GradeCase:
    try:
        report = ast.literal_eval(line)
        return GradeCase(
            name=str(report["name"]),
            passed=report["passed"] is True,
            message=str(report.get("message", "")),
            duration_seconds=float(report.get("seconds", 0.0)),
        )
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return GradeCase(name="unreadable", passed=False, message="a report that cannot be read")


def _complaint(
    request: GradeRequest, record: dict[str, Any], whole: bool, cases: list[GradeCase], result: ProcessResult
) -> str:
    """Why it did not pass; empty if it did."""
    if not record or not whole:
        return _why(result) if not _ended_well(result) else "the last record is missing"
    if record.get("passed") is not True:
        first = next((case for case in cases if not case.passed), None)
        text = str(record.get("message", "")) or str(record.get("reason", ""))
        return text if first is None else f"{first.name}: {first.message or text}"
    if not cases:
        return "no test ran"
    if request.mode == "in_process":
        ran = {case.name.split("[")[0].rsplit("::", 1)[-1].rsplit(".", 1)[-1] for case in cases if case.passed}
        missing = [name for name in request.expected() if name not in ran]
        if missing:
            return f"the number of tests changed: {missing[0]} did not run"
    return ""


def _ended_well(result: ProcessResult) -> bool:
    return result.returncode == 0 and not result.timed_out and not result.oom_killed


def _why(result: ProcessResult) -> str:
    if result.timed_out:
        return "the grader's command ran longer than its time limit"
    return "killed at the memory limit" if result.oom_killed else f"returncode {result.returncode}"


def _as_given(result: ProcessResult, request: GradeRequest, record: dict[str, Any]) -> ProcessResult:
    """The result of the command that was asked for; the keeper's own is an affair of ours."""
    out = str(record.get("stdout", "")).encode()
    err = str(record.get("stderr", "")).encode()
    code = result.returncode if not record else 0 if record.get("passed") is True else 1
    return replace(
        result,
        command=tuple(request.command),
        returncode=code,
        stdout_bytes=out,
        stderr_bytes=err,
        stdout_bytes_total=len(out),
        stderr_bytes_total=len(err),
        stdout_head_bytes=None,
        stderr_head_bytes=None,
    )


async def run_command(
    handle: SandboxHandle,
    command: list[str],
    given: bytes | None,
    env: Mapping[str, str],
    timeout_seconds: float | None,
    max_output_bytes: int,
    cases: dict[str, Any] | None = None,
) -> ProcessResult:
    """Run a command to its end, a timeout included."""
    from aviato.core.execution import Execution

    request, rest = exec_request(
        command,
        default_timeout_seconds=float("inf"),
        cwd=None,
        env=env,
        user=None,
        stdin=False if given is None else given,
        timeout_seconds=timeout_seconds,
        detach=False,
    )
    if cases is not None:
        request["cases"] = cases
    stdout, stderr = streams(text=True, max_bytes=max_output_bytes, offsets=(0, 0))
    execution = Execution(handle, request, stdout, stderr)
    feeding = None if rest is None else asyncio.get_running_loop().create_task(feed(execution, rest))
    try:
        ended = await execution.run()
    finally:
        if feeding is not None:
            feeding.cancel()
    return process_result(tuple(command), ended, stdout, stderr)
