"""Prints the shape of the tree: how large files and functions are, and how much of them is comments and tests.

    .venv/bin/python scripts/shape.py [FOLDER …]

Without folders: the product, aviato-init and the tests, beside packages that are well kept. Lines are all lines of a file.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ANCHORS = (
    ("httpx", 2019, 248, 34, 6.0),
    ("anyio", 3138, 205, 22, 3.2),
    ("SWE-ReX", 478, 73, 31, 3.2),
    ("inspect_ai's sandbox", 792, 193, 41, 10.8),
    ("aiohttp", 1788, 397, 29, 8.8),
)
"""Largest file, median file, function p90 and comments per 100 lines of those packages, as they were read."""
COLUMNS = ("", "files", "lines", "largest", "median", "function p90", "longest", "comments / 100")
_FUNCTION = re.compile(r"^( *)(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?fn ")


class Shape(NamedTuple):
    """Of files: lines of each, lines of each function, and how many lines are comments."""

    files: list[int]
    functions: list[int]
    comments: int

    @property
    def lines(self) -> int:
        """Of all files."""
        return sum(self.files)


def of_python(text: str) -> tuple[list[int], int]:
    """Lines of each function, and the number of comments."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [(node.end_lineno or 0) - node.lineno + 1 for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return functions, sum(token.type == tokenize.COMMENT for token in tokens)


def of_rust(text: str) -> tuple[list[int], int]:
    """The same. rustfmt ends a function by a brace below its beginning."""
    functions, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        if (found := _FUNCTION.match(line)) and not line.endswith(";"):
            end = f"{found[1]}}}"
            last = next((at for at in range(number, len(lines)) if lines[at] == end), number)
            functions.append(last - number + 1)
    return functions, sum(line.lstrip().startswith("//") and not line.lstrip().startswith(("///", "//!")) for line in lines)


def shape_of(folder: Path, ending: str) -> Shape:
    """Of all files of one language below a folder."""
    files: list[int] = []
    functions: list[int] = []
    comments = 0
    for path in sorted(folder.rglob(f"*{ending}")):
        if "target" in path.relative_to(folder).parts:
            continue
        text = path.read_text(encoding="utf-8")
        files.append(len(text.splitlines()))
        found, said = (of_python if ending == ".py" else of_rust)(text)
        functions += found
        comments += said
    return Shape(files, functions, comments)


def row(name: str, shape: Shape) -> tuple[str, ...]:
    """As it is printed."""
    functions = sorted(shape.functions) or [0]
    p90 = functions[int(0.9 * (len(functions) - 1))]
    per_100 = 100 * shape.comments / max(1, shape.lines)
    sizes = (len(shape.files), shape.lines, max(shape.files), round(median(shape.files)), p90, functions[-1])
    return (name, *map(str, sizes), f"{per_100:.1f}")


def main(folders: list[str]) -> None:
    """Print the table."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    wanted = [(folder, Path(folder)) for folder in folders] or [(name, ROOT / name) for name in ("aviato", "init/src", "tests")]
    found = {name: shape_of(path, ".rs" if any(path.rglob("*.rs")) else ".py") for name, path in wanted}
    rows += [row(name, shape) for name, shape in found.items() if shape.files]
    rows += [(name, "", "", str(most), str(middle), str(p90), "", str(said)) for name, most, middle, p90, said in ANCHORS]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join((first.strip().ljust(widths[0]), *others)))
    if "aviato" in found and "tests" in found:
        product = found["aviato"].lines + found["init/src"].lines
        print(f"\n{100 * found['tests'].lines / product:.0f} lines of tests for 100 of the product")


if __name__ == "__main__":
    main(sys.argv[1:])
