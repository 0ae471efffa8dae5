"""Runs in a child of the keeper (`cases.py`): a grader's command, each test of which is reported. It raises if any failed.

A script, pytest and unittest see what `python FILE`, `python -m pytest` and `python -m unittest` would show them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MESSAGE_CHARACTERS = 2000


def run(kind: str, arguments: list[str], strict: bool, report: Callable[[dict[str, Any]], None]) -> None:
    """Run it; with `strict`, what was skipped has not passed."""
    first = os.path.dirname(os.path.abspath(arguments[0])) if kind == "script" else os.getcwd()
    sys.path[:0] = [first, *[part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]]
    import site

    site.addsitedir(site.getusersitepackages())
    {"script": script, "pytest": pytest, "unittest": unittest}[kind](arguments, strict, report)


def script(arguments: list[str], strict: bool, report: Callable[[dict[str, Any]], None]) -> None:
    import runpy

    sys.argv = list(arguments)
    runpy.run_path(arguments[0], run_name="__main__")
    report({"name": arguments[0], "passed": True})


def pytest(arguments: list[str], strict: bool, report: Callable[[dict[str, Any]], None]) -> None:
    import pytest

    plugin = Plugin()
    sys.argv = ["pytest", *arguments]
    code = int(pytest.main(list(arguments), plugins=[plugin]))
    close(plugin.cases, plugin.collected, strict, code, report)


class Plugin:
    """What pytest tells of its tests."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, Any]] = {}
        self.collected: list[str] = []

    def pytest_collection_finish(self, session: Any) -> None:
        self.collected = [item.nodeid for item in session.items]

    def pytest_runtest_logreport(self, report: Any) -> None:
        case = self.cases.setdefault(report.nodeid, {"name": report.nodeid, "passed": False, "message": "", "seconds": 0.0})
        case["seconds"] += report.duration
        if report.when == "call" and report.passed:
            case["passed"] = True
        elif not report.passed:
            case.update(passed=False, skipped=report.skipped)
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else str(report.longrepr or "not passed")
            case["message"] = text.strip().split("\n")[0]


def unittest(arguments: list[str], strict: bool, report: Callable[[dict[str, Any]], None]) -> None:
    import time
    import unittest

    cases: dict[str, dict[str, Any]] = {}

    class Result(unittest.TextTestResult):
        def startTest(self, test: Any) -> None:
            cases[test.id()] = {"name": test.id(), "passed": False, "message": "", "begin": time.monotonic()}
            super().startTest(test)

        def stopTest(self, test: Any) -> None:
            case = cases[test.id()]
            case["seconds"] = time.monotonic() - case.pop("begin")
            bad = [text for known, text in [*self.errors, *self.failures] if known.id().split(" ")[0] == test.id()]
            skipped = [text for known, text in self.skipped if known.id() == test.id()]
            message = " ".join([*bad, *skipped]).strip().split("\n")[-1]
            case.update(passed=not bad and not skipped, skipped=bool(skipped), message=message)
            super().stopTest(test)

    class Runner(unittest.TextTestRunner):
        resultclass: Any = Result

    program = unittest.main(module=None, argv=["python -m unittest", *arguments], exit=False, testRunner=Runner)
    close(cases, list(cases), strict, 0 if program.result.wasSuccessful() else 1, report)


def close(
    cases: dict[str, dict[str, Any]], collected: list[str], strict: bool, code: int, report: Callable[[dict[str, Any]], None]
) -> None:
    # Where pytest-xdist has the tests run by others, nothing is collected here.
    names = collected or list(cases)
    found = [cases.get(name, {"name": name, "passed": False, "message": "not run"}) for name in names]
    for case in found:
        case["message"] = case["message"][:MESSAGE_CHARACTERS]
        report(case)
    passed = [case for case in found if case["passed"]]
    spared = [case for case in found if case.get("skipped") and not strict]
    if code or not passed or len(passed) + len(spared) < len(found):
        raise AssertionError("%d of %d tests passed (code %d)" % (len(passed), len(found), code))
