"""Puts text into a Python source at places of its syntax tree: lines stay the lines that they are, and so do most columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

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
