"""Tracebacks and `inspect` show the lines of a function or a test that is no file here, as Python counts lines."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

import pytest

from aviato.functions import driver
from aviato.grading.inside import cases

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "no file of this machine.py"
LAST = "    raise ValueError('é')"
SOURCES = {
    "plain": "def f():\n    x = 1\n",
    "CRLF": "def f():\r\n    x = 'é'\r\n",
    "CR": "def f():\r    x = 'é'\r",
    "form feed in a text": "def f():\n    x = 'a\x0cb'\n",
    "form feed between": "\x0c\ndef f():\n\x0c    x = 1\n",
    "vertical tab": "def f():\n    x = 'a\x0bb'  # \x0b\n",
    "file separators": "def f():\n    x = 'a\x1c\x1d\x1eb'\n",
    "next line": "def f():\n    x = 'a\x85b'\n",
    "line separator": "def f():\n    x = 'a\u2028b\u2029'\n",
    "several lines": "def f():\n    x = '''é\n\u2028\n'''\n",
    "a line that goes on": "def f():\n    x = 'é\u2028' \\\n        'b'\n",
    "formatted": "def f():\n    x = f'é\u2028{1:\u2028>3}'\n",
    "identifiers": "def f():\n    é = ñ = '\x85'\n",
    "emoji": "def f():\n    x = '😀\u2028'\n",
    "tabs": "def f():\n    x =\t'\u2028'\t\n",
}


@pytest.fixture
def name() -> Iterator[str]:
    yield NAME
    linecache.cache.pop(NAME, None)


@pytest.mark.parametrize("kind", SOURCES)
def test_of_a_function_that_came_along(kind: str, name: str) -> None:
    source = SOURCES[kind] + LAST
    driver.show_lines({name: [[1, source], [50, source]]})
    for first in (1, 50):
        assert linecache.getline(name, first - 1 + _last_line(source)).strip() == LAST.strip()


@pytest.mark.parametrize("kind", SOURCES)
def test_of_a_test_source(kind: str, name: str) -> None:
    source = SOURCES[kind] + LAST
    cases.keep_lines(name, source.encode())
    assert linecache.getline(name, _last_line(source)).strip() == LAST.strip()


def _last_line(source: str) -> int:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return function.body[-1].lineno
