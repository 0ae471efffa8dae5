"""Issues of repositories: SWE-bench, SWE-Gym, SWE-smith and R2E."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aviato.rl.cases import ProgramCase
from aviato.rl.datasets.rows import Problem, Row, data, items, mapping, of_rows, refused, text
from aviato.rl.datasets.swe_logs import (
    APPLY_FAILED,
    APPLYING,
    END,
    EXIT_CODE,
    PARSERS,
    START,
    ParseLog,
    Resolved,
    SameStatuses,
)
from aviato.rl.datasets.swe_repositories import command_of, parser_of
from aviato.rl.task import Task
from aviato.values import text as texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCHEMA = "swe"
DIRECTORY = "/testbed"
ENVIRONMENT = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate && conda activate testbed; fi"
"""What the images of SWE-bench, SWE-Gym and SWE-smith need before their tests."""
TIMEOUT_SECONDS, R2E_TIMEOUT_SECONDS = 1800.0, 300.0
"""As SWE-bench and R2E have them, for the whole."""
FETCH_SECONDS = 120
_MODEL, _TESTS, _EVAL = "model.patch", "tests.patch", "eval.sh"
_REMOVED = "Remove F2P Tests"
"""The last commit of a branch of SWE-smith's: agents begin there, and are graded at the one before."""
_APPLIED = f"""
echo '{APPLYING}'
afresh() {{ git checkout -q -- . ; git clean -fdq -e {_MODEL} -e {_TESTS} -e {_EVAL}; }}
git apply --verbose "$here/{_MODEL}" ||
  {{ afresh; git apply --verbose --3way "$here/{_MODEL}"; }} ||
  {{ afresh; git apply --verbose --reject "$here/{_MODEL}"; }} ||
  {{ afresh; patch --batch --forward --fuzz=5 -p1 -i "$here/{_MODEL}"; }} ||
  git apply --check --reverse "$here/{_MODEL}" ||
  {{ echo '{APPLY_FAILED}'; exit 1; }}
"""
"""Applies the answer as SWE-bench does, in four ways, each from a clean tree; what is there already has been applied."""


_ANYBODYS = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'\n"
"""Whoever owns the repository."""


def swe(
    row: Row,
    code: str | None = None,
    *,
    directory: str = DIRECTORY,
    setup_command: str = ENVIRONMENT,
    test_command: str | None = None,
    parse_log: ParseLog | None = None,
) -> Task:
    """A row of SWE-bench, SWE-Gym, SWE-smith or R2E: the answer is a diff of the repository.

    The diff is applied, then the row's `test_patch`, whose files are put back to `base_commit` first; the tests run, and their
    log decides: all of `FAIL_TO_PASS` have to pass and all of `PASS_TO_PASS`, in the files that are run, still to pass. A row
    of R2E has `expected_output_json` instead, and all statuses have to be those. One of SWE-smith is graded on the branch that
    its `instance_id` names, from before its tests were removed there: the image has it, or the sandbox may fetch it. A test of
    its that the log does not name passes, as in its harness, but only where the tests came to their end. The row's
    image is the caller's `container_image`. The tests run where the diff has been applied, so a diff that is out to deceive
    them can, as in the harnesses.

    Args:
        row: with `FAIL_TO_PASS` and `PASS_TO_PASS`, as lists or JSON, and `test_patch` and `base_commit`, or `eval_script`.
        code: the diff.
        directory: of the repository in the image.
        setup_command: for bash, before all, where commands start.
        test_command: for bash, in the repository; None is the row's `eval_script`, else pytest (for Django and sympy their own
            runners) on the files of the test patch, or of `FAIL_TO_PASS`.
        parse_log: reads the log; must be importable by name. None is by the row's `log_parser`, else by its `repo`.

    Raises:
        AviatoValidationError: a row without tests, or one whose tests or log are not pytest's, without those two.
    """
    return problem(row, directory, setup_command, test_command, parse_log).with_code(code)


@of_rows
def problem(
    row: Row,
    directory: str = DIRECTORY,
    setup_command: str = ENVIRONMENT,
    test_command: str | None = None,
    parse_log: ParseLog | None = None,
) -> Problem:
    """What the row asks for."""
    begin = f"exec 2>&1\nhere=$PWD\n{setup_command}\ncd -- {shlex.quote(directory)} || exit 1\n{_ANYBODYS}"
    if row.get("expected_output_json") is not None:
        return _problem(SameStatuses(_expected(row)), begin + _APPLIED + _r2e(test_command), {}, R2E_TIMEOUT_SECONDS)
    failing, passing = _names(row, "FAIL_TO_PASS"), _names(row, "PASS_TO_PASS")
    if not failing:
        raise refused(_SCHEMA, "FAIL_TO_PASS", "it has no tests in 'FAIL_TO_PASS'")
    script = text(_SCHEMA, row, "eval_script", blank=True)
    if script.strip() and test_command is None:
        judge = Resolved(failing, passing, parse_log or _parser(row), _is_smiths(row))
        return _problem(judge, f'{begin}{_APPLIED}bash "$here/{_EVAL}"\n', {_EVAL: _with_exit_code(script)}, TIMEOUT_SECONDS)
    patch = text(_SCHEMA, row, "test_patch", blank=True)
    run = sorted(_tested_by(patch) or {name.split("::")[0] for name in failing})
    if test_command is None:
        test_command = command_of(row, run)
    if test_command is None:
        if parse_log is None and not all("::" in name for name in failing):
            message = f"its tests are not pytest's ({failing[0]!r}): give test_command= and parse_log="
            raise refused(_SCHEMA, "FAIL_TO_PASS", message)
        test_command = f"python -m pytest -rA -p no:cacheprovider {shlex.join(run)}"
        passing = tuple(name for name in passing if name.split("::")[0] in run)
    judge = Resolved(failing, passing, parse_log or parser_of(row), _is_smiths(row))
    body = _at(row) + _APPLIED + _tests_put_back(row, patch, run) + _ran(test_command)
    return _problem(judge, begin + body, {_TESTS: _ended(patch)} if patch.strip() else {}, TIMEOUT_SECONDS)


def _problem(judge: Resolved | SameStatuses, script: str, files: Mapping[str, str], timeout_seconds: float) -> Problem:
    case = ProgramCase("", "", judge=judge, returncode=None, name="tests")
    encoded = {name: texts.encode(content) for name, content in files.items()}
    task = Task(tests=[case], language="bash", files=encoded, timeout_seconds=timeout_seconds)
    return Problem(task, partial(_compose, script), language="diff")


def _compose(script: str, task: Task, code: str) -> Task:
    return replace(task, code=script, files={**task.files, _MODEL: texts.encode(_ended(code))})


def _ended(patch: str) -> str:
    return patch if patch.endswith("\n") else patch + "\n"


def _names(row: Row, name: str) -> tuple[str, ...]:
    value = row.get(name)
    found = [] if value is None else items(data(_SCHEMA, name, value))
    if found is None:
        raise refused(_SCHEMA, name, f"its field {name!r} is no list")
    return tuple(map(str, found))


def _expected(row: Row) -> tuple[tuple[str, str], ...]:
    field = data(_SCHEMA, "expected_output_json", row.get("expected_output_json"))
    found = mapping(_SCHEMA, "expected_output_json", field)
    if not found:
        raise refused(_SCHEMA, "expected_output_json", "it has no tests in 'expected_output_json'")
    return tuple((re.sub(r"\x1b\[\d+m", "", name).split(" - ")[0], str(status)) for name, status in found.items())


def _parser(row: Row) -> ParseLog:
    name = text(_SCHEMA, row, "log_parser", blank=True).removeprefix("parse_log_")
    if not name:
        return parser_of(row)
    if name not in PARSERS:
        raise refused(_SCHEMA, "log_parser", f"its log_parser is {name!r}, which is not known here: give parse_log=")
    return PARSERS[name]


def _with_exit_code(script: str) -> str:
    """A script of SWE-bench's that also tells how its tests ended, behind the mark after them."""
    lines = script.split("\n")
    at = next((number for number, line in enumerate(lines) if END in line), None)
    if at is None:
        return script
    told = f'echo "{EXIT_CODE}: $aviato_ended"'
    return "\n".join([*lines[:at], "aviato_ended=$?", lines[at], told, *lines[at + 1 :]])


def _tested_by(patch: str) -> set[str]:
    """The files that are there once it has been applied."""
    found = re.findall(r"^\+\+\+ b/(.*?)\s*$", patch, re.M)
    return {name for name in found if name.endswith(".py")}


def _is_smiths(row: Row) -> bool:
    return str(row.get("repo")).startswith("swesmith/")


def _at(row: Row) -> str:
    """SWE-smith has a branch for each row, which its harness fetches; other images stand where they should."""
    if not _is_smiths(row):
        return ""
    at = shlex.quote(str(row.get("base_commit") or row.get("instance_id")))
    return (
        f"git checkout -q {at} -- || git checkout -q -B {at} origin/{at} -- ||\n"
        f"  {{ timeout {FETCH_SECONDS} git fetch -q origin {at} && git checkout -q FETCH_HEAD; }} || exit 1\n"
        f"""[ "$(git log -1 --format=%s)" != '{_REMOVED}' ] || git checkout -q HEAD~1 || exit 1\n"""
    )


def _tests_put_back(row: Row, patch: str, run: Sequence[str]) -> str:
    base = shlex.quote(str(row.get("base_commit") or "HEAD"))
    touched = sorted({*re.findall(r"^(?:---|\+\+\+) [ab]/(.*?)\s*$", patch, re.M), *run})
    back = [f"git checkout -q {base} -- {shlex.quote(name)} || rm -f -- {shlex.quote(name)}" for name in touched]
    applied = [f'git apply --verbose "$here/{_TESTS}" || exit 1'] if patch.strip() else []
    return "\n".join([*back, *applied, ""])


def _ran(test_command: str) -> str:
    return f"echo '{START}'\n{test_command}\nended=$?\necho '{END}'\necho \"{EXIT_CODE}: $ended\"\n"


def _r2e(test_command: str | None) -> str:
    if test_command is not None:
        return test_command + "\n"
    return 'for found in /root/run_tests.sh /run_tests.sh run_tests.sh; do [ -f "$found" ] && break; done\nbash "$found"\n'
