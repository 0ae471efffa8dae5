"""Runs in a child of the keeper (`cases.py`): a grader's command, each test of which is reported. It raises if any failed.

A script, pytest and unittest see what `python FILE`, `python -m pytest` and `python -m unittest` would show them. Follows
`origins.py`, `pytests.py` and `unittests.py`.

What is reported are tuples: `("found", names)` of tests that were collected, `("began", test)`, `("ended", test, status,
seconds, message, ok, phase)`, where `test` is a name or the number of one that was found, `ok` is whether it lets all pass
and `phase` is `collect` or `run`, and `("code", code)`, which the framework would have exited with.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aviato.grading.inside.origins import Origins
    from aviato.grading.inside.pytests import run_pytest
    from aviato.grading.inside.unittests import run_unittest

MESSAGE_CHARACTERS = 2000
MESSAGES_CHARACTERS = 1 << 20
"""Of all messages together: the names of tests and their statuses are never left out for them."""
NAMES_A_LINE = 100


def run(kind: str, arguments: list[str], strict: bool, policy: list[str], report: Callable[[Any], None]) -> None:
    """Run it.

    Args:
        kind: `script`, `pytest` or `unittest`.
        arguments: of that.
        strict: what the code under test may have skipped by itself has not passed.
        policy: paths of the code under test.
        report: takes what is said of a test.
    """
    told = Told(strict, Origins(policy), report)
    surround(kind, arguments)
    {"script": script, "pytest": run_pytest, "unittest": run_unittest}[kind](arguments, told)


def surround(kind: str, arguments: list[str]) -> None:
    """Let modules be found where a command finds them; `-I` has left that out."""
    first = os.path.dirname(os.path.abspath(arguments[0])) if kind == "script" else os.getcwd()
    sys.path[:0] = [first, *[part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]]
    import site

    site.addsitedir(site.getusersitepackages())


def script(arguments: list[str], told: Told) -> None:
    import runpy

    sys.argv = list(arguments)
    told.began(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")
    told.ended(arguments[0], "passed", True)


class Told:
    """What has been reported of the tests."""

    def __init__(self, strict: bool, origins: Origins, report: Callable[[Any], None]) -> None:
        self.strict = strict
        self.origins = origins
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._report = report
        self._room = MESSAGES_CHARACTERS
        self._ended = self._passed = self._bad = 0

    def found(self, names: list[str]) -> None:
        """These tests are to run."""
        for number, name in enumerate(names, len(self.names)):
            self._numbers.setdefault(name, number)
        self.names += names
        for at in range(0, len(names), NAMES_A_LINE):
            self._report(("found", names[at : at + NAMES_A_LINE]))

    def began(self, name: str) -> None:
        """A test is under way: what ends the process ends it."""
        self._report(("began", self._numbers.get(name, name)))

    def ended(self, name: str, status: str, graders: bool, message: str = "", seconds: float = 0.0, phase: str = "run") -> None:
        """A test is over.

        Args:
            name: of the test.
            status: as `CaseStatus` has it.
            graders: whether that it was skipped, or failed as expected, is the grader's own saying; where it passed against
                expectation, whether the framework lets that pass.
            message: why it did not pass.
            seconds: that it took.
            phase: `collect` where it never came to run.
        """
        spared = status in ("skipped", "xfailed") and not self.strict
        ok = status == "passed" or spared or (status in ("skipped", "xfailed", "xpassed") and graders)
        message = message.strip()[: min(MESSAGE_CHARACTERS, self._room)]
        if not ok and status in ("skipped", "xfailed"):
            message = "%s while the code under test ran, which does not count in mode 'in_process': %s" % (status, message)
        self._room -= len(message)
        self._report(("ended", self._numbers.get(name, name), status, round(seconds, 6), message, ok, phase))
        self._ended += 1
        self._passed += status in ("passed", "xpassed") and ok
        self._bad += not ok

    def close(self, code: int) -> None:
        """The framework is done. Raises if its tests have not passed."""
        self._report(("code", code))
        if code or self._bad or not self._passed:
            raise AssertionError("%d of %d tests passed (code %d)" % (self._passed, self._ended, code))
