"""What a test source can check, and who runs it: told from its text, before anything runs."""

from __future__ import annotations

import ast
import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.rl.check_marks import Mark, before, insert
from aviato.rl.check_names import Function, Names
from aviato.rl.check_terms import dotted
from aviato.rl.check_walk import DYNAMIC, Check, End, Found, Place, Walk
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Collection

MARK = "__aviato_checked__"


@dataclass(frozen=True)
class TestSource:
    """What a test source can check.

    Attributes:
        kind: `"statements"` (running it checks), `"pytest"` or `"unittest"` (it defines tests that somebody must collect and
            run afterwards: `grading/inside/collect.py`), or `"nothing"`.
        why_nothing: for `"nothing"`: what it is instead, and what to do.
        instrumented: the source to run. It is the source itself unless checks may go unreached, or the source runs its tests
            or ends the program in a way that is the driver's.
        counts_checks: whether `instrumented` calls the mark wherever a check is reached; a run without any has checked nothing.
        already_run: tests that the source calls itself, so that nobody else need.
    """

    __test__ = False  # no test of pytest's

    kind: str
    why_nothing: str
    instrumented: str
    counts_checks: bool
    already_run: tuple[str, ...] = ()


def look(source: str, *, code_names: Collection[str] = (), mark: str = MARK) -> TestSource:
    """Tell what a test source can check.

    Args:
        source: Python that runs after the code, in the code's names, as the module `solution`.
        code_names: names that the code defines; a built-in name among them is taken to be the code's.
        mark: what `instrumented` calls where a check is reached: `mark()`, and `mark(value)`, which must give the value back.
    """
    source = source.removeprefix("\ufeff")
    try:
        tree = _parsed(source)
        return _Look(source, tree, code_names).told(mark)
    except SyntaxError as error:
        line = f", line {error.lineno}: {(error.text or '').strip()[:80]!r}" if error.lineno else ""
        return _nothing(source, _json(source) or f"it is no Python: {type(error).__name__}: {error.msg}{line}")
    except UnicodeEncodeError:
        return _nothing(source, "it is no Python: it has a lone surrogate in it, which is no character")
    except (ValueError, OverflowError) as error:
        return _nothing(source, f"it is no Python: {error}")
    except (RecursionError, MemoryError):
        return _nothing(source, "it is nested too deeply for Python")


def _parsed(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = parsed(source)
        compile(source, "test", "exec", dont_inherit=True)  # what only the compiler refuses, such as a `return` outside
    return tree


class _Look:
    """At one source."""

    def __init__(self, source: str, tree: ast.Module, code_names: Collection[str]) -> None:
        self.source, self.tree, self.code_names = source, tree, code_names
        self.names = Names(tree, code_names)
        self.module = self._walk(None, tree.body)
        self.notes = list(self.module.notes)
        self.tests = self._tests()
        self.ran = self._ran()
        self.checks = [*self.module.checks]
        self.never = [*self.module.never]
        self.stuck = ""
        self._follow()

    def _walk(self, function: Function | None, body: list[ast.stmt], certain: bool = True) -> Found:
        walk = Walk(self.names, self.code_names, function, certain)
        walk.body(body, Place(certain=certain))
        return walk.found

    def _tests(self) -> list[Function | ast.ClassDef]:
        """The tests that a runner would collect."""
        defined = {node.name: node for node in self.module.defined if isinstance(node, (*_FUNCTIONS, ast.ClassDef))}
        return [node for node in defined.values() if self._is_test(node)]

    def _is_test(self, node: Function | ast.ClassDef) -> bool:
        if isinstance(node, ast.ClassDef):
            if not any(method.name.startswith("test") for method in self.names.methods(node)):
                return False
            made = any(method.name == "__init__" for method in self.names.methods(node))
            return self.names.is_unittest(node) or (node.name.startswith("Test") and not made)
        return node.name.startswith("test") and not self.names.missing_arguments(node, 0)

    def _ran(self) -> list[Function | ast.ClassDef]:
        """The tests that the source runs itself in every run; what it may run is run again, as pytest would."""
        return [node for node in self.tests if self._runs(node)]

    def _runs(self, node: Function | ast.ClassDef) -> bool:
        if isinstance(node, ast.ClassDef):
            return self.names.is_unittest(node) and self.names.runs_itself
        return node.name in self.module.calls

    @property
    def collected(self) -> list[Function | ast.ClassDef]:
        """The tests that are left to a runner."""
        return [node for node in self.tests if node not in self.ran]

    def _follow(self) -> None:
        """Look into every function that is called, or may be."""
        seen: set[Function] = set()
        loads = set(self.module.loads)
        todo = self._certainly(self.module.calls)
        for node in self.collected:
            methods = list(self.names.methods(node)) if isinstance(node, ast.ClassDef) else [node]
            inert = all(self.names.is_inert(each) for each in node.decorator_list)
            todo += [(one, inert and self._is_run(one)) for one in methods]
            seen |= {one for one in methods if self._is_left_alone(node, one)}
        for node in self.ran:
            if isinstance(node, ast.ClassDef):
                todo += [(one, False) for one in self.names.methods(node)]
        while todo or (todo := [(one, False) for one in self._referred(loads) if one not in seen]):
            function, certain = todo.pop(0)
            if function in seen:
                continue
            seen.add(function)
            found = self._walk(function, function.body, certain)
            self.checks += found.checks
            self.notes += found.notes
            self.never += found.never
            loads |= found.loads
            if certain:
                todo[:0] = self._certainly(found.calls)
        self.unused = [
            one for group in self.names.functions.values() for one in group if one not in seen and one not in self.tests
        ]

    def _is_run(self, one: Function) -> bool:
        """Whether a runner comes to the body: a decorator of somebody else's may put anything in its place."""
        return one.name.startswith("test") and all(self.names.is_inert(each) for each in one.decorator_list)

    def _is_left_alone(self, owner: Function | ast.ClassDef, one: Function) -> bool:
        """Whether a runner only makes a coroutine or a generator of a test."""
        if not one.name.startswith("test") or any(
            not self.names.whole(dotted(each)).startswith("pytest.mark") for each in one.decorator_list
        ):
            return False
        if isinstance(owner, ast.ClassDef) and self.names.is_unittest(owner) and isinstance(one, ast.AsyncFunctionDef):
            if not self.names.awaits(owner):
                self.notes.append(f"{owner.name}.{one.name} is never awaited: derive {owner.name} from IsolatedAsyncioTestCase")
                return True
        elif self.names.is_generator(one):
            self.stuck = self.stuck or f"{one.name} is a generator, which no runner runs: take the `yield` out"
        return False

    def _certainly(self, calls: list[str]) -> list[tuple[Function, bool]]:
        found = [one for name in calls if (one := self.names.function(name)) is not None]
        # A decorator of somebody else's may put anything in its place.
        return [(one, all(self.names.is_inert(each) for each in one.decorator_list)) for one in found]

    def _referred(self, loads: set[str]) -> list[Function]:
        found = [one for name, group in self.names.functions.items() if name in loads or loads & DYNAMIC for one in group]
        for name, node in self.names.classes.items():
            if name in loads or loads & DYNAMIC:
                found += self.names.methods(node)
        return found

    def told(self, mark: str) -> TestSource:
        """What it comes to."""
        strong = [check for check in self.checks if check.strong]
        checks = strong or self.checks
        if not checks or self.stuck:
            return _nothing(self.source, self.stuck or self._why())
        if not (self.names.subject.is_there or self.module.fails):
            return _nothing(self.source, "it uses nothing of the code: call the code and assert what comes back")
        if self.module.end is not None and self.module.end.in_try:
            line = self.module.end.node.lineno
            return _nothing(self.source, f"line {line} ends the program inside a `try`: let the test end by itself there")
        certain = any(check.certain for check in checks)
        text = self._text(checks, certain, mark)
        return TestSource(self._kind(), "", text, not certain, tuple(node.name for node in self.ran))

    def _kind(self) -> str:
        if not self.collected:
            return "statements"
        only = all(isinstance(node, ast.ClassDef) and self.names.is_unittest(node) for node in self.collected)
        return "unittest" if only else "pytest"

    def _text(self, checks: list[Check], certain: bool, mark: str) -> str:
        marks = [*self.never]
        if not certain:
            marks += [check.mark for check in checks if check.mark is not None]
        if self.module.end is not None:
            return self._ended(self.module.end, marks, mark)
        return insert(self.source, marks, mark) if marks else self.source

    def _ended(self, end: End, marks: list[Mark], mark: str) -> str:
        """The source up to its end, whose status is asserted where there is one to ask."""
        place = end.node.lineno, end.node.col_offset
        kept = [one for one in marks if (one.node.lineno, one.node.col_offset) < place]
        text = insert(before(self.source, end.node), kept, mark)
        if end.status is None:
            return text + "pass"
        asked = f"({ast.get_source_segment(self.source, end.status)})"
        if len(kept) < len(marks):
            asked = f"{mark}({asked})"
        return f"{text}assert {asked} in (0, None), 'the test ended with a status that is not 0'"

    def _why(self) -> str:
        if not self.tree.body:
            return "it is a comment: write `assert`" if self.source.strip() else "it is empty: write `assert`"
        if found := _json(self.source):
            return found
        if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in self.tree.body):
            return "it is a constant and no statement: write `assert` and what must be true"
        if self.tests:
            name = self.tests[0].name
            return next(iter(self.notes), f"it defines {name}, in which nothing is asserted: write `assert` there")
        if self.unused and not self.notes:
            return self._uncalled(self.unused[0])
        if self.notes:
            return self.notes[0]
        if self.names.classes:
            return f"it defines {next(iter(self.names.classes))} and nobody calls it: write `assert` and what must be true"
        return "nothing in it can fail where the code is wrong: write `assert` and what must be true"

    def _uncalled(self, function: Function) -> str:
        owner = self.names.owners.get(function)
        name = function.name if owner is None else owner.name
        given = next(iter(self.code_names), "…") if function.args.args else ""
        call = f"{name}({given})"
        if isinstance(function, ast.AsyncFunctionDef):
            call = f"asyncio.run({call})"
        return f"it defines {name}() and nobody calls it: end it with {call}"


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _json(source: str) -> str:
    """Said of a source that is data; nothing of any other."""
    try:
        found = json.loads(source)
    except (ValueError, RecursionError):
        return ""
    return "it is JSON and no Python: make assertions of it" if isinstance(found, (list, dict)) else ""


def _nothing(source: str, why: str) -> TestSource:
    return TestSource("nothing", why, source, False)
