"""What a test does with a solution that shares no process with it: calls can cross as data, nothing else can."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.grading.own_process import OwnProcess
from aviato.values.parsing import parsed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_EXPECTING = ("raises", "assertRaises", "assertRaisesRegex", "suppress")
_WARNED = ("warns", "assertWarns", "assertWarnsRegex")
_ASKING = frozenset(
    (
        *("isinstance", "issubclass", "len", "str", "repr", "format", "bool", "int", "float", "iter", "next", "list", "tuple"),
        *("set", "dict", "sorted", "sum", "min", "max", "vars", "dir", "type", "id", "hash", "hasattr", "getattr", "setattr"),
        *("delattr", "reload", "enumerate", "reversed", "zip", "any", "all"),
    )
)
"""Functions that ask a value itself what it is, or change it."""
_ASKING_OBJECTS = frozenset(("issubclass", "vars", "dir", "type", "id", "reload", "assertEqual", "assertNotEqual", "assertIn"))
"""Of these, and of others, those that an object cannot be asked."""
_OPAQUE = frozenset(("pandas", "pd", "torch", "io"))
"""Modules whose values are no data that crosses."""
_CHANGING = frozenset(("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add", "discard", "update"))
_CHANGING |= frozenset(("setdefault", "popitem", "appendleft", "popleft", "extendleft", "rotate"))
"""Methods of data that change it."""
_NO_CLASS = "no class of warnings crosses; expect one of Python's that it is derived from"
_CAUGHT = ("value", "exception", "__cause__", "__context__")
"""Attributes by which tests have an exception."""
_MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_FIXED = frozenset(("range", "len", "int", "float", "str", "bytes", "bool", "sum", "ord", "chr", "round", "abs", "frozenset"))
"""Functions that give what nothing changes."""
_MAKERS = frozenset(("list", "dict", "set", "bytearray", "deepcopy", "copy"))


def modules_of(paths: Collection[str]) -> set[str]:
    """All names that results may be imported by, as modules: `pkg/inner.py` is `inner` and `pkg.inner`."""
    found = set()
    for path in paths:
        if path.endswith(".py"):
            parts = path[: -len(".py")].strip("/").split("/")
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found |= {".".join(parts[at:]) for at in range(len(parts))}
    return found


def file_obstacle(source: bytes, modules: Collection[str]) -> str | None:
    """What keeps a grader's file from being graded apart from modules of the solution; None if nothing is seen.

    Args:
        source: of the file; what is no Python has no obstacle.
        modules: of the solution, by all names that they may be imported by.
    """
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (replaced := _replaced(node, modules)):
            return f"line {node.lineno}: it replaces {replaced}, and a copy of the module is all that is there"
        if isinstance(node, ast.ImportFrom) and node.module in modules and any(alias.name == "*" for alias in node.names):
            return f"line {node.lineno}: it imports * from {node.module}, so nobody can tell its names from the solution's"
    return obstacle(tree, *_imported(tree, modules))


def changing_in(source: bytes, modules: Collection[str]) -> set[str]:
    """See `changing`; of a grader's file as of `file_obstacle`. None of what is no Python."""
    try:
        tree = parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return changing(tree, *_imported(tree, modules))


def _imported(tree: ast.Module, modules: Collection[str]) -> tuple[set[str], set[str]]:
    """By which names a grader's file has names of the solution, and modules of it."""
    names: set[str] = set()
    aliases: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    aliases.add(alias.asname or alias.name)
                elif node.module in modules:
                    names.add(alias.asname or alias.name)
    return names, aliases


def used_as_classes(tree: ast.AST) -> set[str]:
    """Names that a test may mean as classes: it expects an exception of them, or they look so and are not only called."""
    found, called = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(node.func)
            if _dotted(node.func).rsplit(".", 1)[-1] in _EXPECTING:
                found |= {_last(each) for given in node.args[:1] for each in _each(given)}
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            found |= {_last(each) for each in _each(node.type)}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load) or node in called:
            continue
        if _last(node)[:1].isupper():
            found.add(_last(node))
    return _real(tree, found - {""})


def _real(tree: ast.AST, names: set[str]) -> set[str]:
    """The same as what they are imported as is called where it comes from."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    real = {alias.asname: alias.name for node in imports for alias in node.names if alias.asname}
    return {real.get(name, name) for name in names}


def classes_in(source: bytes) -> set[str]:
    """The same of a file; none of what is no Python."""
    try:
        return used_as_classes(parsed(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def _each(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _dotted(node)


def _replaced(call: ast.Call, modules: Collection[str]) -> str | None:
    """What of the solution a call of `mock.patch` or `monkeypatch.setattr` names by text."""
    first = call.args[0] if call.args else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return None
    if _dotted(call.func).rsplit(".", 1)[-1] not in ("patch", "setattr", "delattr"):
        return None
    return first.value if any(first.value.startswith(f"{name}.") for name in modules) else None


def obstacle(
    tree: ast.Module, names: Collection[str], modules: Collection[str] = (), files: Collection[str] | None = None
) -> str | None:
    """What a test does that could only be answered by the solution itself, or cannot be given to it.

    Args:
        tree: of the test.
        names: that stand for functions and classes of the solution.
        modules: that stand for its modules, with dots where they are used so.
        files: paths that are there for the test and for the solution; None if there may be any.
    """
    if not names and not modules:
        return None
    look = _Look(tree, frozenset(names), frozenset(modules))
    for node in ast.walk(tree):
        why = look.why(node)
        if why is not None:
            return f"line {getattr(node, 'lineno', 1)}: {why}"
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and look.called(node)]
    if calls:
        own = OwnProcess(tree, calls, [value for call in calls for value in _given(call)], files)
        for node in ast.walk(tree):
            if (why := own.why(node)) is not None:
                return f"line {getattr(node, 'lineno', 1)}: {why}"
    return None


def changing(tree: ast.Module, names: Collection[str], modules: Collection[str] = ()) -> set[str]:
    """Names of functions and methods of the solution whose calls may change arguments, which the test looks at again.

    Args:
        tree: of the test; all of it as of `obstacle`, which finds nothing in it.
        names: that stand for functions and classes of the solution.
        modules: that stand for its modules.
    """
    look = _Look(tree, frozenset(names), frozenset(modules))
    for node in ast.walk(tree):
        look.why(node)
    return _real(tree, look.changing)


class _Look:
    def __init__(self, tree: ast.Module, names: frozenset[str], modules: frozenset[str]) -> None:
        self._names = names
        self._modules = modules
        self._parents: dict[ast.AST, ast.AST] = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._own = {
            node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        } - names
        self._opaque = set(_opaque_names(tree))
        self._bound: dict[ast.AST, dict[str, list[ast.AST | None]]] = {}
        for scope in ast.walk(tree):
            if isinstance(scope, (*_SCOPES, ast.Module, ast.ClassDef)):
                self._bound[scope] = _bindings(scope)
        self._tree = tree
        self.changing: set[str] = set()
        """Names whose calls are known to change arguments of the test's."""
        self._passed = set(self._all_passed())

    def why(self, node: ast.AST) -> str | None:
        """What is wrong with one use of the solution; None if the node is none, or a good one."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            label = _dotted(node)
            if label in self._modules and not self._shadowed(node, label.split(".")[0]):
                return self._of_module(node, label)
            if isinstance(node, ast.Attribute) and self._is_object(node.value):
                return self._of_attribute(node)
            if self._is_name(node):
                return self._of_reference(node, label)
            if self._is_object(node):
                return self._of_object(node, label)
            return None
        if isinstance(node, ast.Call) and self._is_name(node.func):
            return self._of_call(node, _dotted(node.func))
        if isinstance(node, ast.Call) and (label := self.called(node.func)):
            return self._of_given(node, label) or (None if isinstance(node.func, ast.Call) else self._of_mutation(node, label))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and self._is_passed(node.func):
            return self._of_mutation(node, node.func.id, is_passed=True)
        if isinstance(node, ast.Compare):
            return self._of_identity(node)
        return None

    def called(self, node: ast.AST) -> str:
        """What is called of the solution, where that gives what an expression calls, `f(3)` or `Box(3).apply`; else empty."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and self._is_class(node.value.func):
            node = node.value
        while isinstance(node, ast.Call):
            if self._is_name(node.func):
                return _dotted(node.func)
            node = node.func
        return ""

    # -- what a node is

    def _is_name(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._names and not self._shadowed(node, node.id)
        if not isinstance(node, ast.Attribute):
            return False
        owner = _dotted(node.value)
        if owner in self._modules and f"{owner}.{node.attr}" not in self._modules:
            return not self._shadowed(node, owner.split(".")[0])
        return self._is_object(node.value)

    def _is_object(self, node: ast.AST) -> bool:
        """Whether it is a variable that holds an object of a class of the solution, and nothing else."""
        if isinstance(node, ast.Name):
            scope = self._scope_of(node, node.id)
            values = [] if scope is None else self._bound[scope].get(node.id, [])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            values = self._attributes(node)
        else:
            return False
        return bool(values) and all(isinstance(value, ast.Call) and self._is_class(value.func) for value in values)

    def _is_class(self, node: ast.AST) -> bool:
        label = _dotted(node)
        known = isinstance(node, ast.Name) and node.id in self._names
        known = known or (isinstance(node, ast.Attribute) and _dotted(node.value) in self._modules)
        return known and label.rsplit(".", 1)[-1][:1].isupper()

    def _is_passed(self, node: ast.Name) -> bool:
        """Whether it is a parameter of a function of the test that is given a function of the solution."""
        scope = self._scope_of(node, node.id)
        return (scope, node.id) in self._passed

    def _all_passed(self) -> Iterator[tuple[ast.AST, str]]:
        functions = {each.name: each for each in self._parents if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
        for call in self._parents:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in functions:
                continue
            function = functions[call.func.id]
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            given = [*zip(names, call.args, strict=False), *((each.arg, each.value) for each in call.keywords if each.arg)]
            for name, value in given:
                is_method = isinstance(value, ast.Attribute) and self.called(value)
                if is_method or (isinstance(value, (ast.Name, ast.Attribute)) and self._is_name(value)):
                    yield function, name

    def _attributes(self, node: ast.Attribute) -> list[ast.AST | None]:
        owner: ast.AST | None = node
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = self._parents.get(owner)
        if owner is None:
            return []
        return [
            each.value
            for each in ast.walk(owner)
            if isinstance(each, ast.Assign)
            and any(isinstance(target, ast.Attribute) and _dotted(target) == _dotted(node) for target in each.targets)
        ]

    def _scope_of(self, node: ast.AST, name: str) -> ast.AST | None:
        """Where a name is bound that a node uses."""
        at: ast.AST | None = self._parents.get(node)
        while at is not None:
            if at in self._bound and name in self._bound[at] and not (isinstance(at, ast.ClassDef)):
                return at
            at = self._parents.get(at)
        return None

    def _shadowed(self, node: ast.AST, name: str) -> bool:
        """Whether a function has a variable of its own of this name."""
        return self._scope_of(node, name) not in (None, self._tree)

    # -- what is done with it

    def _of_module(self, node: ast.Name | ast.Attribute, label: str) -> str | None:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Attribute):
            if isinstance(parent.ctx, ast.Load):
                return None
            return f"it sets {label}.{parent.attr}, and a copy of the module is all that is there"
        if isinstance(node.ctx, ast.Load):
            return f"it uses the module {label} itself; only functions and classes of it can be called"
        return None

    def _of_attribute(self, node: ast.Attribute) -> str | None:
        """Whether what an object has is changed in place; else the object says what it is."""
        top: ast.AST = node
        while isinstance(parent := self._parents.get(top), ast.Subscript) and top is parent.value:
            top = parent
        is_set = isinstance(top, ast.Subscript) and not isinstance(top.ctx, ast.Load)
        parent, outer = self._parents.get(top), self._parents.get(self._parents.get(top, top))
        is_told = isinstance(parent, ast.Attribute) and parent.attr in _CHANGING and isinstance(outer, ast.Call)
        if is_set or (is_told and isinstance(outer, ast.Call) and outer.func is parent):
            return f"it changes {_dotted(node)} in place, and only a copy of it crosses"
        return None

    def _of_object(self, node: ast.Name | ast.Attribute, label: str) -> str | None:
        """What only data can be asked: whether it is a value of the test, and what is left of it without one."""
        parent = self._parents.get(node)
        if not isinstance(node.ctx, ast.Load):
            return None
        if isinstance(parent, ast.Call) and node in parent.args:
            name = _dotted(parent.func).rsplit(".", 1)[-1]
            return f"it asks {name}() of {label}, an object that is no data" if name in _ASKING_OBJECTS else None
        if isinstance(parent, ast.Compare) and not self._among_objects(parent):
            return f"it compares {label}, an object that is no data"
        if isinstance(parent, ast.BinOp) and not self._among_objects(parent):
            return f"it uses the value of {label}, an object that is no data"
        return None

    def _among_objects(self, node: ast.Compare | ast.BinOp) -> bool:
        """Whether all that is compared, or reckoned with, are objects of the solution; or which of them they are."""
        if isinstance(node, ast.Compare):
            if all(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
                return True
            parts = [node.left, *node.comparators]
            if all(isinstance(each, (ast.In, ast.NotIn)) for each in node.ops) and not self._is_object(parts[-1]):
                return True
        else:
            parts = [node.left, node.right]
        return all(
            self._is_object(each) or (isinstance(each, ast.Call) and (self._is_class(each.func) or self._is_name(each.func)))
            for each in parts
        )

    def _of_reference(self, node: ast.Name | ast.Attribute, label: str) -> str | None:
        parent = self._parents.get(node)
        outer = self._parents.get(parent) if isinstance(parent, ast.Tuple) else None
        if isinstance(parent, ast.Attribute):
            return f"it uses {label}.{parent.attr}; of the solution only calls can be graded"
        if not isinstance(node.ctx, ast.Load):
            return None
        if isinstance(parent, ast.Call) and node is parent.func:
            return None
        if isinstance(parent, ast.Call) or isinstance(outer, ast.Call):
            call = parent if isinstance(parent, ast.Call) else outer
            assert isinstance(call, ast.Call)
            return self._of_argument(node, call, label)
        if isinstance(parent, ast.ClassDef):
            return f"it derives a class from {label}"
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and node in parent.decorator_list:
            return f"it gives a function to {label}, and only data can cross"
        if isinstance(parent, _ASKED) and node not in (getattr(parent, "slice", None), getattr(parent, "orelse", None)):
            return f"it uses the value of {label}, and only what a call gives can be had"
        return None

    def _of_argument(self, node: ast.AST, call: ast.Call, label: str) -> str | None:
        name = _dotted(call.func).rsplit(".", 1)[-1]
        first = call.args[0] if call.args else None
        if name in _WARNED:
            parts = first.elts if isinstance(first, ast.Tuple) else [first]
            return f"it expects {label}; {_NO_CLASS}" if node in parts else None
        if name in _EXPECTING or (name == "isinstance" and node is not first and self._is_caught(first)):
            return None
        if (
            name in _ASKING
            or name.startswith("assert")
            or _dotted(call.func).split(".")[0] in ("inspect", "mock", "monkeypatch")
        ):
            return f"it asks {name}() of {label}, and only what a call gives can be had"
        return None

    def _is_caught(self, node: ast.AST | None) -> bool:
        """Whether it is an exception that the test has caught."""
        if isinstance(node, ast.Attribute):
            return node.attr in _CAUGHT
        return isinstance(node, ast.Name) and any(
            isinstance(each, ast.ExceptHandler) and each.name == node.id for each in self._parents
        )

    def _of_call(self, call: ast.Call, label: str) -> str | None:
        parent = self._parents.get(call)
        if isinstance(parent, ast.withitem):
            return f"it enters {label}(), and only data crosses"
        if (why := self._of_given(call, label)) is not None:
            return why
        return self._of_mutation(call, label)

    def _of_identity(self, node: ast.Compare) -> str | None:
        """Whether it asks if a call gives back what it was given."""
        parts = [node.left, *node.comparators]
        if not any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            return None
        for call in parts:
            if isinstance(call, ast.Call) and (label := self.called(call)):
                given = {value.id for value in _given(call) if isinstance(value, ast.Name) and not self._is_object(value)}
                if any(isinstance(part, ast.Name) and part.id in given for part in parts):
                    return f"it asks whether {label}() gives back what it was given, and only a copy of that crosses"
        return None

    def _of_given(self, call: ast.Call, label: str) -> str | None:
        """Whether it is given what cannot cross."""
        for value in _given(call):
            if isinstance(value, (ast.Lambda, ast.GeneratorExp)):
                return f"it gives {label}() a function or a generator, and only data can cross"
            name = _dotted(value.func if isinstance(value, ast.Call) else value)
            is_own = name in self._own and not self._shadowed(value, name)
            if is_own and (isinstance(value, ast.Name) or self._is_own_class(name)):
                return f"it gives {label}() {name} of its own, and only data can cross"
            if isinstance(value, ast.Call) and name.split(".")[0] in self._opaque:
                return f"it gives {label}() a value of {name}, and only data can cross"
        return None

    def _is_own_class(self, name: str) -> bool:
        return any(isinstance(node, ast.ClassDef) and node.name == name for node in self._parents)

    def _of_mutation(self, call: ast.Call, label: str, *, is_passed: bool = False) -> str | None:
        """Whether what it does to an argument is looked at afterwards."""
        parent = self._parents.get(call)
        is_statement = isinstance(parent, ast.Expr)
        # What is awaited, or gives its items one by one, does it later.
        is_done = not isinstance(parent, (ast.Await, ast.Call, ast.For, ast.comprehension, ast.Starred, ast.YieldFrom))
        is_done = is_done or (isinstance(parent, ast.Call) and _last(parent.func).startswith("assert"))
        name = "" if is_passed else _last(call.func)
        if name and (is_statement or self._is_beside_argument(call, parent)) and any(map(self._may_change, _given(call))):
            self.changing.add(name)
        is_method = isinstance(call.func, ast.Attribute) and _dotted(call.func.value) not in self._modules
        end = getattr(self._statement(call), "end_lineno", call.lineno)
        for value in _given(call):
            if not isinstance(value, ast.Name):
                continue
            scope = self._scope_of(value, value.id)
            bound = [] if scope is None else self._bound[scope].get(value.id, [])
            may_change = any(_is_mutable(each) for each in bound) or (is_statement and None in bound)
            if scope is None or not may_change:
                continue
            later = [
                node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == value.id and node.lineno > end
            ]
            later = later[: next((at for at, node in enumerate(later) if isinstance(node.ctx, ast.Store)), None)]
            if is_method:
                later = [node for node in later if self._is_compared(node) and not self._is_beside_solution(node)]
            if any((is_statement and not self._is_shown(node)) or self._is_compared(node) for node in later):
                if is_done and name:
                    self.changing.add(name)
                    continue
                return f"it looks at {value.id} after {label}() had it, and only a copy of it crosses"
        return None

    def _is_beside_argument(self, call: ast.Call, parent: ast.AST | None) -> bool:
        """Whether what it was given is used in its place, `sort(nums) or nums`, or beside it, `(sort(nums), nums)[1]`."""
        if not isinstance(parent, (ast.BoolOp, ast.Tuple, ast.List)):
            return False
        given = {_dotted(value) for value in _given(call)} - {""}
        others = parent.values if isinstance(parent, ast.BoolOp) else parent.elts
        return any(_dotted(each) in given for each in others[others.index(call) + 1 :])

    def _may_change(self, value: ast.expr) -> bool:
        """Whether it may be something that a call changes, and that the test has still."""
        if not isinstance(value, ast.Name):
            return isinstance(value, (ast.Attribute, ast.Subscript))
        scope = self._scope_of(value, value.id)
        bound = [None] if scope is None else self._bound[scope].get(value.id, [None])
        return not all(map(_is_fixed, bound))

    def _statement(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def _is_shown(self, node: ast.AST) -> bool:
        """Whether it is only told of: in a message, or printed."""
        while (parent := self._parents.get(node)) is not None and not isinstance(node, ast.stmt):
            if isinstance(parent, ast.Raise) or (isinstance(parent, ast.Assert) and node is parent.msg):
                return True
            if isinstance(parent, ast.Call) and _dotted(parent.func).rsplit(".", 1)[-1] in ("print", "fail"):
                return True
            node = parent
        return False

    def _is_beside_solution(self, node: ast.AST) -> bool:
        """Whether it is compared with what the solution gives: then it is what is expected, and not what became of it."""
        while not isinstance(node, (ast.Compare, ast.stmt)) and not (
            isinstance(node, ast.Call) and _dotted(node.func).rsplit(".", 1)[-1].startswith("assert")
        ):
            node = self._parents[node]
        return any(
            self._is_name(each) or self._is_object(each)
            for each in ast.walk(node)
            if isinstance(each, (ast.Name, ast.Attribute))
        )

    def _is_compared(self, node: ast.AST) -> bool:
        """Whether a variable, or a part of it, is what is compared."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Subscript) and node is parent.value:
            return self._is_compared(parent)
        if isinstance(parent, ast.Call) and node in parent.args:
            name = _dotted(parent.func).rsplit(".", 1)[-1]
            is_part = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
            is_taken = name == "len" or (is_part and name in ("sorted", "set", "list", "tuple", "sum"))
            return name.startswith("assert") or (is_taken and self._is_compared(parent))
        return isinstance(parent, ast.Compare)


_ASKED = (
    *(ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Subscript, ast.Starred, ast.FormattedValue, ast.withitem),
    *(ast.For, ast.AsyncFor, ast.comprehension, ast.If, ast.IfExp, ast.While, ast.Assert, ast.Raise, ast.Await),
)


def _dotted(node: ast.AST | None) -> str:
    """`a.b.c` as text; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _given(call: ast.Call) -> Iterator[ast.expr]:
    """All values that a call is given, those within displays too."""
    left = [*call.args, *[keyword.value for keyword in call.keywords]]
    while left:
        value = left.pop()
        if isinstance(value, ast.Starred):
            left.append(value.value)
        elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            left += value.elts
        elif isinstance(value, ast.Dict):
            left += value.values
        else:
            yield value


def _bindings(scope: ast.AST) -> dict[str, list[ast.AST | None]]:
    """Variable of a scope → what it is bound to, where that is a plain assignment; else None."""
    found: dict[str, list[ast.AST | None]] = {}
    arguments = getattr(scope, "args", None)
    if isinstance(arguments, ast.arguments):
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
            if each is not None:
                found.setdefault(each.arg, []).append(None)
    left: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop(0)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
        elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            if _dotted(getattr(node.iter, "func", None)) == "range":
                found.setdefault(node.target.id, []).append(node.iter)
            elif isinstance(node.iter, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in node.iter.elts):
                found.setdefault(node.target.id, []).extend(node.iter.elts)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in found:
            found[node.id] = [None]
        if not isinstance(node, (*_SCOPES, ast.ClassDef)):
            # In the order of the source: what is bound by a statement is known before its own names are met.
            left[:0] = list(ast.iter_child_nodes(node))
    return found


def _is_mutable(value: ast.AST | None) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_mutable(value.left) or _is_mutable(value.right)
    if isinstance(value, ast.Call):
        return _dotted(value.func).rsplit(".", 1)[-1] in _MAKERS
    return isinstance(value, _MUTABLE)


def _is_fixed(value: ast.AST | None) -> bool:
    """Whether it is seen to have nothing in it that changes."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_fixed, value.elts))
    if isinstance(value, ast.BinOp):
        return _is_fixed(value.left) and _is_fixed(value.right)
    if isinstance(value, ast.Call):
        return _dotted(value.func) in _FIXED
    return isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare, ast.UnaryOp))


def _opaque_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] in _OPAQUE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OPAQUE:
            yield from (alias.asname or alias.name for alias in node.names)


def check_separable(files: Mapping[str, bytes], results: Collection[str], installed: Collection[str] = ()) -> None:
    """Refuse a grader that mode `separate` cannot judge, before it runs.

    Args:
        files: of the grader.
        results: paths of the solution's files.
        installed: first parts of names of modules that are there without the solution, and meant where they are imported.

    Raises:
        AviatoValidationError: one of the files does with the solution what cannot cross.
    """
    modules = {name for name in modules_of(results) if name.split(".")[0] not in installed}
    for path, source in files.items():
        if path.endswith(".py") and (why := file_obstacle(source, modules)) is not None:
            message = (
                f"{path} cannot be graded in mode 'separate': {why}. Grade it with mode='in_process', or let the test run a "
                "program beside the results, by aviato_solution.run()"
            )
            raise AviatoValidationError(message, field_violations={"files": message})
