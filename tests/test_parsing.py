"""Sources are parsed in several threads at once, each as if it were alone."""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

import aviato.values.parsing
from aviato.values.parsing import parsed


class Yields:
    """Lets another thread run when it is collected, as whatever waits or writes in a `__del__` does."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        threading.Event().wait(0)


def test_trees_of_several_threads() -> None:
    source = Path(aviato.__file__).with_name("results.py").read_text()
    expected, wrong = ast.dump(ast.parse(source)), []

    def parse(depth: int) -> None:
        if depth:
            return parse(depth - 1)
        for _ in range(15):
            Yields()
            try:
                if ast.dump(parsed(source)) != expected:
                    wrong.append("another tree")
            except Exception as error:
                wrong.append(repr(error))
        return None

    threads = [threading.Thread(target=parse, args=[depth]) for depth in (1, 40, 80, 120)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("source", "error"), [("f(", SyntaxError), ("a\0", (SyntaxError, ValueError))])
def test_what_is_no_python_is_said_as_by_python(source: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parsed(source)
