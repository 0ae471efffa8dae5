"""Words of a Dockerfile: how they are split, and what variables in them come to. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]", re.ASCII)
_MOST_NESTED = 50


class WordError(ValueError):
    """A word is wrong; the message says how."""


def split(text: str, escape: str = "\\") -> list[str]:
    """The words of a line, with their quotes: blanks within quotes or behind the escape character part none.

    Args:
        text: of the line.
        escape: the character that takes the meaning from the next one.

    Raises:
        WordError: a quote has no end.
    """
    words: list[str] = []
    word, quote = "", ""
    position = 0
    while position < len(text):
        letter = text[position]
        if letter == escape and quote != "'" and position + 1 < len(text):
            word += text[position : position + 2]
            position += 2
            continue
        if quote:
            quote = "" if letter == quote else quote
            word += letter
        elif letter.isspace():
            words += [word] if word else []
            word = ""
        else:
            quote = letter if letter in "'\"" else ""
            word += letter
        position += 1
    if quote:
        raise WordError(f"the {quote} has no end")
    return [*words, word] if word else words


def expand(text: str, variables: Mapping[str, str], escape: str = "\\", *, quotes: bool = True) -> str:
    """A word without its quotes, and with the values of variables in the place of `$name`, `${name}`, `${name:-other}`, ….

    Args:
        text: the word.
        variables: those that there are; any other is empty.
        escape: the character that takes the meaning from the next one.
        quotes: whether quotes are taken away and mean something.

    Raises:
        WordError: it is none that Docker would take, or a variable has to have a value (`${name:?why}`) and has none.
    """
    return _Reader(text, variables, escape, quotes).until("")


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, quotes: bool) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._quotes = quotes
        self._position = 0
        self._nested = 0

    def until(self, end: str) -> str:
        """The value of what comes up to a character, which is passed; up to the end of the text where it is empty."""
        found: list[str] = []
        while self._position < len(self._text):
            letter = self._text[self._position]
            if letter == end:
                self._position += 1
                return "".join(found)
            if letter == "$":
                found.append(self._variable())
            elif letter == "'" and self._quotes:
                found.append(self._single())
            elif letter == '"' and self._quotes:
                found.append(self._double())
            else:
                found.append(self._plain())
        if end:
            raise WordError(f"${{ has no }} in {self._text!r}")
        return "".join(found)

    def _plain(self) -> str:
        letter = self._text[self._position]
        self._position += 1
        if letter != self._escape or self._position == len(self._text):
            return letter
        if not self._quotes and self._text[self._position] not in (self._escape, "$"):
            return letter
        self._position += 1
        return self._text[self._position - 1]

    def _single(self) -> str:
        stop = self._text.find("'", self._position + 1)
        if stop < 0:
            raise WordError("the ' has no end")
        found = self._text[self._position + 1 : stop]
        self._position = stop + 1
        return found

    def _double(self) -> str:
        self._position += 1
        found: list[str] = []
        while self._position < len(self._text):
            letter = self._text[self._position]
            if letter == '"':
                self._position += 1
                return "".join(found)
            if letter == "$":
                found.append(self._variable())
                continue
            self._position += 1
            if letter == self._escape and self._text[self._position : self._position + 1] in ('"', "$", self._escape):
                letter = self._text[self._position]
                self._position += 1
            found.append(letter)
        raise WordError('the " has no end')

    def _variable(self) -> str:
        self._position += 1
        if self._text[self._position : self._position + 1] != "{":
            match = _NAME.match(self._text, self._position)
            if match is None:
                return "$"
            self._position = match.end()
            return self._variables.get(match[0], "")
        match = _NAME.match(self._text, self._position + 1)
        if match is None:
            raise WordError(f"${{ has no name behind it in {self._text!r}")
        name, self._position = match[0], match.end()
        return self._braced(name)

    def _braced(self, name: str) -> str:
        rest = self._text[self._position :]
        value = self._variables.get(name)
        if rest.startswith("}"):
            self._position += 1
            return value or ""
        colon = rest.startswith(":")
        kind = rest[colon : colon + 1]
        if not rest:
            raise WordError(f"${{ has no }} in {self._text!r}")
        if kind not in ("-", "+", "?") or not kind:
            raise WordError(f"${{{name}{rest[:2]}…}} in {self._text!r} is not supported: there are :-, :+ and :?")
        self._position += 1 + colon
        self._nested += 1
        if self._nested > _MOST_NESTED:
            raise WordError(f"more than {_MOST_NESTED} ${{…}} are within one another")
        other = self.until("}")
        self._nested -= 1
        is_set = bool(value) if colon else value is not None
        if kind == "+":
            return other if is_set else ""
        if not is_set and kind == "?":
            raise WordError(f"{name} has no value: {other or 'it has to have one'}")
        return (value or "") if is_set else other
