"""Whether a grader could run at all: what it fails for where no code of the policy is, the policy has no part in."""

from __future__ import annotations

import ast
import json
import re
import secrets
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxExecutionError, SandboxFileError
from aviato.grading.changes import prepare
from aviato.grading.inside import program
from aviato.grading.inside.paths import INSEPARABLE_PATH
from aviato.grading.judging import run_command
from aviato.grading.new_sandboxes import new_sandboxes, nobody_there
from aviato.grading.remedies import with_remedy
from aviato.grading.startup import FRAMEWORKS, TOOLS
from aviato.values.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.core.lifecycle import SandboxHandle
    from aviato.grading.arguments import GradeRequest
    from aviato.grading.judging import Judgement
    from aviato.results import ProcessResult

LOADING = re.compile(r"\b(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b")
_MISSING = re.compile(r"No module named '(\w+)")
"""As `inside/standin.py` has it."""
_NOT_STARTED = (126, 127)
PYTEST_FAILED_TESTS = 1
NO_FILE_RETURNCODE = 2
PROBE_SECONDS = 120.0
PROBE_OUTPUT_BYTES = 1 << 20
LOOKED_AT_BYTES = 16 << 10
"""Of the end of what a program wrote."""


def doubtful(request: GradeRequest, judgement: Judgement) -> bool:
    """Whether a failure looks as if the grader could not run. The policy can make it look so."""
    graded, reports = judgement.graded, judgement.reports
    result = graded.exec_result
    if graded.passed or result.timed_out or result.oom_killed:
        return False
    if request.kind is None:
        is_python = bool(request.python) and (result.returncode == NO_FILE_RETURNCODE or bool(LOADING.search(_said(judgement))))
        return result.returncode in _NOT_STARTED or is_python
    if request.kind == "script" and request.arguments[0] not in request.files:
        return True
    if not judgement.record or reports.uncollected or LOADING.search(_said(judgement)):
        return True
    return request.kind != "script" and (not reports.tests or (reports.code or 0) > PYTEST_FAILED_TESTS)


async def check_crossing(grader: SandboxHandle, sandbox_id: str, judgement: Judgement) -> None:
    """Say so if a test has asked for what cannot cross between two processes.

    Args:
        grader: where the tests ran, and no code of the policy.
        sandbox_id: of the policy's sandbox.
        judgement: the verdict, which is none then.

    Raises:
        SandboxExecutionError: a test has, with `reason="grader_failed"`.
    """
    from aviato.core import files

    try:
        with nobody_there():
            why = await files.read_file(grader, INSEPARABLE_PATH)
    except SandboxFileError as error:
        if error.is_infrastructure:
            raise
        return
    text = f"{why.decode(errors='replace')}. Grade it with mode='in_process'"
    raise _failed(sandbox_id, text, judgement)


async def check_grader(
    handle: SandboxHandle, create: dict[str, Any], request: GradeRequest, results: Sequence[str], judgement: Judgement
) -> None:
    """Let the grader alone say whether it can run, in a new sandbox without the policy's files.

    Args:
        handle: the policy's sandbox, on whose server the new one is.
        create: how it is made.
        request: what was asked for.
        results: paths of the policy's files.
        judgement: the verdict that may be none.

    Raises:
        SandboxExecutionError: it cannot, with `reason="grader_failed"`; the policy had no part in it.
    """
    from aviato.core import files

    async with new_sandboxes(handle, create, 1) as (place,):
        if request.changes is not None:
            await prepare(place, request.changes)
        with nobody_there():
            for path, content in request.files.items():
                await files.write_file(place, path, content, mode=None)
        if request.kind is None and judgement.graded.exec_result.returncode in _NOT_STARTED:
            why = await _of_command(place, request, results)
        else:
            why = await _of_python(place, request, results, judgement)
    if why is not None:
        raise _failed(handle.sandbox_id, f"{why}. No code of the policy was there", judgement)


def _failed(sandbox_id: str, why: str, judgement: Judgement) -> SandboxExecutionError:
    return SandboxExecutionError(
        with_remedy(f"the grader cannot run, so there is no verdict: {shown(why)}"),
        sandbox_id=sandbox_id,
        started=True,
        exec_result=judgement.graded.exec_result,
        reason="grader_failed",
        is_infrastructure=True,
        retryable=False,
    )


async def _of_command(place: SandboxHandle, request: GradeRequest, results: Sequence[str]) -> str | None:
    """Why a program cannot be started where the policy's files are there, and empty."""
    from aviato.core import files

    for path in results if request.changes is None else ():
        await files.write_file(place, path, b"", mode=0o755)
    limit = request.timeout_seconds
    result = await run_command(place, request.command, None, request.env, limit, PROBE_OUTPUT_BYTES)
    if result.returncode not in _NOT_STARTED or result.timed_out:
        return None
    name = request.command[0]
    if request.left_open and not ("/" not in name and result.stderr.startswith(f"{name}: ")):
        return None  # A file that the policy did not make may be what is not there.
    return _end_of(result.stderr) or f"returncode {result.returncode}"


async def _of_python(place: SandboxHandle, request: GradeRequest, results: Sequence[str], judgement: Judgement) -> str | None:
    token = secrets.token_hex(16)
    said = _said(judgement)
    asked = {
        "token": token,
        "kind": request.kind or "script",
        "arguments": request.arguments,
        "files": [path for path in request.files if path.endswith(".py")],
        "results": list(results),
        "patterns": request.left_open,
        "never": [] if request.allow_startup_files else sorted(TOOLS),
        "frameworks": FRAMEWORKS,
        "modules_only": not request.left_open and all(path.endswith(".py") for path in results),
        "messages": [case.message for case in judgement.reports.uncollected],
        "missing": _MISSING.findall(said),
    }
    source = program("origins", "pytests", "unittests", "runs", "probe") + "\nmain()\n"
    command, given = [request.python, "-I", "-c", source], json.dumps(asked).encode("ascii")
    result = await run_command(place, command, given, request.env, PROBE_SECONDS, PROBE_OUTPUT_BYTES)
    if result.returncode in _NOT_STARTED:
        return _end_of(result.stderr)
    return _answer(result, token)


def _answer(result: ProcessResult, token: str) -> str | None:
    line = result.stdout.rstrip("\n").rsplit("\n", 1)[-1]
    if not line.startswith(token):
        return None
    said = ast.literal_eval(line[len(token) :])
    return None if said is None else str(said)


def _said(judgement: Judgement) -> str:
    """All that is known of why it failed."""
    result = judgement.graded.exec_result
    texts = [case.message for case in judgement.graded.cases if not case.passed]
    return "\n".join([*texts, str(judgement.record.get("message", "")), result.stderr[-LOOKED_AT_BYTES:]])


def _end_of(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
