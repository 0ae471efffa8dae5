"""What became of each test, by the log of a test run, and what that means for a repository's issue."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from aviato.log import logger
from aviato.rl.datasets.printed import printed_text
from aviato.values.text import shown

ParseLog: TypeAlias = Callable[[str], Mapping[str, str]]
"""Takes the log and gives, by test, `PASSED`, `FAILED`, `ERROR`, `SKIPPED`, `XFAIL` or another word of the framework's."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
APPLYING = ">>>>> Applying Patch"
"""Before it nothing of the answer has run."""
APPLY_FAILED = ">>>>> Patch Apply Failed"
EXIT_CODE = ">>>>> Test Exit Code"
_STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")
_GOOD = ("PASSED", "XFAIL")
_BAD = ("FAILED", "ERROR")
_WHOLE_RUN = ("0", "1")
"""How pytest ends that has run all tests that it found: all passed, or some failed."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m|[\x01-\x08\x0b-\x1f]")
_COUNT = re.compile(r"\[\d+\]$")
_FAILED_SYMPY = re.compile(r"_+ (\S.*)\.py:(.*) _+")
_LONGEST_HEAD = 1000
"""Of a line in which sympy names a test that failed."""
_PRINTED_AHEAD = "Applying sites."
"""What a test of Django's prints in the line of its name."""
_UNITTEST = {"ok": "PASSED", "OK": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR"}
_SYMPY = {"ok": "PASSED", "F": "FAILED", "E": "ERROR"}
_NAMED = 3
MOST_LOG_BYTES = 64 << 20
"""With `-rA` a log has all that passing tests print."""


def pytest_log(log: str) -> dict[str, str]:
    """The short summary that pytest prints with `-rA`, and the lines that it prints with `-v`, whatever their colours."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        words = _ESCAPES.sub("", line).split()
        if len(words) < 2:
            continue
        if words[0] in _STATUSES and not (words[0] == "SKIPPED" and _COUNT.match(words[1])):
            found[_without_message(line, words)] = words[0]
        elif words[1] in _STATUSES and "::" in words[0]:
            found.setdefault(words[0], words[1])
    return found


def options_log(log: str) -> dict[str, str]:
    """As `pytest_log`; of a parameter that is a path its last part is left, as data sets have its name."""
    return {_without_directories(name): status for name, status in pytest_log(log).items()}


def matplotlib_log(log: str) -> dict[str, str]:
    """As `pytest_log`, with buttons by their numbers, as data sets have them."""
    return pytest_log(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def unittest_log(log: str) -> dict[str, str]:
    """What unittest and Django's runner print with `-v`: `test_x (module.Class) ... ok`."""
    found: dict[str, str] = {}
    last = None
    for line in map(str.strip, log.split("\n")):
        name, told, end = line.rpartition(" ... ")
        last = line.split(" ... ")[0] if told else last
        name = name.rpartition("...")[2] if name.startswith(_PRINTED_AHEAD) else name
        status = _UNITTEST.get(end.lstrip())
        if "--version is equivalent to version" in line:
            found["--version is equivalent to version"] = "PASSED"
        if told and status:
            found[name] = status
        if " ... skipped" in line:
            found[line.split(" ... skipped")[0]] = "SKIPPED"
        if line.startswith(("FAIL: ", "ERROR: ")):
            found[line.split()[1]] = _UNITTEST[line.split(":")[0]]
        if line.startswith("ok") and last is not None:
            found[last] = "PASSED"
    return found


def sympy_log(log: str) -> dict[str, str]:
    """What sympy's own runner prints with `--verbose`: `test_x ok`."""
    found: dict[str, str] = {}
    for line in map(str.strip, log.split("\n")):
        if len(line) <= _LONGEST_HEAD and (head := _FAILED_SYMPY.fullmatch(line)):
            found[f"{head[1]}.py:{head[2]}"] = "FAILED"
        words = line.split()
        if line.startswith("test_") and len(words) > 1 and words[-1] in _SYMPY:
            found[words[0]] = _SYMPY[words[-1]]
    return found


PARSERS: dict[str, ParseLog] = {
    **dict.fromkeys(("pytest", "pytest_v2", "seaborn", "astroid", "flask", "marshmallow", "pvlib", "pyvista"), pytest_log),
    **dict.fromkeys(("sqlfluff", "xarray", "astropy", "scikit", "sphinx"), pytest_log),
    **dict.fromkeys(("pytest_options", "pydicom", "requests", "pylint"), options_log),
    "matplotlib": matplotlib_log,
    "django": unittest_log,
    "sympy": sympy_log,
}
"""By SWE-bench's names of them, without `parse_log_`."""


@dataclass(frozen=True)
class Resolved:
    """A judge: the tests that failed pass, and those that passed still do. SWE-bench's rule.

    Attributes:
        fail_to_pass: tests that have to pass.
        pass_to_pass: tests that have to pass, or to be skipped.
        parse_log: reads the log.
        absent_pass: a test that the log does not name passes, if the tests came to their end. SWE-smith's rule: it takes a test
            that is gone with the right answer for one that failed before, and names of tests can have addresses in them.
    """

    output_bytes: ClassVar[int] = MOST_LOG_BYTES

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    parse_log: ParseLog
    absent_pass: bool = False

    def __call__(self, case: Any, actual: Any) -> bool | str:
        """As every judge."""
        log = _begun(actual)
        if APPLY_FAILED in log:
            return "the patch does not apply"
        if START not in log or END not in log:
            return "the tests did not come to their end"
        try:
            found = self.parse_log(log.split(START, 1)[1].split(END, 1)[0])
        except Exception as error:
            # The code has run by now, and may have printed what no parser takes.
            why = f"{type(error).__name__}: {shown(str(error))}"
            logger.warning("parse_log could not read a log, which counts as a wrong answer: %s", why)
            return f"the log cannot be read: {why}"
        ended = re.search(rf"{re.escape(EXIT_CODE)}:\s*(-?\d+)", log)
        if ended is not None and ended[1] != "0" and found and not any(status in _BAD for status in found.values()):
            return f"the tests ended with {ended[1]}, and their log names none that failed"
        failed, broken = self.fail_to_pass, self.pass_to_pass
        # Not where nothing could be collected, or the run broke off: then a wrong answer would pass by that.
        if self.absent_pass and found and ended is not None and ended[1] in _WHOLE_RUN:
            failed, broken = (tuple(name for name in names if _statuses(name, found)) for names in (failed, broken))
        missed = [name for name in failed if _status(name, found) not in _GOOD]
        lost = [name for name in broken if _status(name, found) not in (*_GOOD, "SKIPPED")]
        return not (missed or lost) or _told(missed, lost)


@dataclass(frozen=True)
class SameStatuses:
    """A judge: every test has the status that is expected of it, and there is no other. R2E's rule.

    Attributes:
        expected: tests and their statuses.
    """

    output_bytes: ClassVar[int] = MOST_LOG_BYTES

    expected: tuple[tuple[str, str], ...]

    def __call__(self, case: Any, actual: Any) -> bool | str:
        """As every judge."""
        log = _begun(actual)
        if APPLY_FAILED in log:
            return "the patch does not apply"
        found, wanted = r2e_log(log), dict(self.expected)
        others = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
        return not others or f"{len(others)} tests are not as expected: {_names(others)}"


def r2e_log(log: str) -> dict[str, str]:
    """The short summary of pytest, by the names without their file that R2E has."""
    _, told, summary = _ESCAPES.sub("", log).partition("short test summary info")
    found = {}
    for line in summary.strip().split("\n") if told else ():
        status = next((word for word in ("PASSED", "FAILED", "ERROR") if word in line), None)
        if status is not None:
            found[".".join(line.split("::")[1:]).split(" - ")[0]] = status
    return found


def _begun(actual: Any) -> str:
    """The log of a run in which the answer was at least tried.

    Raises:
        RuntimeError: there was no repository, whatever the answer is. It is raised for an empty log too, by which an evaluation
            tells that this is no verdict on the answer.
    """
    log = printed_text(actual)
    if APPLYING not in log:
        raise RuntimeError(f"the repository is not in the sandbox, or its setup failed: {log.strip()[-300:] or 'no output'}")
    return log


def _without_directories(name: str) -> str:
    """The name of a test, with the last part of its parameter if that is a path."""
    test, _, rest = name.partition("[")
    option, is_whole, after = rest.rpartition("]")
    if not is_whole or not option.startswith("/") or option.startswith("//") or "*" in option:
        return name
    return f"{test}[/{option.rpartition('/')[2]}]{after}"


def _without_message(line: str, words: list[str]) -> str:
    """The name in a line of the summary, which may have blanks in its parameters."""
    rest = _ESCAPES.sub("", line).strip()[len(words[0]) :].strip()
    return rest.split(" - ", 1)[0] if "[" in words[1] else words[1]


def _status(name: str, found: Mapping[str, str]) -> str | None:
    """The status of a test, if all that its name means agree."""
    meant = _statuses(name, found)
    return meant[0] if meant and len({status in _GOOD for status in meant}) == 1 else None


def _statuses(name: str, found: Mapping[str, str]) -> list[str]:
    """Of the tests that a name means: one that a data set has cut off inside its parameters means all that begin so."""
    if name in found or name.count("[") <= name.count("]"):
        return [found[name]] if name in found else []
    return [status for other, status in found.items() if other.startswith(name)]


def _told(failed: list[str], broken: list[str]) -> str:
    parts = [f"{len(failed)} tests that should pass do not: {_names(failed)}"] if failed else []
    parts += [f"{len(broken)} tests that passed do not: {_names(broken)}"] if broken else []
    return "; ".join(parts)


def _names(tests: list[str]) -> str:
    return ", ".join(tests[:_NAMED]) + (" …" if len(tests) > _NAMED else "")
