"""What models write beside CommonMark: thinking, tags, fences that are glued, cut off or opened in the prompt.

What a line inside a fence means is ambiguous where a model did not close the fence. Such a line (a closing fence glued to
code, a closing tag, another opening) is believed if the fence has no closing of its own ahead: if the lines that are nothing
but a fence, from there to the next opening with a label, are even in number and so pair up among themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

from aviato.rl.reading.commonmark import CommonMark, Cursor, Fence, closes, opening_at
from aviato.rl.reading.languages import code_behind, is_known, label
from aviato.rl.reading.marks import END, MARK, Mark, closing_of, marks
from aviato.rl.reading.prose import has_code

_GLUED_OPENING = re.compile(r"(`{3,}+)[ \t]*+([\w+#.:-]*+|\{[^`{}]*+\})[ \t*_]*+\Z")
_CLOSED_THEN_MARK = re.compile(r"(`{3,}+|~{3,}+)[ \t]*+(?=<|\[|◁)")
_MARK = re.compile("`{3,}+")
_ENDS_LINE = re.compile(r"[ \t]*+(?:\Z|[<\[◁])")
# Code on one line is no longer, and what stands on a line beside a tag is seen from near it: a line may have megabytes.
_ONE_LINE = 2_000
_NEAR = 200
_LANGUAGE_THEN_CODE = re.compile(r"([\w+#.-]++)[ \t]++(?=\S)")
_FENCE_LINES = {
    (character, deep): re.compile(
        rf"{prefix}{re.escape(character)}{{3,}}+[ \t]*+(?:(?P<bare>(?:<[^<>]*+>\s*+)*+\Z)|(?P<info>[^`]*+\Z))"
    )
    for character in "`~"
    for deep, prefix in ((False, " {0,3}+"), (True, r"[ \t>]*+(?:(?:[-+*]|[0-9]{1,9}[.)])[ \t]++)?+"))
}


@dataclass(frozen=True, slots=True)
class Region:
    """What a pair of tags encloses: characters of the text, fences by index. `inline` in a line that goes on around it."""

    tag: str
    begin: int
    end: int
    first: int
    last: int
    inline: bool


class Completion(CommonMark):
    """The fences and the tagged regions of a completion, outside its thinking."""

    def __init__(self, text: str, language: str) -> None:
        super().__init__(text)
        self.text = text
        self.language = language
        self.begin = 0
        self.end = len(text)
        self.regions: list[Region] = []
        self.truncated_thinking = False
        self.opened_in_prompt: set[int] = set()
        self._starts = list(accumulate((len(line) + 1 for line in self.lines), initial=0))
        self._opened: dict[str, tuple[int, int, bool]] = {}
        self._thoughts: list[tuple[int, int]] = []
        self._never_closed: set[str] = set()
        self._bare_ahead: dict[tuple[str, bool], list[int]] = {}
        self._nested = 0
        self._loose = False
        self._text_from = -1

    def read(self) -> list[Fence]:
        """The fences that count, in order."""
        super().read()
        for tag in list(self._opened):
            self._close_region(tag, self.end, inline=False)
        return self.fences

    def between(self, begin: int, end: int) -> str:
        """The text between two places, without thinking."""
        pieces = []
        for first, last in self._thoughts[bisect_left(self._thoughts, (begin, begin)) :]:
            if first >= end:
                break
            pieces.append(self.text[begin:first])
            begin = last
        return "".join((*pieces, self.text[begin:end]))

    # -- outside fences

    def interrupts(self, at: Cursor) -> bool:
        """Whether a line ends the paragraph before it: as for CommonMark, and with marks."""
        _, pos = at.look()
        return super().interrupts(at) or "```" in at.line or next(marks(at.line, pos), None) is not None

    def read_leaf(self, at: Cursor, *, continued: bool) -> None:
        """The text of a line outside fences, with the marks in it."""
        found = marks(at.line, at.pos)
        while True:
            width, pos = at.look()
            if pos == len(at.line):
                self.paragraph = False
                return
            if self._closes_before_mark(at, pos):
                continue
            if self._opens(at, width, pos, continued=continued):
                return
            if self._is_one_line_fence(at, pos):
                continue
            mark = next((mark for mark in found if mark.begin >= pos), None)
            if mark is None:
                break
            if self._take(mark, at):
                return
            continued = False
        if not self._opens_glued(at, pos):
            super().read_leaf(at, continued=continued)

    def _closes_before_mark(self, at: Cursor, pos: int) -> bool:
        """A closing fence of what the prompt, or a tag, opened: no opening one has a mark for a label."""
        closing = _CLOSED_THEN_MARK.match(at.line, pos)
        if closing is None or not MARK.match(at.line, closing.end()) or at.line.find(closing[1], closing.end()) >= 0:
            return False
        self._ends_code_of_the_prompt(self._offset(pos), closing[1][0])
        at.skip(closing.end() - at.pos)
        return True

    def _opens(self, at: Cursor, width: int, pos: int, *, continued: bool) -> bool:
        opening = opening_at(at.line, pos)
        if opening is None or (width > 3 and (continued or label(opening[1]) != self.language)):
            return False
        if opening[1].strip() or not self._ends_code_of_the_prompt(self._offset(pos), opening[0][0]):
            self.begin_fence(opening[1], opening[0], width)
        return True

    def begin_fence(self, info: str, mark: str, indent: int) -> None:
        """Open a fence; code behind its label is its first line."""
        super().begin_fence(info, mark, indent)
        self._nested, self._loose = 0, False
        if self.fence is not None and (code := code_behind(info)) is not None:
            self.fence.lines.append(code)

    def _opens_glued(self, at: Cursor, pos: int) -> bool:
        """An opening fence at the end of a line of text, or a closing one at the end of code that the prompt opened."""
        opening = _GLUED_OPENING.search(at.line, pos) if "```" in at.line else None
        if opening is None or at.line.count("```", pos, opening.start()) % 2:
            return False
        info = opening[2]
        if not info and self._ends_code_of_the_prompt(self._offset(opening.start()), "`"):
            return True
        if self._pairs_up(self.number) and not is_known(info):
            return False
        self.begin_fence(info, opening[1], 0)
        return True

    def _is_one_line_fence(self, at: Cursor, pos: int) -> bool:
        """```` ```python print(1)``` ````, which is inline code to CommonMark, on a line of its own or between marks."""
        line = at.line
        mark = _MARK.match(line, pos)
        end = line.find(mark[0], mark.end(), mark.end() + _ONE_LINE) if mark else -1
        if mark is None or end < 0 or not _ENDS_LINE.match(line, end + len(mark[0])):
            return False
        inner = line[mark.end() : end].strip()
        if not inner or label(inner) == self.language == inner.lower():
            return False
        named = _LANGUAGE_THEN_CODE.match(inner)
        if named and is_known(named[1]):
            fence = Fence(named[1], lines=[inner[named.end() :]], closed=True)
        else:
            fence = Fence("", lines=[inner], closed=True)
        self.fences.append(fence)
        at.skip(end + len(mark[0]) - at.pos)
        return True

    def _ends_code_of_the_prompt(self, offset: int, character: str) -> bool:
        """Whether a bare fence closes what the prompt opened: nothing does after it, and all before it is code."""
        base, count, _ = max(self._opened.values(), default=(self.begin, 0, False))
        if (
            base == self._text_from
            or len(self.fences) != count
            or self.containers
            or self._bare_lines(self.number, character, deep=True) % 2
        ):
            return False
        code = self.between(base, offset)
        if not code.strip() or not has_code(code, self.language):
            self._text_from = base
            return False
        self.opened_in_prompt.add(len(self.fences))
        self.fences.append(Fence(self.language, lines=code.split("\n"), closed=True))
        self.paragraph = False
        return True

    # -- marks

    def _offset(self, pos: int) -> int:
        return self._starts[self.number - 1] + pos

    def _take(self, mark: Mark, at: Cursor) -> bool:
        """Do what a mark says and go behind it; return whether the line is done with."""
        begin, end = self._offset(mark.begin), self._offset(mark.end)
        at.skip(mark.end - at.pos)
        if mark.kind == "stop":
            self._stop(begin)
            return True
        if mark.kind == "thought":
            return self._skip_thought(mark.name, begin, at)
        if mark.kind == "end_thought":
            self._forget(end)
        elif mark.kind == "open":
            before = at.line[max(0, mark.begin - _NEAR) : mark.begin]
            self._opened[mark.name] = (end, len(self.fences), before.strip() != "")
        elif mark.name in self._opened:
            self._close_region(mark.name, begin, inline=at.line[mark.end : mark.end + _NEAR].strip() != "")
        return False

    def _close_region(self, tag: str, end: int, *, inline: bool) -> None:
        begin, first, inside = self._opened.pop(tag)
        one_line = self.text.find("\n", begin, end) < 0
        self.regions.append(Region(tag, begin, end, first, len(self.fences), (inside or inline) and one_line))

    def _skip_thought(self, name: str, begin: int, at: Cursor) -> bool:
        here = self._offset(at.pos)
        closing = None if name in self._never_closed else closing_of(name).search(self.text, here)
        if closing is not None:
            self._thoughts.append((begin, closing.end()))
            if closing.end() <= self._offset(len(at.line)):
                at.skip(closing.end() - here)
                return False
            self.number = bisect_right(self._starts, closing.end()) - 1
            self.skip = closing.end() - self._starts[self.number]
            self.containers.clear()
            self.paragraph = False
            return True
        self._never_closed.add(name)
        if begin > 0 and self.text[begin - 1].isalnum() and self.text[begin + 1].isupper():  # `vector<Thought>`
            return False
        self.truncated_thinking = True
        self._stop(begin)
        return True

    def _forget(self, offset: int) -> None:
        """All before was thinking that the prompt opened."""
        self.fences.clear()
        self.regions.clear()
        self._opened.clear()
        self.opened_in_prompt.clear()
        self.begin = offset

    def _stop(self, offset: int) -> None:
        self.end_fence(closed=False)
        self.end = offset
        self.number = len(self.lines)

    # -- inside fences

    def stays_in_fence(self, at: Cursor, matched: int) -> bool:
        """Code that is not indented as the list item of its fence is stays in the fence, if something closes that."""
        if self._loose:
            at.rewind()
            return True
        if super().stays_in_fence(at, matched):
            return True
        in_lists = all(container.width is not None for container in self.containers)
        if not in_lists or at.look()[1] == len(at.line) or self._pairs_up(self.number - 1):
            return False
        if self.fence is not None and not self.fence.text.strip():
            self._loose = True
            at.rewind()
        return True

    def read_inside(self, at: Cursor, fence: Fence) -> None:
        """A line inside a fence: what ends it by CommonMark or by habit, or a line of its content."""
        if ("<" in at.line or "[" in at.line or "◁" in at.line) and self._ends_at_mark(at, fence):
            return
        if fence.character * 3 in at.line:
            _, pos = at.look()
            if closes(fence, at.line, pos) and self._nested:
                self._nested -= 1
                fence.lines.append(at.rest())
                return
            if self._ends_glued(at, fence) or self._begins_another(at, fence, pos):
                return
        width, pos = at.look()
        if 3 < width <= fence.indent and closes(fence, at.line, pos):
            self.end_fence(closed=True)
            return
        super().read_inside(at, fence)

    def _ends_at_mark(self, at: Cursor, fence: Fence) -> bool:
        _, pos = at.look()
        closing = _CLOSED_THEN_MARK.match(at.line, pos)
        if closing and closes(fence, closing[0], 0):
            self.end_fence(closed=True)
            at.skip(closing.end() - at.pos)
            self.read_leaf(at, continued=False)
            return True
        mark = next((mark for mark in marks(at.line, pos) if self._may_end_fence(mark, at.line)), None)
        if mark is None or not self._pairs_up(self.number):
            return False
        before = at.line[at.pos : mark.begin].rstrip()
        code = before.rstrip(fence.character) if len(before) - len(before.rstrip(fence.character)) >= fence.length else before
        if code.strip():
            fence.lines.append(code)
        self.end_fence(closed=code != before)
        at.skip(mark.begin - at.pos)
        self.read_leaf(at, continued=False)
        return True

    def _may_end_fence(self, mark: Mark, line: str) -> bool:
        if mark.kind == "stop":
            return len(line) - mark.begin <= _ONE_LINE and END.sub("", line[mark.begin :]).strip() == ""
        if mark.kind == "end_thought":
            return line[max(0, mark.begin - _NEAR) : mark.begin].strip() == ""
        return mark.kind == "close" and mark.name in self._opened

    def _ends_glued(self, at: Cursor, fence: Fence) -> bool:
        line = at.rest().rstrip()
        code = line.rstrip(fence.character)
        run = len(line) - len(code)
        if run < fence.length or not code.strip() or fence.character * 3 in code or not self._pairs_up(self.number):
            return False
        fence.lines.append(code)
        self.end_fence(closed=True)
        return True

    def _begins_another(self, at: Cursor, fence: Fence, pos: int) -> bool:
        """An opening inside a fence: of one that nests in code, of one that begins anew, or a closing with text behind it."""
        width, _ = at.look()
        opening = opening_at(at.line, pos) if width <= max(3, fence.indent) else None
        if opening is None or not opening[1].strip() or opening[0][0] != fence.character or len(opening[0]) < fence.length:
            return False
        ahead = self._bare_lines(self.number)
        if label(fence.info) == self.language and ahead >= 2 and ahead % 2 == 0:
            self._nested += 1
            return False
        known = is_known(opening[1])
        if not known and ahead % 2:
            return False
        self.end_fence(closed=not known)
        if known:
            self.begin_fence(opening[1], opening[0], width)
        else:
            at.skip(pos - at.pos + len(opening[0]))
            self.read_leaf(at, continued=False)
        return True

    # -- what stands ahead

    def _pairs_up(self, number: int) -> bool:
        return self._bare_lines(number) % 2 == 0

    def _bare_lines(self, number: int, character: str = "`", *, deep: bool = False) -> int:
        """How many lines from that one on are nothing but a fence, up to the next opening with a label.

        With `deep`, or where that one stands in a list or a quote, those in lists and quotes too.
        """
        fence = self.fence
        deep = deep or bool(self.containers) or (fence is not None and fence.indent > 3)
        key = (fence.character if fence else character, deep)
        if key not in self._bare_ahead:
            self._bare_ahead[key] = _count_bare_lines(self.lines, *key)
        return self._bare_ahead[key][number]


def _count_bare_lines(lines: list[str], character: str, deep: bool) -> list[int]:
    pattern, mark = _FENCE_LINES[character, deep], character * 3
    counts = [0] * (len(lines) + 1)
    for index in range(len(lines) - 1, -1, -1):
        found = pattern.match(lines[index]) if mark in lines[index] else None
        if found is None:
            counts[index] = counts[index + 1]
        elif found["bare"] is not None:
            counts[index] = counts[index + 1] + 1
    return counts
