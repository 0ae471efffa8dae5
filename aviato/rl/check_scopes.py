"""Where in a source a name is given, as seen from where it is used: one function's parameter is no name of another's."""

from __future__ import annotations

import ast

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_Chain = tuple[ast.AST, ...]
"""Scopes around a node, the outermost first."""


def bound_by(node: ast.AST) -> str | None:
    """The name that a node gives to something; imports are left out."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) else None


class Scopes:
    """Of one source."""

    def __init__(self, tree: ast.Module) -> None:
        self._chains: dict[ast.AST, _Chain] = {}
        self._bound: dict[tuple[ast.AST, str], tuple[int, int]] = {}
        outside = {
            (scope, name): chain[:1]
            for scope, chain, node in _walk(tree)
            if isinstance(node, ast.Global)
            for name in node.names
        }
        for scope, chain, node in _walk(tree):
            if isinstance(node, (ast.Name, ast.Import, ast.ImportFrom)):
                self._chains[node] = chain
            if (name := bound_by(node)) is not None:
                self._bind(outside.get((scope, name), chain), name, node)

    def _bind(self, chain: _Chain, name: str, node: ast.AST) -> None:
        place = node.lineno, node.col_offset  # type: ignore[attr-defined]
        scopes = chain[-1:]
        if isinstance(node, ast.Name) and isinstance(chain[-1], _COMPREHENSIONS):
            # `:=` gives the name to what is around the comprehension, too.
            scopes = (*scopes, next(one for one in reversed(chain) if not isinstance(one, _COMPREHENSIONS)))
        for scope in scopes:
            self._bound[scope, name] = min(place, self._bound.get((scope, name), place))

    def around(self, node: ast.Name | ast.Import | ast.ImportFrom) -> list[ast.AST]:
        """The scopes that a use of a name sees, its own first."""
        *around, own = self._chains[node]
        # The body of a class is seen by its own statements only.
        return [own, *(scope for scope in around if not isinstance(scope, ast.ClassDef))]

    def begin(self, node: ast.Name) -> tuple[int, int] | None:
        """Line and column where the name of a use is given first, in the scopes that the use sees; None: nowhere."""
        places = (self._bound.get((scope, node.id)) for scope in self.around(node))
        return min((place for place in places if place is not None), default=None)


def _walk(tree: ast.Module) -> list[tuple[ast.AST, _Chain, ast.AST]]:
    """Every node, with the scope that it is in and all around it."""
    found: list[tuple[ast.AST, _Chain, ast.AST]] = []
    todo: list[tuple[_Chain, ast.AST]] = [((tree,), child) for child in ast.iter_child_nodes(tree)]
    while todo:
        chain, node = todo.pop()
        found.append((chain[-1], chain, node))
        inside = _inside(node)
        todo += [((*chain, node) if child in inside else chain, child) for child in ast.iter_child_nodes(node)]
    return found


def _inside(node: ast.AST) -> set[ast.AST]:
    """The parts of a node that are in a scope of its own."""
    if isinstance(node, _COMPREHENSIONS):
        return set(ast.iter_child_nodes(node))
    if isinstance(node, ast.ClassDef):
        return set(node.body)
    if isinstance(node, ast.Lambda):
        return {node.args, node.body}
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.args, *node.body}
    return set()
