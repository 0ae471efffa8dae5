"""Fenced code blocks by the rules of CommonMark 0.31, in time linear in the text.

Only what decides where a fence begins and ends is read: block quotes, list items, paragraphs that go on lazily, headings,
thematic breaks, indented code. HTML blocks are not: to them, the fence after a line with a tag of its own would be HTML.

markdown-it-py is the oracle of the tests and not the parser here. Text that a model is free to choose takes it 7 s a megabyte
(items of a list) to 16 s (a deep quote that goes on lazily), and what models do beside the rules (`habits.py`) changes where a
block ends, which a finished parse cannot be told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Deeper ones are text. An empty line costs as much as there are containers open, so the depth has to end somewhere.
MAX_DEPTH = 20

_OPENING = re.compile(r"(`{3,}+)([^`]*+)\Z|(~{3,}+)(.*+)\Z", re.DOTALL)
_CLOSING = re.compile(r"(`{3,}+|~{3,}+)[ \t]*+\Z")
_HEADING = re.compile(r"#{1,6}(?:[ \t]|\Z)")
_BREAK = re.compile(r"(?:\*[ \t]*+){3,}+\Z|(?:_[ \t]*+){3,}+\Z|(?:-[ \t]*+){3,}+\Z")
_UNDERLINE = re.compile(r"(?:=++|-++)[ \t]*+\Z")
_MARKER = re.compile(r"[-+*]|([0-9]{1,9})[.)]")
_BLANK = re.compile(r"[ \t]*+\Z")


class Cursor:
    """A place in a line, by character and by column: a tab reaches to the next multiple of four and may be taken in part."""

    __slots__ = ("column", "line", "owed", "pos")

    def __init__(self, line: str, pos: int = 0) -> None:
        self.line = line
        self.pos = pos
        self.column = 0
        self.owed = 0

    def look(self) -> tuple[int, int]:
        """The columns of blank space from here, and the index of what follows it."""
        line, pos, width = self.line, self.pos, self.owed
        if not width and line[pos : pos + 1] not in (" ", "\t"):
            return 0, pos
        column = self.column + width
        while pos < len(line):
            if line[pos] == " ":
                step = 1
            elif line[pos] == "\t":
                step = 4 - column % 4
            else:
                break
            pos, width, column = pos + 1, width + step, column + step
        return width, pos

    def advance(self, columns: int) -> None:
        """Take that many columns of blank space, or what there is of it."""
        taken = min(columns, self.owed)
        self.owed, self.column, columns = self.owed - taken, self.column + taken, columns - taken
        while columns > 0 and self.pos < len(self.line) and self.line[self.pos] in " \t":
            step = 1 if self.line[self.pos] == " " else 4 - self.column % 4
            taken = min(step, columns)
            self.pos, self.owed = self.pos + 1, step - taken
            self.column, columns = self.column + taken, columns - taken

    def skip(self, characters: int) -> None:
        """Take characters of one column each."""
        self.pos += characters
        self.column += characters

    def rewind(self) -> None:
        """Go back to the beginning of the line."""
        self.pos = self.column = self.owed = 0

    def rest(self) -> str:
        """What follows, the rest of a tab taken in part as blanks."""
        return " " * self.owed + self.line[self.pos :]


@dataclass(slots=True)
class Container:
    """A block quote (`width` is None), or a list item whose content is indented by `width` columns."""

    width: int | None
    filled: bool = False


@dataclass(slots=True)
class Fence:
    """A fenced code block. Its lines are without the marks and the indentation of what it stands in."""

    info: str
    character: str = "`"
    length: int = 3
    indent: int = 0
    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def text(self) -> str:
        """Its content, without the line end of the last line."""
        return "\n".join(self.lines)


class CommonMark:
    """The fences of one text, whose lines end in a line feed. What a habit changes is a method of its own."""

    def __init__(self, text: str) -> None:
        self.lines = text.removesuffix("\n").split("\n")
        self.number = 0  # of the next line, and of its characters that are read already
        self.skip = 0
        self.fences: list[Fence] = []
        self.fence: Fence | None = None
        self.containers: list[Container] = []
        self.paragraph = False
        self._blank = False

    def read(self) -> list[Fence]:
        """The fences in order. One that nothing closes reaches to the end of what it stands in."""
        while self.number < len(self.lines):
            at = Cursor(self.lines[self.number], self.skip)
            self.number, self.skip = self.number + 1, 0
            self.read_line(at)
        self.end_fence(closed=False)
        return self.fences

    def read_line(self, at: Cursor) -> None:
        """One line, or what of it is not read yet."""
        if self.fence is None and self._is_settled(at):
            return
        matched = self._match(at)
        if self.fence is not None:
            if self.stays_in_fence(at, matched):
                self.read_inside(at, self.fence)
                return
            self.end_fence(closed=False)
        self._read_blocks(at, matched)

    def _is_settled(self, at: Cursor) -> bool:
        """Whether a line needs no look at its blocks: text outside containers, or one more empty line."""
        if not self.containers and _plain(at):
            self.paragraph, self._blank = True, False
            return True
        again, self._blank = self._blank, not at.line
        return again and self._blank

    def begin_fence(self, info: str, mark: str, indent: int) -> None:
        """Open a fence."""
        self.fence = Fence(info.strip(), mark[0], len(mark), indent)
        self.paragraph = self._blank = False

    def end_fence(self, *, closed: bool) -> None:
        """End the open fence, if there is one."""
        if self.fence is not None:
            self.fence.closed = closed
            self.fences.append(self.fence)
            self.fence = None

    def stays_in_fence(self, at: Cursor, matched: int) -> bool:
        """Whether a line that belongs to that many of the open containers belongs to the open fence."""
        return matched == len(self.containers)

    def read_inside(self, at: Cursor, fence: Fence) -> None:
        """A line inside a fence: what closes it, or a line of its content."""
        width, pos = at.look()
        if width <= 3 and closes(fence, at.line, pos):
            self.end_fence(closed=True)
            return
        at.advance(fence.indent)
        fence.lines.append(at.rest())

    def read_leaf(self, at: Cursor, *, continued: bool) -> None:
        """The text of a line outside fences, behind the marks of its containers; `continued` if a paragraph goes on with it."""
        width, pos = at.look()
        if width >= 4:
            self.paragraph = continued
        elif opening := opening_at(at.line, pos):
            self.begin_fence(opening[1], opening[0], width)
        else:
            self.paragraph = _HEADING.match(at.line, pos) is None

    def interrupts(self, at: Cursor) -> bool:
        """Whether a line without the marks of its containers ends the paragraph before it all the same."""
        width, pos = at.look()
        return width <= 3 and (opening_at(at.line, pos) is not None or _HEADING.match(at.line, pos) is not None)

    def _match(self, at: Cursor) -> int:
        """How many of the open containers the line belongs to; their marks are taken."""
        if not at.line:
            kept = (index for index, container in enumerate(self.containers) if container.width is None or not container.filled)
            return next(kept, len(self.containers))
        for index, container in enumerate(self.containers):
            width, pos = at.look()
            blank = pos == len(at.line)
            if container.width is None:
                if blank or width > 3 or at.line[pos] != ">":
                    return index
                _take_quote(at, width)
            elif (blank and container.filled) or (not blank and width >= container.width):
                at.advance(container.width)
            else:
                return index
        return len(self.containers)

    def _read_blocks(self, at: Cursor, matched: int) -> None:
        began = matched
        while True:
            width, pos = at.look()
            continued = self.paragraph and matched == len(self.containers)
            if pos == len(at.line):
                self._cut(matched, filled=False)
                self.paragraph = False
                return
            if width > 3 or not self._begin_container(at, matched, continued=continued):
                break
            matched += 1
        lazy = self.paragraph and began == matched < len(self.containers)
        if lazy and (width > 3 or not _ends_paragraph(at.line, pos)) and not self.interrupts(at):
            return
        self._cut(matched, filled=True)
        if width <= 3 and _ends_paragraph(at.line, pos, underline=continued):
            self.paragraph = False
        else:
            self.read_leaf(at, continued=continued)

    def _begin_container(self, at: Cursor, matched: int, *, continued: bool) -> bool:
        width, pos = at.look()
        if matched >= MAX_DEPTH or _ends_paragraph(at.line, pos, underline=continued):
            return False
        if at.line[pos] == ">":
            _take_quote(at, width)
            container = Container(None)
        elif (taken := _take_item(at, width, continued=continued)) is not None:
            container = Container(taken)
        else:
            return False
        self._cut(matched, filled=True)
        self.containers.append(container)
        self.paragraph = False
        return True

    def _cut(self, matched: int, *, filled: bool) -> None:
        del self.containers[matched:]
        if filled and self.containers:
            self.containers[-1].filled = True


def closes(fence: Fence, line: str, pos: int) -> bool:
    """Whether what stands at `pos` is nothing but a fence that closes this one."""
    found = _CLOSING.match(line, pos)
    return found is not None and found[1][0] == fence.character and len(found[1]) >= fence.length


def _plain(at: Cursor) -> bool:
    return at.line[at.pos : at.pos + 1].isalpha() and not any(mark in at.line for mark in "<`[◁")


def opening_at(line: str, pos: int) -> tuple[str, str] | None:
    """The mark and the info string of an opening fence that stands at `pos`."""
    found = _OPENING.match(line, pos)
    return None if found is None else (found[1] or found[3], found[2] or found[4] or "")


def _ends_paragraph(line: str, pos: int, *, underline: bool = False) -> bool:
    return _BREAK.match(line, pos) is not None or (underline and _UNDERLINE.match(line, pos) is not None)


def _take_quote(at: Cursor, width: int) -> None:
    at.advance(width)
    at.skip(1)
    at.advance(1)


def _take_item(at: Cursor, width: int, *, continued: bool) -> int | None:
    """Take the marker of a list item; return the columns that its content is indented by."""
    _, pos = at.look()
    marker = _MARKER.match(at.line, pos)
    if marker is None or at.line[marker.end() : marker.end() + 1] not in ("", " ", "\t"):
        return None
    empty = _BLANK.match(at.line, marker.end()) is not None
    if continued and (empty or (marker[1] is not None and int(marker[1]) != 1)):
        return None
    at.advance(width)
    at.skip(marker.end() - pos)
    padding, _ = at.look()
    if empty or padding > 4:
        padding = 1
    at.advance(padding)
    return width + marker.end() - pos + padding
