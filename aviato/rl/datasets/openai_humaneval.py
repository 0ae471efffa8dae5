"""HumanEval, and HumanEval+ of EvalPlus."""

from __future__ import annotations

import re
from functools import partial

from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import Problem, Row, of_rows, put, refused, text
from aviato.rl.datasets.sources import completed, defines
from aviato.rl.task import Task

_SCHEMA = "humaneval"
_DEFINED = re.compile(r"^def[ \t]+(\w+)", re.M)
_IMPORT = re.compile(r"^(?:import|from)[ \t].*$", re.M)
PLUS_TIMEOUT_SECONDS = 60.0
"""Of all inputs of a row together, as EvalPlus has it; HumanEval's own default is 3 seconds."""


def humaneval(row: Row, code: str | None = None) -> Task:
    """A row of `openai/openai_humaneval` or `evalplus/humanevalplus`.

    The row's `test` and a call of its `check` are the one case. Code that defines the entry point goes behind the prompt, whose
    imports and helpers it may use; other code is the body that the prompt asks for. HumanEval+ needs numpy in the sandbox.

    Args:
        row: with `prompt`, `test` and `entry_point`.
        code: of the answer: the function, or its body.

    Raises:
        AviatoValidationError: a field that is missing.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    if not isinstance(row.get("prompt"), str):
        message = (
            "its field 'prompt' is missing or no text; trainers keep that name for messages: give them the row whole, in a "
            "column of its own"
        )
        raise refused(_SCHEMA, "prompt", message)
    prompt, test = text(_SCHEMA, row, "prompt"), text(_SCHEMA, row, "test")
    entry = text(_SCHEMA, row, "entry_point").strip()
    if not entry.isidentifier():
        raise refused(_SCHEMA, "entry_point", f"its field 'entry_point' must be a name, got {entry!r}")
    if not defines(test, "check"):
        raise refused(_SCHEMA, "test", "its field 'test' defines no function 'check'")
    names = [name for name in _DEFINED.findall(prompt) if re.search(rf"\b{name}\b", test)]
    # The harness runs all in one module, so tests may use what the prompt imports.
    imports = "\n".join(_IMPORT.findall(prompt))
    case = TestCase(source=f"{imports}\n{test}\ncheck({entry})\n")
    task = Task(tests=[case], code_names=list(dict.fromkeys([*names, entry])), timeout_seconds=PLUS_TIMEOUT_SECONDS)
    return Problem(task, partial(_compose, prompt, entry))


def _compose(prompt: str, entry: str, task: Task, code: str) -> Task:
    ahead = prompt if prompt.endswith("\n") else prompt + "\n"
    return put(task, completed(prompt, ahead, code, entry))
