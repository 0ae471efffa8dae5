"""What unittest tells of its tests. Before `runs.py`."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.runs import Told

RANKS = ("", "passed", "xpassed", "xfailed", "skipped", "error", "failed")
SET_UP = ("setUpClass (", "setUpModule (")
UNLOADED, LEFT_OUT = "_FailedTest", "ModuleSkipped"
"""Classes of tests that unittest makes for modules that it could not load, and that skipped themselves."""


def run_unittest(arguments: list[str], told: Told) -> None:
    import unittest

    loader = loader_of(unittest, told)
    result_class = result_of(unittest, told, loader)

    class Runner(unittest.TextTestRunner):
        resultclass: Any = result_class

        def run(self, test: Any) -> Any:
            told.found(names_of(test))
            return super().run(test)

    argv = ["python -m unittest", *arguments]
    program = unittest.main(module=None, argv=argv, exit=False, testRunner=Runner, testLoader=loader)
    told.close(0 if program.result.wasSuccessful() else 1)


def names_of(suite: Any) -> list[str]:
    try:
        return [name for part in suite for name in names_of(part)]
    except TypeError:
        return [suite.id()]


def loader_of(unittest: Any, told: Told) -> Any:
    """A loader that knows which modules left themselves out without any code under test having a part in it."""

    class Loader(unittest.TestLoader):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.left_out: set[str] = set()

        def _get_module_from_name(self, name: str) -> Any:
            try:
                return super()._get_module_from_name(name)
            except unittest.SkipTest as error:
                if told.origins.graders(error):
                    self.left_out.add(name)
                raise

    return Loader()


def result_of(unittest: Any, told: Told, loader: Any) -> Any:
    """A class of results that reports each test."""
    import time

    class Result(unittest.TextTestResult):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.cases: dict[int, dict[str, Any]] = {}
            self.begun: set[str] = set()
            self.names: list[str] = told.names

        def startTest(self, test: Any) -> None:
            self.cases[id(test)] = {"status": "", "message": "", "graders": True, "begin": time.monotonic(), "test": test}
            self.begun.add(test.id())
            told.began(test.id())
            super().startTest(test)

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            case = self.cases.pop(id(test), None)
            if case is not None:
                seconds = time.monotonic() - case["begin"]
                told.ended(test.id(), case["status"] or "not_run", case["graders"], case["message"], seconds, phase_of(test))

        def note(self, test: Any, status: str, message: str = "", graders: bool = False) -> None:
            case = self.cases.get(id(getattr(test, "test_case", test)))
            if case is None:
                # A class, a module, or in Python 3.12.1 a test that is skipped.
                self.note_many(test, status, message, graders)
                return
            case["graders"] = case["graders"] and (status == "passed" or graders)
            if RANKS.index(status) > RANKS.index(case["status"]):
                case.update(status=status, message=message)

        def note_many(self, test: Any, status: str, message: str, graders: bool) -> None:
            """What came before a class's or a module's tests became of each of them."""
            name = test.id()
            start = name.split("(")[-1].rstrip(")") + "."
            concerned = [each for each in self.names if each.startswith(start) and each not in self.begun]
            for each in (concerned if name.startswith(SET_UP) else []) or [name]:
                self.begun.add(each)
                told.ended(each, status, graders, message, phase=phase_of(test))

        def addSuccess(self, test: Any) -> None:
            self.note(test, "passed")
            super().addSuccess(test)

        def addFailure(self, test: Any, err: Any) -> None:
            self.note(test, "failed", line_of(err))
            super().addFailure(test, err)

        def addError(self, test: Any, err: Any) -> None:
            self.note(test, "error", line_of(err))
            super().addError(test, err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self.note(test, "failed" if issubclass(err[0], test.failureException) else "error", line_of(err))
            super().addSubTest(test, subtest, err)

        def addSkip(self, test: Any, reason: str) -> None:
            self.note(test, "skipped", reason, self.is_graders(test))
            super().addSkip(test, reason)

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self.note(test, "xfailed", line_of(err), True)
            super().addExpectedFailure(test, err)

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.note(test, "xpassed", "unexpected success")
            super().addUnexpectedSuccess(test)

        def is_graders(self, test: Any) -> bool:
            if type(test).__name__ == LEFT_OUT:
                return test.id().rsplit(LEFT_OUT + ".", 1)[-1] in loader.left_out
            method = getattr(test, getattr(test, "_testMethodName", ""), None)
            if any(getattr(owner, "__unittest_skip__", False) is True for owner in (type(test), method)):
                return True
            # Before Python 3.11 unittest tells it when the exception is gone.
            raised = sys.exc_info()[1]
            return isinstance(raised, unittest.SkipTest) and not in_test(raised) and told.origins.graders(raised)

    return Result


def phase_of(test: Any) -> str:
    return "collect" if type(test).__name__ in (UNLOADED, LEFT_OUT) else "run"


def in_test(error: BaseException) -> bool:
    """Whether it was raised in the test itself, and not in what comes before."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_callTestMethod":
            return True
        trace = trace.tb_next
    return False


def line_of(err: Any) -> str:
    """The kind and the first line of an exception; of a module that could not be loaded, why."""
    try:
        lines = str(err[1]).strip().split("\n")
        if lines[0].startswith("Failed to import test module"):
            return lines[-1].strip()
        text = lines[0]
    except Exception:
        text = ""
    return "%s: %s" % (err[0].__name__, text) if text else str(err[0].__name__)
