"""Rules of `.dockerignore`, and patterns of names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato import AviatoValidationError
from aviato.building.dockerignore import is_ignored, rules
from aviato.building.path_patterns import compiled


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a/b.txt", "a.txt/b", "atxt"]),
        ("a?c", ["abc"], ["a/c", "ac", "abbc"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("a/**/b", ["a/b", "a/c/b", "a/c/d/b"], ["ab", "a/bc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "/x", "-x"]),
        ("[^a-c]x", ["dx"], ["ax", "/x"]),
        ("[]-]", [], []),
        (r"\*x", ["*x"], ["ax"]),
        ("a.b+c$(d)", ["a.b+c$(d)"], ["axb+c$(d)"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    if not matching:
        with pytest.raises(ValueError, match="empty"):
            compiled(pattern)
        return
    expression = compiled(pattern)
    assert all(expression.fullmatch(one) for one in matching) and not any(expression.fullmatch(one) for one in others)


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        ("# a comment\n\n*/temp*\n*/*/temp*\ntemp?", ["a/temp", "a/tempx/y", "a/b/temp", "tempa"], ["temp", "a/b/c/temp", "#"]),
        ("*.md\n!README.md", ["a.md"], ["README.md", "a/b.md"]),
        ("*.md\n!README*.md\nREADME-secret.md", ["README-secret.md", "x.md"], ["README.md", "README-a.md"]),
        ("*.md\nREADME-secret.md\n!README*.md", ["x.md"], ["README.md", "README-secret.md"]),
        ("**/*.go", ["a.go", "a/b/c.go"], ["a.gox"]),
        ("**\n!src", ["a", "a/b"], ["src", "src/a"]),
        ("/a/\nb/../c\n./d", ["a", "a/b", "c", "d/e"], ["b", "x/a"]),
        ("  a  \n!  b\n", ["a"], ["b"]),
        ("node_modules", ["node_modules/x/y"], ["a/node_modules"]),
    ],
)
def test_rules(text: str, gone: list[str], kept: list[str]) -> None:
    found = rules(text)
    assert [one for one in gone if not is_ignored(one, found)] == []
    assert [one for one in kept if is_ignored(one, found)] == []


def test_a_rule_that_is_none() -> None:
    for text, line in (("a\n[b", 2), ("!", 1), ("a\\", 1)):
        with pytest.raises(AviatoValidationError, match=re.escape(f".dockerignore:{line}: ")):
            rules(text)


@given(st.text(alphabet="ab*?[]^-\\!/.# \n"), st.text(alphabet="ab/.", min_size=1, max_size=8))
def test_any_text_is_read_or_refused(text: str, path: str) -> None:
    try:
        assert is_ignored(path, rules(text)) in (True, False)
    except AviatoValidationError as error:
        assert str(error).startswith(".dockerignore:")
