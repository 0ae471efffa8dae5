"""Functions and classes as source, for an image whose Python cannot load the caller's code objects.

Each travelling function or class becomes a definition: its text, where the user wrote it, and the names of what it reads.
Values (globals, closure variables, defaults, arguments) are pickled with references to definitions in place of code.
`rebuild.py` is the other end.
"""

from __future__ import annotations

import ast
import io
import linecache
import pickle
import types
from typing import Any

from aviato.functions import rebuild
from aviato.functions.names import (
    NOT_SENT,
    attribute_names,
    class_names,
    global_names,
    module_parts,
    own_imports,
    submodules,
)
from aviato.functions.options import shown
from aviato.functions.travel import NotPortable, find_module, module_travels, plain, reduced_cache, travels
from aviato.values.parsing import parsed

PROTOCOL = 4


def pack(value: Any) -> bytes:
    """Pack a value with all code that it refers to.

    Raises:
        NotPortable: the source of some function or class cannot be had.
    """
    graph = _Graph()
    values, batches = graph.values(value)
    return pickle.dumps({"definitions": graph.definitions, "values": values, "batches": batches}, PROTOCOL)


class _Graph:
    def __init__(self) -> None:
        self.definitions: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # what `_numbers` names by id must not be freed meanwhile
        self._functions: list[int] = []
        self._kept_cells: list[Any] = []
        self._cells: dict[int, Any] = {}
        self._globals: dict[str, dict[str, Any]] = {}
        self._sent: set[tuple[str, str]] = set()
        self._modules: dict[str, types.ModuleType] = {}
        self._read: frozenset[str] = frozenset()

    def values(self, root: Any) -> tuple[bytes, int]:
        """The root, then batch by batch what the functions met so far need, until nothing new is met."""
        file = io.BytesIO()
        pickler = _Pickler(self, file)
        pickler.dump(root)
        batches = 0
        while self._functions or self._cells or self._globals:
            functions, cells, names = self._functions, self._cells, self._globals
            self._functions, self._cells, self._globals = [], {}, {}
            filled = {number: _needs(self._kept[number]) for number in functions}
            pickler.dump({"functions": filled, "cells": cells, "globals": names})
            batches += 1
        return file.getvalue(), batches

    def reference(self, value: Any) -> tuple[str, Any] | None:
        """What stands for a value in the pickle; None pickles it as usual."""
        value = plain(value)
        if isinstance(value, types.ModuleType):
            if not module_travels(value):
                return "module", value.__name__
            if value.__name__ not in self._modules:
                self._modules[value.__name__] = value
                self._add_globals(value.__name__, vars(value), self._read)
            return "own module", value.__name__
        if not isinstance(value, (types.FunctionType, type)) or not travels(value):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.definitions)
            self._kept.append(value)
            self.definitions.append({})
            number = self._numbers[id(value)]
            if isinstance(value, types.FunctionType):
                self.definitions[number].update(self._function(value, number))
            else:
                self.definitions[number].update(self._class(value))
        kind = "function" if isinstance(value, types.FunctionType) else "class"
        return kind, self._numbers[id(value)]

    def _function(self, function: types.FunctionType, number: int) -> dict[str, Any]:
        code = function.__code__
        definition = _described(function, _node(code, function), code.co_filename)
        cells = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            cells[name] = self._cell(cell)
        # `functools.wraps` names the module of another function.
        namespace = function.__globals__.get("__name__") or "__main__"
        self._add_globals(namespace, function.__globals__, global_names(code))
        self._add_read(attribute_names(code))
        self._functions.append(number)
        imports = self._imports(code, {**function.__globals__, **_closed_over(function)})
        return {**definition, "cells": cells, "doc": function.__doc__, "namespace": namespace, "imports": imports}

    def _imports(self, code: types.CodeType, scope: dict[str, Any]) -> list[Any]:
        """References to modules that a function counts on having been imported, or imports itself though no image has them."""
        values = [scope[name] for name in {*global_names(code), *code.co_freevars} if name in scope]
        return [self.reference(module) for module in (*submodules(code, values), *own_imports(code))]

    def _add_read(self, names: frozenset[str]) -> None:
        """Of the user's modules goes along what the functions read."""
        new, self._read = names - self._read, self._read | names
        for module in self._modules.values() if new else ():
            self._add_globals(module.__name__, vars(module), new)

    def _cell(self, cell: types.CellType) -> int:
        number = id(cell)
        if number not in self._numbers:
            self._numbers[number] = number
            self._kept_cells.append(cell)
            try:
                self._cells[number] = cell.cell_contents
            except ValueError:
                pass
        return number

    def _class(self, kind: type) -> dict[str, Any]:
        module = find_module(kind)
        files = [getattr(module, "__file__", None), *(one.__code__.co_filename for one in _methods(kind))]
        file = next((one for one in files if one is not None and linecache.getlines(one)), None)
        if file is None:
            raise NotPortable(f"the source of class {kind.__qualname__} cannot be had")
        definition = _described(kind, _class_node(kind, file), file)
        members = {name: getattr(value, "__func__", value) for name, value in vars(kind).items()}
        remote = [name for name, value in members.items() if plain(value) is not value]
        node = rebuild.undecorated(rebuild.parse({**definition, "lambda": False}), remote)
        code = compile(ast.Module([node], []), file, "exec", dont_inherit=True)
        scope = dict(vars(module)) if module is not None else {}
        scope = {**{base.__name__: base for base in kind.__bases__}, **scope}
        for method in _methods(kind):
            scope = {**method.__globals__, **scope, **_closed_over(method)}
        now, later = class_names(code)
        needs = {name: scope[name] for name in now - NOT_SENT if name in scope and scope[name] is not kind}
        file_out = io.BytesIO()
        _Pickler(self, file_out).dump((needs, module_parts(needs.values(), attribute_names(code))))
        self._add_read(attribute_names(code))
        self._add_globals(kind.__module__, scope, later - needs.keys())
        return {**definition, "remote": remote, "needs": file_out.getvalue(), "imports": self._imports(code, scope)}

    def _add_globals(self, module: str, scope: dict[str, Any], names: Any) -> None:
        for name in sorted(names):
            # pytest's own names in rewritten assertions are no identifiers.
            if name in scope and name.isidentifier() and name not in NOT_SENT and (module, name) not in self._sent:
                self._sent.add((module, name))
                self._globals.setdefault(module, {"__name__": module})[name] = scope[name]


class _Pickler(pickle.Pickler):
    def __init__(self, graph: _Graph, file: io.BytesIO) -> None:
        super().__init__(file, PROTOCOL)
        self._graph = graph

    def persistent_id(self, value: Any) -> Any:
        return None if type(value) in _ATOMS else self._graph.reference(value)

    def reducer_override(self, value: Any) -> Any:
        return reduced_cache(value) or NotImplemented


_ATOMS = frozenset({str, bytes, int, float, bool, type(None), list, tuple, dict, set})


def _needs(function: Any) -> tuple[Any, ...]:
    return function.__defaults__, function.__kwdefaults__, dict(function.__dict__)


# -- finding the text


_trees: dict[str, tuple[list[str], ast.Module]] = {}


def _tree(file: str) -> tuple[list[str], ast.Module]:
    lines = linecache.getlines(file)
    if not lines:
        raise NotPortable(f"the source file {file!r} cannot be read")
    known = _trees.get(file)
    if known is None or known[0] is not lines:
        try:
            known = _trees[file] = lines, parsed("".join(lines))
        except SyntaxError as error:
            raise NotPortable(f"the source file {file!r} cannot be parsed: {error}") from None
    return known


def _node(code: types.CodeType, function: Any) -> Any:
    found: list[Any] = []
    for node in ast.walk(_tree(code.co_filename)[1]):
        if isinstance(node, ast.Lambda):
            if code.co_name == "<lambda>" and node.lineno == code.co_firstlineno and _holds(node, code):
                found.append(node)
        elif isinstance(node, _DEFINED) and node.name == code.co_name and _first_line(node) == code.co_firstlineno:
            found.append(node)
    if not found:
        raise NotPortable(f"the source of {shown(function)} is not in {code.co_filename!r} any more")
    return min(found, key=lambda node: (node.end_lineno - node.lineno, node.end_col_offset - node.col_offset))


_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)


def _holds(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether a lambda's instructions lie within a node: there may be several on one line."""
    body = node.body
    for line, _, column, end in code.co_positions():
        if line is None or column is None or end is None or line != body.lineno or end <= column:
            continue
        if column < body.col_offset or (body.end_lineno == line and end > (body.end_col_offset or 0)):
            return False
    return True


def _class_node(kind: type, file: str) -> Any:
    path = [part for part in kind.__qualname__.split(".") if part != "<locals>"]
    found: list[Any] = []

    def look(node: ast.AST, names: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and child.name == names[0]:
                if len(names) > 1:
                    look(child, names[1:])
                elif isinstance(child, ast.ClassDef):
                    found.append(child)
            elif not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                look(child, names)

    look(_tree(file)[1], path)
    if not found:
        raise NotPortable(f"the source of class {kind.__qualname__} is not in {file!r}")
    return found[-1]


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Where a definition begins, its decorators included."""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _described(value: Any, node: Any, file: str) -> dict[str, Any]:
    lines, tree = _tree(file)
    first = node.lineno
    if isinstance(node, ast.Lambda):
        text = ast.get_source_segment("".join(lines), node) or ""
    else:
        if isinstance(node, ast.ClassDef):
            first = _first_line(node)
        text = "".join(lines[first - 1 : node.end_lineno])
    futures = [
        alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        for alias in statement.names
    ]
    return {
        "name": value.__name__,
        "qualname": value.__qualname__,
        "module": value.__module__ or "__main__",
        "file": file,
        "line": first,
        "text": text,
        "futures": futures,
        "lambda": isinstance(node, ast.Lambda),
    }


def _methods(kind: type) -> list[types.FunctionType]:
    parts = [
        one for value in vars(kind).values() for one in (value, getattr(value, "__func__", None), getattr(value, "fget", None))
    ]
    return [one for one in parts if isinstance(one, types.FunctionType) and one.__module__ == kind.__module__]


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            pass
    return found
