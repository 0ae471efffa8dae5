"""Runs in a sandbox: the tests that a test source has defined, as pytest or unittest would find them in its module.

Functions and classes that need nothing of pytest run without it. Where one has fixtures, marks or parameters, pytest itself
runs the module that is there, without executing it anew. `aviato.rl.test_source` tells beforehand what is to be collected.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any

COROUTINE = 0x80


class NothingPassed(Exception):
    """Nothing failed, and nothing passed either.

    `status` is `not_run` (there were no tests), `skipped` or `xfailed`; `tests` is as of `collect`.
    """

    def __init__(self, status: str, message: str, tests: list[dict[str, str]]) -> None:
        super().__init__(message)
        self.status = status
        self.tests = tests


def collect(
    kind: str,
    namespace: dict[str, Any],
    before: Mapping[str, Any],
    already_run: Collection[str] = (),
    configured: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> list[dict[str, str]]:
    """Run the tests that a test source has put into its module.

    Args:
        kind: `unittest` (only its classes) or `pytest`.
        namespace: of the module, in which the source has run.
        before: a copy of the namespace from before that: what is still the same object is the code's.
        already_run: names of tests that the source ran itself.
        configured: the files and variables that configure pytest, with what is in them, before the code ran and now: what the
            code has changed counts for nothing. None: all of it counts.

    Returns:
        For each test its `name`, `status` (`passed`, `failed`, `error`, `skipped`, `xfailed`, `xpassed`) and `message`.

    Raises:
        AssertionError: a test did not pass; it names the first, and has all of them as `tests`.
        NothingPassed: no test was there, or none but skipped and xfailed ones.
        ModuleNotFoundError: of pytest, which the tests need.
        RuntimeError: pytest itself did not come to an end.
    """
    own = {name: value for name, value in list(namespace.items()) if name not in before or before[name] is not value}
    tests = {name: value for name, value in own.items() if name not in already_run and is_collected(kind, name, value)}
    ran = Ran()
    module = str(namespace.get("__name__", "solution"))
    if any(needs_pytest(value) for value in tests.values()) or (tests and has_fixtures(own)):
        rest = {name: value for name, value in own.items() if name in tests or not is_collected("pytest", name, value)}
        run_by_pytest(module, rest, ran, configured)
    else:
        run_plainly(module, own, tests, ran)
    return ran.close()


class Ran:
    """What became of each test."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, str]] = {}
        self.bad: list[str] = []
        self.cause: BaseException | None = None

    def add(self, name: str, status: str, message: str = "", error: BaseException | None = None, bad: bool = False) -> None:
        """Keep what became of a test, unless it is known to be bad already."""
        if name in self.bad:
            return
        self.tests[name] = {"name": name, "status": status, "message": message}
        if bad or status in ("failed", "error"):
            self.bad.append(name)
            self.cause = self.cause or error

    def raised(self, name: str, error: BaseException) -> None:
        """A test raised it; what is no matter of one test goes on."""
        found = status_of(error)
        if found is None:
            raise error
        self.add(name, found, skip_reason(error) or text_of(error), error)

    def close(self) -> list[dict[str, str]]:
        found = list(self.tests.values())
        if self.bad:
            failed = AssertionError("%s: %s" % (self.bad[0], self.tests[self.bad[0]]["message"]))
            failed.tests = found  # type: ignore[attr-defined]
            raise failed from self.cause
        if any(one["status"] in ("passed", "xpassed") for one in found):
            return found
        if not found:
            raise NothingPassed("not_run", "the test source defines tests, and none was there to run", found)
        status = "xfailed" if all(one["status"] == "xfailed" for one in found) else "skipped"
        first = next(one for one in found if one["status"] == status)
        raise NothingPassed(status, "%s: %s" % (first["name"], first["message"] or status), found)


def status_of(error: BaseException) -> str | None:
    """What a test has become that raised it; None if it is not for the test to raise."""
    outcomes = sys.modules.get("_pytest.outcomes")
    if skip_reason(error) is not None:
        return "skipped"
    if outcomes is not None and isinstance(error, outcomes.OutcomeException):
        return "xfailed" if type(error).__name__ == "XFailed" else "failed"
    if type(error).__name__ == "XFailed":
        return "xfailed"
    if isinstance(error, AssertionError):
        return "failed"
    return "error" if isinstance(error, (Exception, SystemExit)) and not isinstance(error, MemoryError) else None


def skip_reason(error: BaseException) -> str | None:
    """Why a source or a test was skipped, by unittest's or pytest's exception; None if it was not."""
    for module, name in (("unittest", "SkipTest"), ("_pytest.outcomes", "Skipped")):
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and isinstance(error, known):
            return str(error) or "skipped"
    return None


def text_of(error: BaseException) -> str:
    if isinstance(error, AssertionError):
        return str(error) or "assertion failed"
    return "%s: %s" % (type(error).__name__, error)


# What is a test


def is_collected(kind: str, name: str, value: Any) -> bool:
    """Whether a runner would take it for a test, by its name and what it is."""
    if isinstance(value, type):
        if is_unittest(value):
            return not value.__module__.startswith("unittest")
        plain = name.startswith("Test") and value.__init__ is object.__init__  # type: ignore[misc]
        return kind != "unittest" and plain and value.__dict__.get("__test__", True) and any(members(value))
    if kind == "unittest" or not name.startswith("test") or type(value).__name__ not in ("function", "method"):
        return False
    return bool(getattr(value, "__test__", True))


def is_unittest(value: type) -> bool:
    known = sys.modules.get("unittest.case")
    return known is not None and issubclass(value, known.TestCase)


def members(owner: type) -> Iterator[str]:
    """Names of a class's tests, in the order in which they are defined, bases first."""
    seen = set()
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            plain = getattr(value, "__func__", value)
            if name.startswith("test") and name not in seen and callable(plain) and getattr(plain, "__test__", True):
                seen.add(name)
                yield name


def needs_pytest(value: Any) -> bool:
    """Whether a test has what only pytest gives: marks, parameters, fixtures."""
    if not isinstance(value, type):
        return hasattr(value, "pytestmark") or wants(value, 0)
    if hasattr(value, "pytestmark") or has_fixtures(vars(value)):
        return True
    plain = not is_unittest(value)
    found = [vars(base).get(name) for base in value.__mro__ for name in members(value) if name in vars(base)]
    return any(hasattr(one, "pytestmark") or (plain and wants(one, 1)) for one in found)


def has_fixtures(values: Mapping[str, Any]) -> bool:
    return "pytestmark" in values or any(
        type(value).__name__ == "FixtureFunctionDefinition" or "_pytestfixturefunction" in getattr(value, "__dict__", ())
        for value in list(values.values())
    )


def wants(function: Any, given: int) -> bool:
    """Whether a function needs more arguments than are given."""
    if isinstance(function, staticmethod):
        function, given = function.__func__, 0
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return False
    plain = getattr(function, "__func__", function)
    missing = code.co_argcount - len(plain.__defaults__ or ()) > given
    return bool(missing or code.co_kwonlyargcount > len(plain.__kwdefaults__ or ()))


# Without pytest


def run_plainly(name: str, own: Mapping[str, Any], tests: Mapping[str, Any], ran: Ran) -> None:
    units = {key: value for key, value in tests.items() if isinstance(value, type) and is_unittest(value)}
    if len(units) < len(tests):
        run_functions(sys.modules.get(name), own, {key: value for key, value in tests.items() if key not in units}, ran)
    if units:
        run_by_unittest(list(units.values()), ran)


def run_functions(module: Any, own: Mapping[str, Any], tests: Mapping[str, Any], ran: Ran) -> None:
    """Run functions and plain classes, as pytest would."""
    if not fixture(own, ("setup_module", "setUpModule"), module, "the module", ran):
        return
    for name, value in tests.items():
        if isinstance(value, type):
            run_class(name, value, ran)
        else:
            run_one(name, value, ran, around(own, "function", value))
    fixture(own, ("teardown_module", "tearDownModule"), module, "the module", ran)


def around(values: Mapping[str, Any], what: str, argument: Any) -> list[Callable[[], None]]:
    """The calls before and after a test."""
    return [lambda one=one: hook(values.get(one + what), argument) for one in ("setup_", "teardown_")]  # type: ignore[misc]


def hook(call: Any, argument: Any) -> None:
    """Call what sets up or tears down, which may take what it is for."""
    if call is None:
        return
    plain = getattr(call, "__func__", call)
    taken = plain.__code__.co_argcount - (plain is not call)
    finish(call(argument) if taken > 0 else call())


def fixture(values: Mapping[str, Any], names: tuple[str, ...], argument: Any, label: str, ran: Ran) -> bool:
    for name in names:
        try:
            hook(values.get(name), argument)
        except BaseException as error:
            ran.raised("%s of %s" % (name, label), error)
            return False
    return True


def run_class(name: str, owner: Any, ran: Ran) -> None:
    values = {one: getattr(owner, one, None) for one in ("setup_class", "teardown_class")}
    if not fixture(values, ("setup_class",), owner, name, ran):
        return
    for member in members(owner):
        run_member(name, owner, member, ran)
    fixture(values, ("teardown_class",), owner, name, ran)


def run_member(name: str, owner: Any, member: str, ran: Ran) -> None:
    label = "%s::%s" % (name, member)
    try:
        instance = owner()
        method = getattr(instance, member)
    except BaseException as error:
        ran.raised(label, error)
        return
    hooks = {one: getattr(instance, one, None) for one in ("setup_method", "teardown_method")}
    run_one(label, method, ran, around(hooks, "method", method))


def run_one(name: str, test: Callable[[], Any], ran: Ran, hooks: list[Callable[[], None]]) -> None:
    set_up, tear_down = hooks
    try:
        set_up()
    except BaseException as error:
        ran.raised(name, error)
        return
    try:
        finish(test())
        ran.add(name, "passed")
    except BaseException as error:
        ran.raised(name, error)
    try:
        tear_down()
    except BaseException as error:
        ran.raised(name, error)


def finish(made: Any) -> None:
    """Run what a call has made, if it is a coroutine."""
    kind = type(made).__name__
    if kind == "coroutine":
        import asyncio

        asyncio.run(made)
    elif kind in ("generator", "async_generator"):
        raise TypeError("the test is a generator, and nothing takes anything from it")


def run_by_unittest(owners: list[Any], ran: Ran) -> None:
    import unittest

    def label(test: Any) -> str:
        test = getattr(test, "test_case", test)
        method = getattr(test, "_testMethodName", None)
        return str(test) if method is None else "%s::%s" % (type(test).__name__, method)

    class Result(unittest.TestResult):
        escaped: BaseException | None = None

        def addSuccess(self, test: Any) -> None:
            ran.add(label(test), "passed")

        def addFailure(self, test: Any, err: Any) -> None:
            self.take(test, err[1])

        addError = addFailure

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self.take(test, err[1])

        def addSkip(self, test: Any, reason: str) -> None:
            ran.add(label(test), "skipped", reason)

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            ran.add(label(test), "xfailed", text_of(err[1]))

        def addUnexpectedSuccess(self, test: Any) -> None:
            ran.add(label(test), "xpassed", "it passed, and was expected to fail", bad=True)

        def take(self, test: Any, error: BaseException) -> None:
            status = status_of(error)
            if status is None:
                self.escaped = self.escaped or error
                self.stop()
            ran.add(label(test), status or "error", text_of(error), error)

    result = Result()
    loader = unittest.TestLoader()  # The usual one is everybody's, and may have been told to find less.
    loader.testMethodPrefix, loader.testNamePatterns = "test", None
    unittest.TestSuite(map(loader.loadTestsFromTestCase, owners)).run(result)
    if result.escaped is not None:
        raise result.escaped


# With pytest


def arguments_for(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Have pytest hear of no file that says something else now than it did, and of no such variable."""
    variables = [name for name in before if name.startswith("PYTEST_")]
    for name in variables:
        os.environ.pop(name, None)
        if before[name] is not None:
            os.environ[name] = before[name]
    changed = {name for name, text in now.items() if name not in variables and text != before.get(name)}
    kept = [name for name in now if name not in changed and name not in (*variables, "conftest.py")]
    # Else directories above are looked through, too.
    settings = [] if kept and changed <= {"conftest.py"} else ["-c", kept[0] if kept else os.devnull]
    return [*settings, *(["--noconftest"] if "conftest.py" in changed else [])]


def run_by_pytest(
    name: str, own: Mapping[str, Any], ran: Ran, configured: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
) -> None:
    """Have pytest run a module that is there already."""
    try:
        import pytest
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        message = "No module named 'pytest', and the tests use fixtures, marks or parameters of it: install it there"
        raise ModuleNotFoundError(message, name="pytest") from None
    module = type(sys)(name)
    module.__dict__.update({key: value for key, value in own.items() if key != "__builtins__"})
    path = stub()
    plugin = made_plugin(pytest, module, path, ran)
    try:
        # Its own configuration and conftest.py count if they lie in the working directory.
        arguments = [path, "-q", "-p", "no:cacheprovider", "--rootdir", os.getcwd()]
        arguments += [] if configured is None else arguments_for(*configured)
        code = int(pytest.main(arguments, plugins=[plugin]))
    finally:
        os.remove(path)
        os.rmdir(os.path.dirname(path))
    if plugin.escaped is not None:
        raise plugin.escaped
    if code not in (0, 1, 5) and not ran.bad:
        raise RuntimeError("pytest could not run the tests (code %d)" % code)


def stub() -> str:
    """The path of an empty file that stands for the module."""
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix=".aviato-", dir=os.getcwd())
    except OSError:
        folder = tempfile.mkdtemp(prefix=".aviato-")
    path = os.path.join(os.path.realpath(folder), "test_solution.py")
    with open(path, "w"):
        return path


def made_plugin(pytest: Any, module: Any, path: str, ran: Ran) -> Any:
    import pathlib

    class Own(pytest.Module):  # type: ignore[misc]
        def _getobj(self) -> Any:
            return module

    class Plugin:
        escaped: BaseException | None = None

        @pytest.hookimpl(tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_pycollect_makemodule(self, module_path: Any, parent: Any) -> Any:
            return Own.from_parent(parent, path=pathlib.Path(path)) if str(module_path) == path else None

        def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
            code = getattr(pyfuncitem.obj, "__code__", None)
            if code is None or not code.co_flags & COROUTINE:
                return None
            finish(pyfuncitem.obj(**{one: pyfuncitem.funcargs[one] for one in pyfuncitem._fixtureinfo.argnames}))
            return True

        def pytest_exception_interact(self, call: Any) -> None:
            error = call.excinfo.value
            ran.cause = ran.cause or error
            if status_of(error) is None and not isinstance(error, KeyboardInterrupt):
                self.escaped = self.escaped or error

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                ran.add("the module", "error", last_line(report))

        def pytest_runtest_logreport(self, report: Any) -> None:
            name = report.nodeid.split("::", 1)[-1]
            expected = hasattr(report, "wasxfail")
            if report.skipped:
                ran.add(name, "xfailed" if expected else "skipped", report.wasxfail if expected else skipped_for(report))
            elif report.failed:
                ran.add(name, "failed" if report.when == "call" else "error", crash(report))
            elif report.when == "call":
                ran.add(name, "xpassed" if expected else "passed")

    return Plugin()


def crash(report: Any) -> str:
    found = getattr(report.longrepr, "reprcrash", None)
    return (found.message if found is not None else str(report.longrepr)).strip().split("\n")[0] or "not passed"


def last_line(report: Any) -> str:
    return str(report.longrepr).strip().split("\n")[-1]


def skipped_for(report: Any) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
