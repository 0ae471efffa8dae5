"""Walks a test source in the order in which it runs, and finds its checks: what can raise where the code is wrong.

A check is *certain* where every run that comes to the end of the source makes it, and *strong* where it is there to check
(an assertion, a raise, a call whose name says so), not merely something that might raise. What decides whether something is
raised is the check: in `if f(2) != 4: raise …` it is the condition, since a right code never comes to the raise.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aviato.rl import check_terms as terms
from aviato.rl.check_marks import Mark, start_of
from aviato.rl.check_names import FIXTURES, Names
from aviato.rl.check_subject import asserted
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aviato.rl.check_names import Function

DYNAMIC = frozenset({"globals", "locals", "vars", "eval", "exec", "dir", "inspect", "importlib", "__import__"})
TRANSPARENT = frozenset({"open", "subTest", "no_grad", "catch_warnings", "redirect_stdout", "TemporaryDirectory", "patch"})
"""Context managers that swallow nothing."""
EXPECTING = re.compile(r"(?i)expect|error|exception|throw|fail")
"""Names of context managers under which something is to be raised."""


@dataclass(frozen=True)
class Check:
    """Something that can fail: see the module."""

    strong: bool
    certain: bool
    mark: Mark | None


@dataclass(frozen=True)
class Place:
    """How the walk came to a statement.

    Attributes:
        certain: every run comes here.
        tries: the `try` statements whose bodies it stands in, outermost first.
        decision: what decided that the run came here; None where nothing did.
        decided_certainly: whether every run makes that decision.
        guarded: an exception may be expected here, so that what comes after a statement need not be reached.
        covered: a context manager that this module does not know may swallow what is asserted here.
        in_handler: it stands in an `except`.
    """

    certain: bool = True
    tries: tuple[ast.Try, ...] = ()
    decision: Mark | None = None
    decided_certainly: bool = False
    guarded: bool = False
    covered: bool = False
    in_handler: bool = False


@dataclass(frozen=True)
class End:
    """A statement that ends the module.

    Attributes:
        node: the statement.
        status: what it ends with, where that is not known to be a success.
        in_try: it stands in a `try`.
    """

    node: ast.stmt
    status: ast.expr | None
    in_try: bool


@dataclass
class Found:
    """What a walk found.

    Attributes:
        checks: in their order.
        loads: names that what runs refers to, so that functions of those names may be called.
        calls: functions of the source that every run calls.
        notes: sentences on what checks nothing.
        never: calls that are left to whoever collects the tests.
        end: where the module ends itself, as a success or with a status that tells, where it does.
        fails: every run fails, whatever the code is.
        returned: a `return` may have come before.
        defined: functions and classes, at the top of the body.
    """

    checks: list[Check] = field(default_factory=list)
    loads: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    never: list[Mark] = field(default_factory=list)
    end: End | None = None
    fails: bool = False
    returned: bool = False
    defined: list[ast.stmt] = field(default_factory=list)


class Walk:
    """Of one body: the module's or a function's.

    Args:
        names: what the source defines.
        code_names: names of the code under test, which count whatever they are called.
        function: whose body it is; None for the module.
        certain: every run comes to the body.
    """

    def __init__(self, names: Names, code_names: Collection[str], function: Function | None, certain: bool) -> None:
        self.names = names
        self.code_names = code_names
        self.function = function
        self.certain = certain
        self.found = Found()

    def body(self, statements: Sequence[ast.stmt], place: Place) -> bool:
        """Walk statements; False if the run never comes to what follows them."""
        return all(self.statement(statement, place) for statement in statements)

    def statement(self, node: ast.stmt, place: Place) -> bool:
        """Walk one; False if the run never comes to what follows it."""
        if self.found.returned:
            place = replace(place, certain=False)
        step: Callable[[ast.stmt, Place], bool] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if step is not None:
            return step(node, place)
        self._use(node)
        return True

    # What checks

    def _assert(self, node: ast.Assert, place: Place) -> bool:
        known = terms.truth(node.test, self.names.true)
        if known is False:
            self._fails(node, "AssertionError", place)
            return False
        if known:
            self._note_true(node)
            return True
        self._use(node.test)
        if terms.asks_a_runner(node.test):
            self.names.runs_itself = True
        elif terms.says_nothing_of_code(node.test):
            self._note(f"line {node.lineno} asserts something of Python's surroundings and nothing of the code")
        else:
            self._checks(node, place, strong=True, error="AssertionError")
        return True

    def _note_true(self, node: ast.stmt) -> None:
        self._note(f"line {node.lineno} asserts what is true whatever the code does: write `assert f(2) == 4`")

    def _raise(self, node: ast.Raise, place: Place) -> bool:
        self._use(node)
        if terms.raised(node) == "SystemExit":
            return self._ends(node, node.exc.args if isinstance(node.exc, ast.Call) else [], place)
        self._fails(node, terms.raised(node), place)
        return False

    def _expr(self, node: ast.Expr, place: Place) -> bool:
        value = node.value
        if isinstance(value, (ast.Lambda, ast.GeneratorExp)):
            self._note(f"line {node.lineno} makes a function or a generator that nobody runs")
            return True
        if isinstance(value, (ast.Call, ast.Await)) and self.names.called(value):
            return self._call(node, value, place)
        if isinstance(value, ast.Name):
            if value.id in self.names.true:
                self._note(f"line {node.lineno} names {value.id} and does not call it: write {value.id}()")
            return True
        self._use(value)
        if isinstance(value, (ast.BoolOp, ast.IfExp)):
            self._choice(node, value, place)
        elif isinstance(value, (ast.ListComp, ast.SetComp)):
            self._part(value.elt, replace(place, certain=False))
        elif isinstance(value, ast.Compare):
            self._note(f"line {node.lineno} compares and throws the result away: write `assert` in front of it")
        elif isinstance(value, ast.Tuple):
            self._note(f"line {node.lineno} makes a tuple and throws it away: write `assert` in front of the comparison")
        return True

    def _call(self, node: ast.Expr, value: ast.expr, place: Place) -> bool:
        name, call = self.names.called(value), value.value if isinstance(value, ast.Await) else value
        assert isinstance(call, ast.Call)
        if name in terms.ENDS:
            self._use(call)
            return self._ends(node, call.args, place)
        if self.names.runs_tests(name):
            self._use(value)
            self.found.never.append(Mark(value, "never"))
            return not name.endswith("main") or name == "pytest.main" or any(keyword.arg == "exit" for keyword in call.keywords)
        if self._is_left_alone(node, name, value):
            for argument in [*call.args, *[keyword.value for keyword in call.keywords]]:
                self._use(argument)
            return True
        self._use(value)
        if self._always_fails(name):
            self._fails(node, "AssertionError", place)
        elif self.names.is_own(name, self.function):
            self._calls_own(name, place)
        elif self._is_true(call):
            self._note_true(node)
        elif (
            self._is_silent(name)
            or (name not in self.code_names and terms.is_answer(call, name))
            or not self._has_part(call, name)
        ):
            self._note(f"line {node.lineno} calls {name}(), which checks nothing: write `assert` and what must be true")
        elif place.in_handler and not terms.CHECKING.search(name.rpartition(".")[2]):
            self._note(f"line {node.lineno} calls {name}() where something has failed already, and raises nothing itself")
        else:
            strong = bool(terms.CHECKING.search(name.rpartition(".")[2]))
            self._checks(node, place, strong=strong, error="AssertionError" if strong else "Exception")
        return True

    def _is_true(self, call: ast.Call) -> bool:
        """Whether it asserts what is true whatever the code does, by a method such as `assertEqual`."""
        test = asserted(call)
        return test is not None and terms.truth(test, self.names.true) is True

    def _has_part(self, call: ast.Call, name: str) -> bool:
        """Whether the code under test can have a part in what a call does."""
        if name == "exec" and call.args:
            text = call.args[0]
            if isinstance(text, ast.Call) and terms.called(text) == "compile" and text.args:
                text = text.args[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                return self._executes_checks(text.value)
        if terms.RAISERS.search(name) and len(call.args) > 1:
            return self.names.subject.has_part(*call.args[1:], *call.keywords)
        return self.names.subject.has_part(call)

    def _executes_checks(self, source: str) -> bool:
        """Whether a text that is executed checks anything, as far as it can be read."""
        try:
            tree = parsed(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return True
        walk = Walk(Names(tree, self.code_names), self.code_names, None, self.certain)
        walk.body(tree.body, Place())
        return bool(walk.found.checks or walk.found.calls or walk.found.defined)

    def _calls_own(self, name: str, place: Place) -> None:
        if place.certain and not self._is_swallowed("AssertionError", place):
            self.found.calls.append(name)
        self._note(f"it calls {name}(), which asserts nothing: write `assert` there, or in front of the call")

    def _is_left_alone(self, node: ast.Expr, name: str, value: ast.expr) -> bool:
        """Whether a call only makes a coroutine or a generator, which nobody runs."""
        function = self.names.function(name)
        if function is None or isinstance(value, ast.Await):
            return False
        if isinstance(function, ast.AsyncFunctionDef):
            self._note(f"line {node.lineno} calls {name}() and does not await it: write asyncio.run({name}())")
            return True
        if self.names.is_generator(function):
            self._note(f"line {node.lineno} calls {name}(), a generator, and nobody takes anything from it")
            return True
        return False

    def _always_fails(self, name: str) -> bool:
        function = self.names.function(name)
        if function is not None:
            return self.names.always_fails(function)
        owner, _, last = name.rpartition(".")
        failing = terms.FAILING_METHOD if owner else terms.FAILING
        return bool(failing.search(last)) and name.partition(".")[0] not in self.code_names

    def _is_silent(self, name: str) -> bool:
        root, _, rest = name.partition(".")
        if name in self.code_names or root in self.code_names:
            return False
        if root in FIXTURES and self.function is not None:
            return True
        return name in terms.SILENT or root in terms.SURROUNDINGS or bool(rest and root in self.names.containers)

    def _choice(self, node: ast.Expr, value: ast.BoolOp | ast.IfExp, place: Place) -> None:
        """`f(2) == 4 or fail()`, `found and check(found)`, `check(f) if f else fail()`."""
        parts = value.values[-1:] if isinstance(value, ast.BoolOp) else [value.body, value.orelse]
        for part in parts:
            name = self.names.called(part)
            if name and (name in terms.ENDS or self._always_fails(name)):
                self._checks(node, replace(place, guarded=True), strong=True, error="AssertionError")
            else:
                self._part(part, replace(place, certain=False))
        self._note(f"line {node.lineno} throws its result away: write `assert` in front of it")

    def _part(self, part: ast.expr, place: Place) -> None:
        """A call that is a part of an expression statement."""
        name = self.names.called(part)
        if name and not self._is_silent(name) and not self.names.is_own(name, self.function):
            strong = bool(terms.CHECKING.search(name.rpartition(".")[2]))
            self._add(Check(strong, place.certain, Mark(part, "around")), "AssertionError", place)

    # What ends, and what decides

    def _ends(self, node: ast.stmt, arguments: Sequence[ast.expr], place: Place) -> bool:
        status = arguments[0] if arguments else ast.Constant(None)
        well = isinstance(status, ast.Constant) and (status.value is None or (type(status.value) is int and not status.value))
        if not well and place.decision is not None:
            self._fails(node, "SystemExit", place)
        elif self._is_swallowed("SystemExit", place):
            return False
        elif self.function is None and place.decision is None and (well or not isinstance(status, ast.Constant)):
            self.found.end = self.found.end or End(node, None if well else status, bool(place.tries))
            self._asks(node, status, place)
        self._note(f"line {node.lineno} ends the program: what stands behind it never runs")
        return False

    def _asks(self, node: ast.stmt, status: ast.expr, place: Place) -> None:
        """What a status that is an expression checks: `sys.exit(main())`, `sys.exit(not result.wasSuccessful())`."""
        if isinstance(status, ast.Constant):
            return
        function = self.names.function(self.names.called(status))
        if terms.asks_a_runner(status):
            self.names.runs_itself = True
        elif function is None or any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(function)):
            self._checks(node, place, strong=True, error="AssertionError")
        if function is not None:
            self._calls_own(self.names.called(status), place)

    def _fails(self, node: ast.stmt, error: str, place: Place) -> None:
        """A statement that fails wherever it is reached: what led to it is the check."""
        if self._is_swallowed(error or "Exception", place):
            self._note(f"line {node.lineno} fails inside a `try` that swallows it")
            return
        asserting = not error or any(word in error for word in ("Assert", "Fail", "Test", "Exit"))
        if self.function is not None and not asserting and self.names.is_helper(self.function):
            return  # It guards its arguments, or is a class of the test's own.
        if place.decision is None and self.function is not None and self.found.returned:
            # A `return` on the way here was the other outcome: to run the function is the check.
            self.found.checks.append(Check(True, self.certain, start_of(self.function.body)))
        elif place.decision is None:
            self.found.fails = self.found.fails or (place.certain and self.function is None)
            self.found.checks.append(Check(True, place.certain, Mark(node, "before")))
        else:
            self.found.checks.append(Check(not place.in_handler, place.decided_certainly, place.decision))

    def _if(self, node: ast.If, place: Place) -> bool:
        if terms.is_main_guard(node.test):
            self._note('what stands under `if __name__ == "__main__":` does not run: tests run as the module "solution"')
            return self.body(node.orelse, place)
        known = terms.truth(node.test)
        if known is not None:
            alive, dead = (node.body, node.orelse) if known else (node.orelse, node.body)
            if dead:
                self._note(f"line {dead[0].lineno} is never reached: the condition in front of it is a constant")
            return self.body(alive, place)
        self._use(node.test)
        inner = self._decided(place, node.test)
        if terms.says_nothing_of_code(node.test):
            inner = replace(place, certain=False)
        if terms.asks_a_runner(node.test):
            self.names.runs_itself = True
            return True
        falls = [self.body(node.body, inner), self.body(node.orelse, inner)]
        if any(isinstance(branch[-1], ast.If) and self._fails_anyhow(branch) for branch in (node.body, node.orelse) if branch):
            # What right code comes to is this condition, and none of those behind it.
            self.found.checks.append(Check(not place.in_handler, place.certain, Mark(node.test, "around")))
        return any(falls)

    def _while(self, node: ast.While, place: Place) -> bool:
        if terms.truth(node.test) is False:
            self._note(f"line {node.body[0].lineno} is never reached: the condition in front of it is a constant")
            return self.body(node.orelse, place)
        self._use(node.test)
        self.body(node.body, self._decided(place, node.test))
        self.body(node.orelse, self._decided(place, node.test))
        return not terms.truth(node.test) or any(isinstance(part, ast.Break) for part in ast.walk(node))

    def _for(self, node: ast.For | ast.AsyncFor, place: Place) -> bool:
        self._use(node.iter)
        if terms.truth(node.iter) is False:
            self._note(f"the loop of line {node.lineno} has nothing to go over")
            return self.body(node.orelse, place)
        inner = self._decided(place, node.iter)
        skips = any(isinstance(part, (ast.Break, ast.Continue)) for part in ast.walk(node))
        if place.certain and not skips and terms.has_items(node.iter):
            inner = replace(inner, certain=True)
        self.body(node.body, inner)
        self.body(node.orelse, self._decided(place, node.iter))
        return True

    _asyncfor = _for

    def _match(self, node: ast.Match, place: Place) -> bool:
        self._use(node.subject)
        for case in node.cases:
            self.body(case.body, self._decided(place, node.subject))
        return True

    def _with(self, node: ast.With | ast.AsyncWith, place: Place) -> bool:
        inner = place
        for item in node.items:
            self._use(item.context_expr)
            name = self.names.called(item.context_expr)
            if name in terms.SWALLOWERS:
                assert isinstance(item.context_expr, ast.Call)
                if any(terms.is_kind_of("AssertionError", terms.dotted(kind)) for kind in item.context_expr.args):
                    self._note(f"line {node.lineno} swallows what is asserted under it")
                    return True
                inner = replace(inner, certain=False, guarded=True)
            elif terms.RAISERS.search(name):
                if not self.names.subject.has_part(*node.body):
                    self._note(f"line {node.lineno} expects an error of what is not the code's: call the code there")
                    return True
                self._add(Check(True, place.certain, Mark(item.context_expr, "around")), "AssertionError", place)
                return True
            elif name.rpartition(".")[2] not in TRANSPARENT:
                inner = replace(inner, certain=False, guarded=True, covered=not EXPECTING.search(name))
        return self.body(node.body, inner)

    _asyncwith = _with

    def _try(self, node: ast.Try, place: Place) -> bool:
        start = start_of(node.body)
        inner = replace(place, decision=start, decided_certainly=place.certain, certain=False, guarded=True)
        if start is None:
            inner = replace(place, certain=False, guarded=True)
        if not node.handlers:
            inner = place
        tried = replace(inner, tries=(*place.tries, node))
        loads = set(self.found.loads)
        falls = self.body(node.body, tried)
        if self._is_swallowed("AssertionError", tried):
            self.found.loads = loads  # Whatever a function that is called there asserts comes to nothing.
        falls = falls and self.body(node.orelse, inner)
        caught = [self.body(handler.body, replace(inner, in_handler=True)) for handler in node.handlers]
        return self.body(node.finalbody, place) and (falls or any(caught))

    _trystar = _try

    def _return(self, node: ast.Return, place: Place) -> bool:
        self._use(node)
        self.found.returned = True
        return False

    def _leave(self, node: ast.stmt, place: Place) -> bool:
        return False

    _break = _continue = _leave

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> bool:
        self.found.defined.append(node)
        for part in [*node.decorator_list, *node.args.defaults, *[one for one in node.args.kw_defaults if one is not None]]:
            self._use(part)
        if any(not self.names.is_inert(decorator) for decorator in node.decorator_list):
            self.found.loads.add(node.name)
        return True

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, place: Place) -> bool:
        self.found.defined.append(node)
        for part in [*node.decorator_list, *node.bases, *[keyword.value for keyword in node.keywords]]:
            self._use(part)
        kept = self.found.defined
        self.found.defined = []
        self.body(node.body, place)
        self.found.defined = kept
        return True

    # How it is kept

    def _decided(self, place: Place, test: ast.expr) -> Place:
        return replace(place, certain=False, decision=Mark(test, "around"), decided_certainly=place.certain)

    def _checks(self, node: ast.stmt, place: Place, strong: bool, error: str) -> None:
        before = place.guarded and not (strong and (place.covered or self._may_be_swallowed(error, place)))
        mark = Mark(node, "before" if before else "after")
        self._add(Check(strong, place.certain, mark), error, place)

    def _add(self, check: Check, error: str, place: Place) -> None:
        if self._is_swallowed(error, place):
            line = check.mark.node.lineno if check.mark else 0
            self._note(f"what line {line} checks is swallowed by the `except` around it: let it raise")
        else:
            self.found.checks.append(check)

    def _is_swallowed(self, error: str, place: Place) -> bool:
        for node in reversed(place.tries):
            if any(isinstance(part, (ast.Return, ast.Break, ast.Continue)) for part in node.finalbody):
                return True
            handler = next((one for one in node.handlers if terms.catches(one, error)), None)
            if handler is not None and not any(self._is_failure(part) for part in ast.walk(handler)):
                return True
        return False

    def _may_be_swallowed(self, error: str, place: Place) -> bool:
        """Whether a handler that takes it lets it raise in some cases alone."""
        for node in place.tries:
            for handler in node.handlers:
                if terms.catches(handler, error) and not any(self._is_failing(part) for part in handler.body):
                    return True
        return False

    def _fails_anyhow(self, body: list[ast.stmt]) -> bool:
        """Whether whoever comes to it has failed, whatever else is asked there."""
        last = body[-1] if body else None
        if isinstance(last, ast.If):
            return self._fails_anyhow(last.body) and self._fails_anyhow(last.orelse)
        if isinstance(last, ast.Assert):
            return terms.truth(last.test) is False
        return last is not None and self._is_failing(last)

    def _is_failing(self, node: ast.stmt) -> bool:
        return self._is_failure(node.value if isinstance(node, ast.Expr) else node)

    def _is_failure(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            name = self.names.called(node)
            return name in terms.ENDS or self._always_fails(name)
        return isinstance(node, (ast.Raise, ast.Assert))

    def _use(self, node: ast.AST) -> None:
        todo = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                self.found.loads.add(part.id)
            elif isinstance(part, ast.Attribute) and self.names.whole(terms.dotted(part)) == "sys.modules":
                self.found.loads.add("globals")
            if isinstance(part, ast.Call) and self.names.called(part).rpartition(".")[2] in terms.LOSING:
                self._note(f"what line {part.lineno} starts may fail, and nobody hears of it: check what it has done")
            else:
                todo.extend(ast.iter_child_nodes(part))

    def _note(self, text: str) -> None:
        self.found.notes.append(text)
