"""Programs that read and write files by the names that their problem gives them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aviato.rl.datasets.rows import Problem, refused
from aviato.values import text as texts

if TYPE_CHECKING:
    from aviato.rl.task import Task

_FILE = "answer.py"


def file_problem(schema: str, task: Task, output_file: str) -> Problem:
    """A problem whose programs write a file: a script runs the program and prints that file, which is compared.

    Args:
        schema: named in the error.
        task: of program cases that have what is read among their files.
        output_file: what the program writes.

    Raises:
        AviatoValidationError: the code would not be Python, whose interpreter every sandbox has.
    """
    if task.language != "python":
        message = f"its programs write {output_file!r}, which is judged for Python alone, and the language is {task.language!r}"
        raise refused(schema, "language", message)
    name = shlex.quote(output_file)
    # What an earlier case has written is no answer to this one.
    script = f'rm -f -- {name}; python3 {_FILE} > /dev/null < /dev/null; ended=$?; cat -- {name} || true; exit "$ended"'
    return Problem(replace(task, language="bash"), partial(_compose, script), language="python")


def _compose(script: str, task: Task, code: str) -> Task:
    return replace(task, code=script, files={**task.files, _FILE: texts.encode(code)})
