"""The grader's command in its sandbox, and the verdict that comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.bridge.collection import Collection
from aviato.calls.exec_call import TIMED_OUT_RETURNCODE, exec_request, run
from aviato.grading import driver
from aviato.grading.inside import program
from aviato.grading.reports import Reports, read
from aviato.results import CaseStatus, GradeResult
from aviato.values.text import encode, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.core.lifecycle import SandboxHandle
    from aviato.grading.arguments import GradeRequest
    from aviato.results import ProcessResult

KEPT_OUTPUT_BYTES = 2 << 20
"""Of each stream of a command whose tests are told apart."""
REPORTED_BYTES = 4 << 20
"""Of what is said of tests: some 25,000 of them."""
LATE_SECONDS = 10.0
"""So long after a test's own limit a command that follows tests is ended from outside."""


class Judgement(NamedTuple):
    """A verdict, and what it was made of.

    Attributes:
        graded: the verdict.
        reports: on each test; empty for a command that goes by its returncode.
        record: of the process that ran the tests; empty where it has none.
    """

    graded: GradeResult
    reports: Reports
    record: dict[str, Any]


async def judge(grader: SandboxHandle, request: GradeRequest, policy: list[str]) -> Judgement:
    """Run the command and take its verdict.

    Args:
        grader: where everything lies that the command is to find.
        request: what was asked for.
        policy: paths of the results that lie there.
    """
    if request.kind is None:
        return await _by_returncode(grader, request)
    limit = request.timeout_seconds
    case = driver.Case(_source(request, policy), "grade", timeout_seconds=limit)
    command, given, asked = driver.command("", [case], python=request.python, output_bytes=REPORTED_BYTES, reports=True)
    outer = None if limit is None else limit + LATE_SECONDS
    result = await run_command(grader, command, given, request.env, outer, driver.MAX_OUTPUT_BYTES, asked)
    found, whole = driver.records(result.stdout_bytes)
    record: dict[str, Any] = found[0] if found else {}
    result = _as_given(result, request, record)
    reports = read(record, result)
    message = shown(_complaint(request, record, whole, reports, result))
    graded = GradeResult(passed=not message, cases=reports.cases, exec_result=result, mode=request.mode, message=message)
    return Judgement(graded, reports, record)


async def _by_returncode(grader: SandboxHandle, request: GradeRequest) -> Judgement:
    result = await run_command(grader, request.command, None, request.env, request.timeout_seconds, request.max_output_bytes)
    message = "" if ended_well(result) else _why(result)
    graded = GradeResult(passed=not message, cases=[], exec_result=result, mode=request.mode, message=message)
    return Judgement(graded, Reports(), {})


def _source(request: GradeRequest, policy: list[str]) -> str:
    strict = request.mode == "in_process"
    text = program("origins", "pytests", "unittests", "runs")
    return f"__aviato_names__ = {{}}\nexec(compile({text!r}, 'aviato_runs', 'exec'), __aviato_names__)\n" + (
        f"__aviato_names__['run']({request.kind!r}, {request.arguments!r}, {strict}, {policy!r}, __aviato_report__)\n"
    )


def _complaint(request: GradeRequest, record: dict[str, Any], whole: bool, reports: Reports, result: ProcessResult) -> str:
    """Why it did not pass; empty if it did."""
    if not record or not whole or result.timed_out or result.oom_killed:
        return _why(result) if not ended_well(result) else "the last record is missing"
    first = next((told.case for told in reports.tests if not told.ok), None)
    if record.get("passed") is not True:
        text = str(record.get("message", "")) or str(record.get("reason", ""))
        return text if first is None else f"{first.name}: {first.message or text}"
    if not reports.tests:
        return "no test ran"
    if first is not None:
        return f"{first.name}: {first.message}"
    if request.mode == "in_process" and (missing := _missing(request, reports)):
        return f"the number of tests changed: {missing} did not run"
    return ""


def _missing(request: GradeRequest, reports: Reports) -> str | None:
    """A test that stands in the grader's files and was not heard of."""
    ran = {told.case.name.split("[")[0].rsplit("::", 1)[-1].rsplit(".", 1)[-1] for told in reports.tests}
    left_out = [told.case.name for told in reports.tests if told.case.status is CaseStatus.SKIPPED and not told.collected]
    for path, name in request.expected():
        module = path.rsplit("/", 1)[-1][: -len(".py")]
        if name not in ran and not any(whole == path or whole.rsplit(".", 1)[-1] == module for whole in left_out):
            return name
    return None


def ended_well(result: ProcessResult) -> bool:
    """Whether a command came to its end with 0."""
    return result.returncode == 0 and not result.timed_out and not result.oom_killed


def _why(result: ProcessResult) -> str:
    if result.timed_out:
        return "the grader's command ran longer than its time limit"
    return "killed at the memory limit" if result.oom_killed else f"returncode {result.returncode}"


def _as_given(result: ProcessResult, request: GradeRequest, record: dict[str, Any]) -> ProcessResult:
    """The result of the command that was asked for; the keeper's own is an affair of ours."""
    limit = min(KEPT_OUTPUT_BYTES, request.max_output_bytes)
    out, err = (encode(str(record.get(name, ""))) for name in ("stdout", "stderr"))
    if not record:
        out, err = b"", result.stderr_bytes
    timed_out = result.timed_out or record.get("reason") == "timed_out"
    code = result.returncode if not record else 0 if record.get("passed") is True else 1
    return replace(
        result,
        command=tuple(request.command),
        returncode=TIMED_OUT_RETURNCODE if timed_out else code,
        timed_out=timed_out,
        stdout_bytes=out[:limit],
        stderr_bytes=err[:limit],
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
        env=env,
        stdin=False if given is None else given,
        timeout_seconds=timeout_seconds,
    )
    if cases is not None:
        request["cases"] = cases
    stdout, stderr = Collection(max_output_bytes), Collection(max_output_bytes)
    ran = await run(Execution(handle, request, stdout, stderr), request, rest, stdout, stderr)
    return ran.result
