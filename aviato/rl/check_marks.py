"""Puts text into a Python source at places of its syntax tree: lines stay the lines that they are, and so do most columns."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE_END = re.compile(b"\r\n|\r|\n")


@dataclass(frozen=True)
class Mark:
    """Where a call goes in.

    Attributes:
        node: a simple statement, or an expression.
        how: `"before"` or `"after"` the statement, `"around"` the expression, or `"never"`: the expression is not evaluated.
    """

    node: ast.stmt | ast.expr
    how: str


def insert(source: str, marks: list[Mark], name: str) -> str:
    """The source with a call of `name` at each mark.

    `name()` says that a statement is reached; `name((expression))` gives the value of the expression back. Line numbers stay;
    columns stay in front of what is put in.
    """
    lines = _lines(source.encode())
    edits: dict[tuple[int, int, int], str] = {}
    for mark in marks:
        node = mark.node
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        begin, end = (node.lineno, node.col_offset), (end_line, end_column)
        if mark.how == "before":
            edits[(*begin, 2)] = f"{name}(); "
        elif mark.how == "after":
            edits[(*end, 1)] = f"; {name}()"
        elif mark.how == "around":
            edits[(*begin, 3)], edits[(*end, 0)] = f"{name}((", "))"
        else:
            edits[(*begin, 3)], edits[(*end, 0)] = "0 and (", ")"
    for line, column, order in sorted(edits, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:column] + edits[line, column, order].encode() + text[column:]
    return b"".join(lines).decode()


def before(source: str, node: ast.stmt) -> str:
    """The source up to a statement."""
    lines = _lines(source.encode())
    kept = [*lines[: node.lineno - 1], lines[node.lineno - 1][: node.col_offset]]
    return b"".join(kept).decode()


def _lines(data: bytes) -> list[bytes]:
    """Lines as Python's tokenizer counts them, each with its end: a form feed or U+2028 ends none."""
    lines, begin = [], 0
    for found in _LINE_END.finditer(data):
        lines.append(data[begin : found.end()])
        begin = found.end()
    return [*lines, data[begin:]]


def start_of(body: Sequence[ast.stmt]) -> Mark | None:
    """A mark that is made as soon as a body is entered."""
    for node in body:
        if isinstance(node, (ast.If, ast.While)):
            return Mark(node.test, "around")
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return Mark(node.iter, "around")
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return Mark(node.items[0].context_expr, "around")
        if isinstance(node, ast.Match):
            return Mark(node.subject, "around")
        if isinstance(node, ast.Try):
            return start_of(node.body)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # A docstring is one only where it comes first.
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return Mark(node, "before")
    return None
