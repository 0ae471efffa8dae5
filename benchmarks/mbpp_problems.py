"""MBPP's problems, and of each reference a variant that is broken by one small change."""

from __future__ import annotations

import ast
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FLIPPED: dict[type, type] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Problem:
    """A solution and its tests; `code` ends with the set-up that the tests need."""

    task_id: int
    code: str
    tests: tuple[str, ...]

    @property
    def program(self) -> str:
        """Solution and tests in one text, as a bare interpreter runs them."""
        return "\n".join([self.code, *self.tests, ""])


def read_problems(path: Path, limit: int | None) -> list[Problem]:
    """Read problems of MBPP's schema, one JSON object a line."""
    problems = []
    with path.open(encoding="utf-8") as rows:
        for line in rows:
            if limit is not None and len(problems) == limit:
                break
            row = json.loads(line)
            # The set-up of a few problems uses a class of the solution.
            code = "\n".join([row["code"], row.get("test_setup_code", "")])
            problems.append(Problem(row["task_id"], code, tuple(row["test_list"])))
    return problems


def broken(problem: Problem) -> Problem | None:
    """The problem with one operator flipped or one return dropped, the same at every call; None if it has neither."""
    try:
        tree = ast.parse(problem.code)
    except SyntaxError:
        return None
    places = [node for node in ast.walk(tree) if _operator(node) is not None or isinstance(node, ast.Return)]
    if not places:
        return None
    chosen = random.Random(problem.task_id).choice(places)
    changed = ast.unparse(ast.fix_missing_locations(_Change(chosen).visit(tree)))
    return Problem(problem.task_id, changed, problem.tests)


def _operator(node: ast.AST) -> type | None:
    if isinstance(node, ast.Compare):
        return _FLIPPED.get(type(node.ops[0]))
    return _FLIPPED.get(type(node.op)) if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) else None


class _Change(ast.NodeTransformer):
    """Changes one node."""

    def __init__(self, chosen: ast.AST) -> None:
        self._chosen = chosen

    def visit(self, node: ast.AST) -> ast.AST:
        if node is not self._chosen:
            return super().generic_visit(node)
        if isinstance(node, ast.Return):
            return ast.Pass()
        other = _operator(node)
        assert other is not None
        if isinstance(node, ast.Compare):
            node.ops[0] = other()
        else:
            node.op = other()  # type: ignore[attr-defined]
        return node
