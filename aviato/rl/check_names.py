"""What a test source defines: its functions and classes, which of them are tests, and which names are always true."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from aviato.rl import check_terms as terms
from aviato.rl.check_subject import Subject

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

FIXTURES = frozenset(
    {
        *("cache", "capfd", "capfdbinary", "caplog", "capsys", "capsysbinary", "capteesys", "doctest_namespace", "monkeypatch"),
        *(
            "pytestconfig",
            "pytester",
            "record_property",
            "record_testsuite_property",
            "record_xml_attribute",
            "recwarn",
            "request",
        ),
        *("subtests", "testdir", "tmp_path", "tmp_path_factory", "tmpdir", "tmpdir_factory"),
    }
)
"""Of pytest itself."""
_INERT = frozenset(
    {
        *("abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod", "contextmanager", "dataclass"),
        *("expectedFailure", "fixture", "lru_cache", "no_type_check", "overload", "override", "property", "setter"),
        *("staticmethod", "total_ordering", "wraps", "skip", "skipIf", "skipUnless"),
    }
)

_BUILT_IN = frozenset(dir(builtins)) - {"False", "None", "NotImplemented", "__spec__"} | {"__name__", "__file__"}
"""Names of Python's own that are true."""
_MADE = terms.LOSING | {"list", "dict", "set", "deque"}


class Names:
    """Of one source.

    Args:
        tree: the source.
        code_names: names of the code under test.

    Attributes:
        true: as `terms.truth` takes it.
        subject: what the code can have a part in.
        containers: names bound to lists, dictionaries and other values whose methods check nothing.
        runs_itself: it asks a result of unittest whether all went well, so it runs its tests itself.
    """

    def __init__(self, tree: ast.Module, code_names: Collection[str]) -> None:
        self.subject = Subject(tree, code_names)
        self.aliases: dict[str, str] = {}
        self.runs_itself = False
        self.functions: dict[str, list[Function]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.owners: dict[Function, ast.ClassDef] = {}
        self.imports: set[str] = set()
        self.containers: set[str] = set()
        self.lambdas: dict[str, ast.Lambda] = {}
        self._known_to_fail: dict[Function, bool] = {}
        for node in ast.walk(tree):
            self._take(node)
        self.true = frozenset({*self.functions, *self.classes, *self.lambdas, *self._true_elsewhere(), *self._true_calls()})

    def _true_elsewhere(self) -> Iterator[str]:
        """Modules, Python's own names, and what the source calls: that it is a function is nothing to assert."""
        yield from (name for name, whole in self.aliases.items() if whole in self.imports and "." not in whole)
        known = _BUILT_IN | self.subject.called
        yield from (name for name in known if not self.subject.is_bound(name))

    def _true_calls(self) -> Iterator[str]:
        """Calls that only make a coroutine, a generator or another object that is true."""
        undecorated = [one for name in self.functions if (one := self.function(name)) is not None and not one.decorator_list]
        for function in undecorated:
            if isinstance(function, ast.AsyncFunctionDef) or self.is_generator(function):
                yield f"{function.name}()"
        yield from (f"{name}()" for name in terms.MADE if not self.subject.is_bound(name))

    def called(self, node: ast.AST) -> str:
        """As `terms.called`, by the names that things have in their modules."""
        return self.whole(terms.called(node))

    def whole(self, name: str) -> str:
        """A dotted name as its module has it, where the source imports it as another one."""
        root, dot, rest = name.partition(".")
        return self.aliases.get(root, root) + dot + rest

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, Function) and node not in self.owners:
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
            self.owners.update({part: node for part in node.body if isinstance(part, Function)})
        elif isinstance(node, ast.Import):
            self.imports |= {alias.name for alias in node.names}
            self.aliases.update({alias.asname: alias.name for alias in node.names if alias.asname})
            self.aliases.update({alias.name: alias.name for alias in node.names if not alias.asname})
        elif isinstance(node, ast.ImportFrom):
            self.imports |= {f"{node.module}.{alias.name}" for alias in node.names}
            if node.module != "solution" and not node.level:
                self.aliases.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Assign):
            self._take_assigned(node)

    def _take_assigned(self, node: ast.Assign) -> None:
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node.value, ast.Lambda):
            self.lambdas.update(dict.fromkeys(names, node.value))
        elif isinstance(node.value, terms.CONTAINERS) or terms.called(node.value).rpartition(".")[2] in _MADE:
            self.containers |= names

    def function(self, name: str) -> Function | None:
        """The one function of that name; None where there is none or several."""
        found = self.functions.get(name, [])
        return found[0] if len(found) == 1 else None

    def is_own(self, name: str, inside: Function | None) -> bool:
        """Whether a call is one of the source's own functions, classes or methods, which are looked into themselves."""
        root, _, rest = name.partition(".")
        owner = self.owners.get(inside) if inside is not None else None
        if owner is not None and root in ("self", "cls"):
            return rest in {part.name for part in self.methods(owner)}
        if root in self.classes:
            return all(terms.dotted(base) in (*self.classes, "object") for base in self.classes[root].bases)
        return root in self.functions or root in self.lambdas

    def runs_tests(self, name: str) -> bool:
        """Whether a call of that name runs the tests of a module."""
        if name == "main":
            return bool(self.imports & {"unittest.main", "pytest.main"})
        return name in ("unittest.main", "pytest.main") or name.endswith("TextTestRunner.run")

    def methods(self, owner: ast.ClassDef) -> Iterator[Function]:
        """Of a class and of its bases in this source."""
        seen, todo = set(), [owner]
        while todo:
            one = todo.pop()
            if one.name in seen:
                continue
            seen.add(one.name)
            yield from (part for part in one.body if isinstance(part, Function))
            todo += [self.classes[terms.dotted(base)] for base in one.bases if terms.dotted(base) in self.classes]

    def is_unittest(self, owner: ast.ClassDef, depth: int = 0) -> bool:
        """Whether a class is one of unittest's, or of a base called so that this source does not define."""
        for base in (self.whole(terms.dotted(one)) for one in owner.bases):
            if base in self.classes and base != owner.name and depth < 20:
                if self.is_unittest(self.classes[base], depth + 1):
                    return True
            elif base not in self.classes and "Test" in base.rpartition(".")[2]:
                return True
        return False

    def awaits(self, owner: ast.ClassDef) -> bool:
        """Whether a class of unittest's may run tests that are `async def`, which `TestCase` itself does not."""
        known = [self.classes[terms.dotted(one)] for one in owner.bases if terms.dotted(one) in self.classes]
        others = [self.whole(terms.dotted(one)) for one in owner.bases if terms.dotted(one) not in self.classes]
        plain = ("unittest.TestCase", "unittest.case.TestCase", "object")
        return any(one not in plain for one in others) or any(self.awaits(one) for one in known if one is not owner)

    def is_generator(self, function: Function) -> bool:
        """Whether a call of it only makes a generator."""
        return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_parts(function))

    def is_helper(self, function: Function) -> bool:
        """Whether it gives a value, or is a method of a class that is no test: what it raises is of its own use."""
        owner = self.owners.get(function)
        if owner is not None and not (self.is_unittest(owner) or owner.name.startswith("Test")):
            return True
        return any(isinstance(part, ast.Return) and part.value is not None for part in own_parts(function))

    def always_fails(self, function: Function) -> bool:
        """Whether every call of it raises."""
        if function not in self._known_to_fail:
            self._known_to_fail[function] = False
            leaves = any(isinstance(part, (ast.Return, ast.Yield)) for part in own_parts(function))
            self._known_to_fail[function] = not leaves and any(self._fails_at_once(part) for part in function.body)
        return self._known_to_fail[function]

    def _fails_at_once(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Assert):
            return terms.truth(node.test) is False
        if isinstance(node, ast.Expr) and (name := self.called(node.value)):
            known = self.function(name)
            return name in terms.ENDS or (known is not None and self.always_fails(known))
        return isinstance(node, ast.Raise)

    def is_inert(self, decorator: ast.expr) -> bool:
        """Whether a decorator neither calls the function nor keeps it for a call."""
        name = self.whole(terms.dotted(decorator))
        return name.rpartition(".")[2] in _INERT or name.startswith("pytest.mark") or "patch" in name.split(".")

    @property
    def uses_pytest(self) -> bool:
        """Whether it imports pytest or hypothesis, which give arguments to tests."""
        return any(name.partition(".")[0] in ("pytest", "hypothesis") for name in self.imports)

    def missing_arguments(self, function: Function, skip: int) -> list[str]:
        """Parameters that neither a default nor a fixture gives."""
        given = function.args
        positional = [*given.posonlyargs, *given.args]
        required = positional[skip : len(positional) - len(given.defaults)]
        required += [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
        return [] if self.uses_pytest else [one.arg for one in required if one.arg not in FIXTURES]


def own_parts(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions and classes within it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*Function.__args__, ast.Lambda, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))
