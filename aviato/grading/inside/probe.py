"""Runs in a new sandbox that has a grader's files and none of the policy's: says what the grader itself cannot run for.

What would be the policy's is stood for by names that can be imported. Where anything else is done with them, or with the
policy's data, nothing is said: then it may have been the policy's doing. Follows `origins.py` and `runs.py`.
"""

from __future__ import annotations

import ast
import builtins
import fnmatch
import importlib
import importlib.machinery
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from aviato.grading.inside.runs import surround

PLAIN = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PYTEST_USAGE, PYTEST_NO_TESTS = 4, 5


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read().decode("ascii"))
    policy = Policy(asked["results"], asked["patterns"], asked["never"], asked["frameworks"])
    sys.meta_path.append(policy)
    sys.addaudithook(policy.heard)
    surround(asked["kind"], asked["arguments"])
    try:
        said = FINDERS[asked["kind"]](asked, policy) or missing_in_tests(asked, policy)
    except BaseException:
        said = None
    sys.stdout.flush()
    os.write(1, ("\n" + asked["token"] + ascii(said) + "\n").encode("ascii"))
    os._exit(0)


class Touched(BaseException):
    """A name of the policy's was used: what follows may be its doing."""


class Policy:
    """The policy's modules, as far as they need not be there: the last finder."""

    def __init__(self, results: list[str], patterns: list[str], never: list[str], frameworks: list[str]) -> None:
        self.touched = False
        self._never = never
        self._frameworks = frameworks
        self._files = {os.path.realpath(path) for path in results}
        self._patterns = [[part for part in pattern.split("/") if part not in ("", ".")] for pattern in patterns]
        parts = [path[: -len(".py")].strip("/").split("/") for path in results if path.endswith(".py")]
        dotted = [part[:-1] if part[-1] == "__init__" else part for part in parts]
        self._names = {
            ".".join(name[at:end]) for name in dotted for at in range(len(name)) for end in range(at + 1, len(name) + 1)
        }
        self._names.add("aviato_solution")

    def may_make(self, name: str) -> bool:
        """Whether a module of this name could be among the results."""
        if name in self._names:
            return True
        parts = name.split(".")
        if parts[0] in self._never:
            return False
        files = ([*parts[:-1], parts[-1] + ".py"], [*parts, "__init__.py"], [*parts, "?.py"])
        return any(fits(file, pattern) for file in files for pattern in self._patterns)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self.may_make(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        """As any module is made."""

    def exec_module(self, module: Any) -> None:
        def found(name: str) -> Any:
            if name.startswith("__"):
                self.touched = self.touched or name not in ("__path__", "__file__", "__spec__")
                raise AttributeError(name)
            if name in self._frameworks:
                raise AttributeError(name)
            return Stub(self)

        module.__getattr__ = found

    def touch(self) -> Any:
        self.touched = True
        raise Touched

    def heard(self, event: str, args: Any) -> None:
        """A file is opened: one of the policy's is not there, and what comes of that is not the grader's doing."""
        if event == "open" and isinstance(args[0], str) and self.holds(args[0]):
            self.touched = True

    def holds(self, path: str) -> bool:
        try:
            found = os.path.realpath(path)
        except ValueError:
            return False  # It cannot be opened either.
        parts = [part for part in found.split("/") if part]
        return found in self._files or any(fits(parts, pattern) for pattern in self._patterns if not os.path.exists(found))


def fits(file: list[str], pattern: list[str]) -> bool:
    """Whether a path may end, or the whole of one may be, as a pattern says: seen from the end, at any depth."""
    for at in range(1, min(len(file), len(pattern)) + 1):
        part, wanted = file[-at], pattern[-at]
        if wanted == "**":
            return True
        if not fnmatch.fnmatchcase(part, wanted) and not part.startswith("?"):
            return False
    return len(file) <= len(pattern)


class Stub:
    """A name of a module of the policy's."""

    def __init__(self, policy: Policy) -> None:
        object.__setattr__(self, "_policy", policy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # what test frameworks look for in whatever they meet
        return object.__getattribute__(self, "_policy").touch()

    def _touch(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_policy").touch()

    __call__ = __setattr__ = __delattr__ = __mro_entries__ = __instancecheck__ = __subclasscheck__ = _touch
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __contains__ = _touch
    __getitem__ = __setitem__ = __delitem__ = __enter__ = __exit__ = __next__ = __int__ = __float__ = __index__ = _touch
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __and__ = __or__ = __ror__ = __str__ = __format__ = _touch
    __hash__ = object.__hash__


# -- a program


def of_script(asked: Any, policy: Policy) -> Any:
    """What keeps a program from its first statement that is more than an import."""
    path = asked["arguments"][0]
    if not os.path.exists(path):
        return None if policy.holds(path) else "%s: no such file" % path
    return of_source(path, asked, policy, set())


def of_source(path: str, asked: Any, policy: Policy, seen: set[str]) -> Any:
    seen.add(path)
    tree, problem = parsed(path)
    if tree is None:
        return problem
    for name, names in first_imports(tree):
        own = own_file(name, os.path.dirname(path), asked["files"])
        if own is not None:
            said = of_source(own, asked, policy, seen) if own not in seen else None
        else:
            said = of_import(name, names, policy)
        if said or policy.touched:
            return said
    return None


def parsed(path: str) -> Any:
    """The tree of a file, or why there is none."""
    try:
        with open(path, "rb") as file:
            source = file.read()
        compile(source, path, "exec", dont_inherit=True)
        return ast.parse(source), None
    except (SyntaxError, ValueError) as error:
        return None, "%s: %s: %s" % (path, type(error).__name__, error)


def first_imports(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """The imports that nothing can keep a module from, or change beforehand."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module:
                yield node.module, [alias.name for alias in node.names]
        elif not is_plain(node):
            return


def is_plain(node: ast.stmt) -> bool:
    if isinstance(node, PLAIN):
        return not node.decorator_list and not isinstance(node, ast.ClassDef)  # type: ignore[union-attr]
    value = getattr(node, "value", None)
    return isinstance(node, (ast.Assign, ast.Expr)) and isinstance(value, ast.Constant)


def own_file(name: str, folder: str, files: list[str]) -> Any:
    """The grader's file that a module is, as found beside the one that asks for it."""
    base = os.path.join(folder, *name.split("."))
    known = {os.path.realpath(path): path for path in files}
    return known.get(os.path.realpath(base + ".py")) or known.get(os.path.realpath(base + "/__init__.py"))


def of_import(name: str, names: list[str], policy: Policy) -> Any:
    if policy.may_make(name):
        policy.touched = policy.touched or "*" in names
        return None
    try:
        module = importlib.import_module(name)
        for each in names:
            if each != "*" and not hasattr(module, each):
                importlib.import_module("%s.%s" % (name, each))
    except ImportError as error:
        return "%s: %s" % (type(error).__name__, error)
    return None


# -- pytest


def of_pytest(asked: Any, policy: Policy) -> Any:
    try:
        import pytest
    except ImportError as error:
        return "%s: %s" % (type(error).__name__, error)
    found: list[tuple[str, Any]] = []

    class Plugin:
        @pytest.hookimpl(hookwrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Iterator[None]:
            outcome: Any = yield
            report = outcome.get_result()
            if report.failed:
                found.append((collector.nodeid, report.call.excinfo.value))

    sys.argv = ["pytest", *asked["arguments"]]
    code = int(pytest.main([*asked["arguments"], "--collect-only", "-q"], plugins=[Plugin()]))
    for nodeid, raised in found:
        wrapped = raised.__cause__ or raised.__context__ if type(raised).__name__ == "CollectError" else None
        said = of_error(wrapped or raised, asked, policy)
        if said:
            return "%s: %s" % (nodeid, said)
    if policy.touched or found:
        return None
    return {PYTEST_USAGE: "pytest cannot be used so (code 4)", PYTEST_NO_TESTS: "there are no tests (code 5)"}.get(code)


def of_error(error: BaseException, asked: Any, policy: Policy) -> Any:
    """Why a file of the grader's cannot be loaded; None where the policy may have a part in it."""
    text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
    if isinstance(error, SyntaxError):
        return text  # None of the policy's files is here.
    if policy.touched or isinstance(error, Touched):
        return None
    # Of what is no import it is not known what it would have been beside the policy's files.
    return text if isinstance(error, ImportError) or (asked["modules_only"] and text in asked["messages"]) else None


# -- unittest


def of_unittest(asked: Any, policy: Policy) -> Any:
    import unittest

    suites: list[Any] = []

    class Runner(unittest.TextTestRunner):
        def run(self, test: Any) -> Any:
            suites.append(test)
            return unittest.TestResult()

    try:
        argv = ["python -m unittest", *asked["arguments"]]
        unittest.main(module=None, argv=argv, exit=False, testRunner=Runner)
    except SystemExit as error:
        return None if policy.touched else "unittest cannot be used so (code %s)" % (error.code,)
    tests = [test for suite in suites for test in flat(suite)]
    for test in tests:
        lines = str(getattr(test, "_exception", "")).strip().split("\n")
        kind = getattr(builtins, lines[-1].split(":")[0], None)
        if isinstance(kind, type) and issubclass(kind, SyntaxError if policy.touched else (ImportError, SyntaxError)):
            return lines[-1]
    return None if tests or policy.touched else "there are no tests"


def flat(suite: Any) -> list[Any]:
    try:
        return [test for part in suite for test in flat(part)]
    except TypeError:
        return [suite]


FINDERS = {"script": of_script, "pytest": of_pytest, "unittest": of_unittest}


# -- modules that tests ask for when they run


def missing_in_tests(asked: Any, policy: Policy) -> Any:
    """A module that is said to be missing, that a test of the grader's imports in any case, and that is missing here too."""
    for path in asked["files"]:
        tree = parsed(path)[0]
        if tree is None or any(isinstance(node, ast.Name) and node.id in ("sys", "site") for node in ast.walk(tree)):
            continue  # It may change by itself where modules are found.
        tests = [node for node in ast.walk(tree) if isinstance(node, PLAIN[2:4]) and node.name.startswith("test")]
        for test in tests:
            for name, names in first_imports(ast.Module(test.body, [])):
                if name.split(".")[0] in asked["missing"] and own_file(name, os.path.dirname(path), asked["files"]) is None:
                    said = of_import(name, names, policy)
                    if said:
                        return "%s: %s" % (path, said)
    return None
