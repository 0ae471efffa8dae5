"""Code put together with what its data set puts before it. Code of a model is looked at word by word, and never parsed here."""

from __future__ import annotations

import io
import re
import tokenize
from functools import partial
from typing import TYPE_CHECKING

from aviato.rl.datasets.rows import put

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.rl.task import Task

_STEP = "    "
_ONLINE_JUDGE = "#define ONLINE_JUDGE 1\n#line 1\n"
_FORMATTED = re.compile("[rR]?[fF]")


def program_with(prelude: str) -> Callable[[Task, str], Task]:
    """A `Problem.compose` for programs whose harness runs a prelude before them."""
    return partial(_put_with, prelude)


def with_prelude(prelude: str, code: str) -> str:
    """A program with imports before it, in one line, so that the numbers of the lines after it are one higher.

    The line stands behind the comments at the top, the docstring and the imports from `__future__`, which have to be first.

    Args:
        prelude: simple statements, one a line.
        code: of the program.
    """
    return inserted("; ".join(line for line in prelude.splitlines() if line.strip()) + "\n", code)


def for_online_judge(task: Task, code: str) -> Task:
    """A `Problem.compose` for contests that define `ONLINE_JUDGE`: programs in C and C++ read files of their own without it."""
    return put(task, _ONLINE_JUDGE + code if task.language in ("c", "cpp") else code)


def inserted(ahead: str, code: str) -> str:
    """Lines before the code, but behind what has to be first in a file."""
    found = code.removeprefix("\ufeff").split("\n")
    place = _lines_ahead("\n".join(found))
    return "".join(line + "\n" for line in found[:place]) + ahead + "\n".join(found[place:])


def completed(prompt: str, stub: str, code: str, name: str) -> str:
    """A whole program of what a model gave: the function, or the rest of the prompt's function.

    Args:
        prompt: ends in the function whose body is asked for.
        stub: what goes before a whole function: the prompt's imports and helpers, valid by itself.
        code: what the model gave.
        name: of the function.
    """
    return inserted(stub, code) if defines(code, name) else prompt + as_body(code)


def defines(code: str, name: str) -> bool:
    """Whether code defines a name at its top level."""
    word = re.escape(name)
    return re.search(rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{word}\b|^{word}[ \t]*(?::[^=\n]*)?=(?!=)", code, re.M) is not None


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def as_body(code: str) -> str:
    """The body of a function, whose indentation may have been lost with the blank space around the code."""
    rest = [line for line in code.split("\n")[1:] if line.strip()]
    if code[:1].isspace():
        return code
    opens = code.split("\n", 1)[0].rstrip().endswith(":")
    is_within = opens and bool(rest) and len(_margin(rest[0]).replace("\t", _STEP)) <= len(_STEP)
    if all(line[:1].isspace() for line in rest) and not is_within:
        return _STEP + code
    return "\n".join(_STEP + line if line.strip() else line for line in code.split("\n"))


def _put_with(prelude: str, task: Task, code: str) -> Task:
    return put(task, with_prelude(prelude, code))


def _lines_ahead(code: str) -> int:
    """How many lines at the top are comments, the docstring and imports from `__future__`."""
    ahead = 0
    statement: list[tokenize.TokenInfo] = []
    seen = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL):
                ahead = ahead if statement else token.start[0]
            elif token.type != tokenize.NEWLINE:
                statement.append(token)
                if len(statement) > 1 and not _stays(statement, seen):
                    break
            elif _stays(statement, seen):
                ahead, statement, seen = token.start[0], [], True
            else:
                break
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return ahead


def _stays(statement: list[tokenize.TokenInfo], seen: bool) -> bool:
    if [token.string for token in statement[:2]] == ["from", "__future__"]:
        return True
    return not seen and all(token.type == tokenize.STRING and not _FORMATTED.match(token.string) for token in statement)
