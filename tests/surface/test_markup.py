"""What is printed with rich is text: a bracket in it is no markup, and a word between colons no picture."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import aviato
from aviato import progress
from aviato.bench import report, script

ROOT = Path(aviato.__file__).parent.parent
TEXTS = [
    "pip install 'aviato-sandbox[bench]'",
    "[red]no colour[/red]",
    "[/]",
    "[/x]",
    "dict[str, int]",
    ":smile:",
    "[link=x]y[/link]",
]
PARSES = {"Console", "TextColumn"}
"""Names of rich that read markup unless they are told not to."""


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """The console of the benchmarks, writing to memory."""
    monkeypatch.setattr(script.console, "file", io.StringIO())
    return script.console


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("text", TEXTS)
def test_a_report_shows_text_as_it_is(console: Console, text: str) -> None:
    made = report.Report("name")
    made.floors = {text: ["/bin/echo", text]}
    made.notes, made.problems = [text], [text]
    made.tables = [report.Table(text, [text, "column"], [[text, text]])]
    made.show(console)
    # A title, a head, two cells, the floor's name and argv, a note and a problem.
    assert shown(console).count(text) >= 7


@pytest.mark.parametrize("text", TEXTS)
def test_a_bar_shows_text_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    run = progress.Progress(text, 10, False)
    run.advance(text)
    bar = progress._Bar(run)
    bar.show(run)
    bar.stop()
    assert capsys.readouterr().err.count(text) >= 2


def constructions() -> Iterator[tuple[str, ast.Call]]:
    for folder in ("aviato", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PARSES:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_nothing_reads_markup_unasked() -> None:
    found = list(constructions())
    assert found
    for place, node in found:
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        assert isinstance(said.get("markup"), ast.Constant) and said["markup"].value is False, f"{place} reads markup"  # type: ignore[attr-defined]
