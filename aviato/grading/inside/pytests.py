"""What pytest, of any version from 5 on, tells of its tests. Before `runs.py`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from aviato.grading.inside.runs import Told

WORSE = ("", "passed", "xpassed", "xfailed", "skipped", "error", "failed")
SKIPS = ("__unittest_skip__", "__unittest_expecting_failure__")


def run_pytest(arguments: list[str], told: Told) -> None:
    import pytest

    sys.argv = ["pytest", *arguments]
    told.close(int(pytest.main(list(arguments), plugins=[plugin(pytest, told)])))


def plugin(pytest: Any, told: Told) -> Any:
    """A plugin that reports each test."""

    class Plugin:
        def __init__(self) -> None:
            self.under_way: dict[str, dict[str, Any]] = {}
            self.graders: dict[str, bool] = {}
            """Whose a skip was: test → whether the grader's."""
            self.config: Any = None

        def pytest_configure(self, config: Any) -> None:
            self.config = config

        def pytest_collection_finish(self, session: Any) -> None:
            told.found([self.named(item.nodeid) for item in session.items])

        @pytest.hookimpl(optionalhook=True)  # type: ignore[untyped-decorator]
        def pytest_xdist_node_collection_finished(self, node: Any, ids: Any) -> None:
            if not self.graders.setdefault("xdist", False):
                self.graders["xdist"] = True
                told.found([self.named(name) for name in ids])

        @pytest.hookimpl(hookwrapper=True)  # type: ignore[untyped-decorator]
        def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
            outcome: Any = yield
            call = getattr(outcome.get_result(), "call", None)
            raised = call.excinfo.value if call is not None and call.excinfo is not None else None
            self.graders[collector.nodeid] = raised is not None and told.origins.graders(raised)

        def pytest_collectreport(self, report: Any) -> None:
            if not report.passed:
                graders = self.graders.get(report.nodeid, False)
                status = "skipped" if report.skipped else "error"
                told.ended(self.named(report.nodeid), status, graders, why(report), phase="collect")

        def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
            self.under_way[nodeid] = {"status": "", "message": "", "seconds": 0.0, "graders": True}
            told.began(self.named(nodeid))

        @pytest.hookimpl(hookwrapper=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
            # Before others look at it: pytest puts an exception of its own in the place of unittest's.
            kept = getattr(item, "_excinfo", None)
            raised = call.excinfo or (kept[0] if kept else None)
            outcome: Any = yield
            if outcome.get_result().skipped and raised is not None:
                self.graders[item.nodeid] = self.is_graders(item, call.when, raised.value)

        def is_graders(self, item: Any, when: str, raised: Any) -> bool:
            owners = [getattr(item, "obj", None), getattr(getattr(item, "parent", None), "obj", None)]
            if any(getattr(owner, name, False) is True for owner in owners for name in SKIPS):
                return True
            import unittest

            if isinstance(raised, (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)):
                return when != "call" and told.origins.graders(raised)
            return next(item.iter_markers("xfail"), None) is not None

        def pytest_runtest_logreport(self, report: Any) -> None:
            case = self.under_way.setdefault(report.nodeid, {"status": "", "message": "", "seconds": 0.0, "graders": True})
            case["seconds"] += report.duration
            if report.outcome == "rerun":
                case.update(status="", message="", graders=True)
                return
            if report.skipped:
                case["graders"] = case["graders"] and self.graders.pop(report.nodeid, False)
                if hasattr(report, "context"):  # A part of a test: the test itself has another report.
                    case["partly"] = why(report)
                    return
            status = status_of(report)
            if WORSE.index(status) > WORSE.index(case["status"]):
                case.update(status=status, message="" if status == "passed" else why(report))

        def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
            case = self.under_way.pop(nodeid, None)
            if case is None:
                return
            status, message = case["status"] or "not_run", case["message"] or ("" if case["status"] else "not run")
            if status == "passed" and "partly" in case and not case["graders"] and told.strict:
                status, message = "skipped", case["partly"]
            told.ended(self.named(nodeid), status, case["graders"], message, case["seconds"])

        def named(self, nodeid: str) -> str:
            """As it is on pytest's own lines."""
            try:
                return str(self.config.cwd_relative_nodeid(nodeid))
            except Exception:
                return nodeid

    return Plugin()


def status_of(report: Any) -> str:
    """Of one phase of a test."""
    if hasattr(report, "wasxfail") and not report.failed:
        return "xfailed" if report.skipped else "xpassed"
    if report.skipped:
        return "skipped"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "passed" if report.when == "call" else ""


def why(report: Any) -> str:
    """One line."""
    if isinstance(getattr(report, "wasxfail", None), str):
        return str(report.wasxfail) or "expected to fail"
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).strip().split("\n")[0]
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    lines = str(report.longrepr or "not passed").strip().split("\n")
    told = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (told or lines)[-1 if told else 0]
