"""Episodes that are judged by files which the model never sees: what it left is copied out, and graded elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.exceptions import AviatoValidationError, SandboxFileError
from aviato.results import CaseStatus, GradeCase
from aviato.rl.outcome import CaseOutcome, Outcome, Verdict
from aviato.rl.trl.rows import warn_once
from aviato.values.text import encode

if TYPE_CHECKING:
    from aviato.api.sandbox import Sandbox
    from aviato.bridge.operation import OperationRef
    from aviato.results import GradeResult

TEST_FILES = "test_files"
TEST_COMMAND = "test_command"
FILES = "files"
MODES = ("separate", "in_process")
SHELL = ("bash", "--noprofile", "--norc", "-c")
_SHELL_MARKS = frozenset("|&;<>()$`\\\"'*?[]#~=%{}!\n")
NOT_SEPARABLE = (
    "an episode has failed since its tests use a module that the model has changed in a way that mode 'separate' cannot judge. "
    "Where right solutions change such modules too, grade those rows 'in_process'"
)
_REASONS = {CaseStatus.FAILED: "assertion", CaseStatus.ERROR: "exception"}


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """How episodes with hidden tests are graded; a row's columns of the same names come first.

    Attributes:
        grading: `separate`, `in_process`, or None: `separate` for `test_files`, and `in_process` for `tests`.
        result_paths: what the model made, as `Sandbox.grade` takes it.
        result_changes: the directory that it worked in, likewise.
        base_commit: that the repository there was at, likewise.
        env: variables of the grader's command.
    """

    grading: str | None = None
    result_paths: Sequence[str] | None = None
    result_changes: str | None = None
    base_commit: str | None = None
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.grading not in (None, *MODES):
            raise AviatoValidationError(f"grading must be 'separate' or 'in_process', got {self.grading!r}")
        if self.result_paths is not None:
            object.__setattr__(self, "result_paths", checks.texts("result_paths", self.result_paths))
        checks.environment(self.env or {})

    def of_row(self, row: Mapping[str, Any]) -> Hidden:
        """As a row says it.

        Raises:
            TypeError, AviatoValidationError: it says what cannot be meant.
        """
        names = ("grading", "result_paths", "result_changes", "base_commit")
        said = {name: row[name] for name in names if row.get(name) is not None}
        paths = said.get("result_paths")
        if paths is not None and not isinstance(paths, str):
            said["result_paths"] = [str(path) for path in paths]
        return Hidden(**{**vars(self), **said})


def words(command: Any) -> list[str] | None:
    """A grader's command: a list, or a line that is one without a shell; any other line is a shell's. None if it is neither."""
    if isinstance(command, str) and command.strip():
        return [*SHELL, command] if _SHELL_MARKS & set(command) else shlex.split(command)
    if isinstance(command, (list, tuple)) and command and all(isinstance(part, str) for part in command):
        return list(command)
    return None


def contents(files: Any) -> dict[str, bytes]:
    """A column of files, without those that this row has not."""
    if not isinstance(files, Mapping):
        return {}
    return {path: text if isinstance(text, bytes) else encode(str(text)) for path, text in files.items() if text is not None}


async def judge(
    sandbox: Sandbox, row: Mapping[str, Any], hidden: Hidden, solution_path: str, timeout_seconds: float
) -> Outcome:
    """Grade what a sandbox holds by a row's `test_files` and `test_command`.

    Args:
        sandbox: the model's.
        row: of the dataset.
        hidden: how.
        solution_path: the result where neither the row nor `hidden` names any.
        timeout_seconds: of the command.

    Raises:
        AviatoError: the infrastructure failed, or the grader cannot run.
    """
    try:
        asked = hidden.of_row(row)
        command = words(row.get(TEST_COMMAND))
        if command is None:
            raise AviatoValidationError(f"{TEST_FILES!r} needs a {TEST_COMMAND!r}, a line or a list of strings")
        given: dict[str, Any] = {"result_paths": asked.result_paths or ()}
        if asked.result_changes is not None:
            given |= {"result_changes": asked.result_changes, "base_commit": asked.base_commit}
            given["base_files"] = contents(row.get(FILES))
        elif asked.result_paths is None:
            given["result_paths"] = [solution_path]
        grading = sandbox.grade(
            contents(row.get(TEST_FILES)),
            command,
            mode=asked.grading or "separate",  # type: ignore[arg-type]
            timeout_seconds=timeout_seconds,
            env=asked.env,
            **given,
        )
        return await _outcome(grading, is_of_changes=asked.result_changes is not None)
    except SandboxFileError as error:
        if error.is_infrastructure:
            raise
        return Outcome(verdict=Verdict.FAILED, message=str(error), attempts=1)


async def _outcome(grading: OperationRef[GradeResult], *, is_of_changes: bool) -> Outcome:
    """What comes of a grade. What the model has changed, and no row, may be what its tests cannot be graded apart from."""
    try:
        return outcome_of(await grading)
    except AviatoValidationError as error:
        if not is_of_changes or "files" not in error.field_violations:
            raise
        warn_once(NOT_SEPARABLE)
        return Outcome(verdict=Verdict.FAILED, message=str(error), attempts=1)


def outcome_of(graded: GradeResult) -> Outcome:
    """A grade as the outcome of an item."""
    result = graded.exec_result
    verdict = Verdict.PASSED if graded.passed else Verdict.FAILED
    if result.timed_out:
        verdict = Verdict.TIMED_OUT
    elif result.oom_killed:
        verdict = Verdict.OUT_OF_MEMORY
    return Outcome(
        verdict=verdict,
        message=graded.message,
        cases=tuple(map(_case, graded.cases)),
        result=result,
        duration_seconds=result.duration_seconds,
        grading_mode=graded.mode,
        attempts=1,
    )


def _case(case: GradeCase) -> CaseOutcome:
    return CaseOutcome(
        name=case.name,
        passed=case.passed,
        status=case.status,
        reason=_REASONS.get(case.status, str(case.status)),
        message=case.message,
        duration_seconds=case.duration_seconds,
    )
