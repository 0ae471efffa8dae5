"""The marks that models and their chat templates write beside Markdown: thinking, tags, ends of a turn."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The tags that prompts ask code in: of DeepSeek-R1 and most of its followers; of HTML; of SWE-RL and of many prompts for GRPO.
TAGS = ("answer", "code", "solution")

_THOUGHTS = (
    "think|thinking|thought|thoughts|reason|reasoning|reflection|scratchpad|scratch_pad|analysis|rationale|chain_of_thought|cot"
    "|inner_monologue|internal_monologue|start_working_out|seed:think"
)
# Pairs that are no tags: their opening, their closing.
_PAIRS = (
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<start_working_out>", r"<end_working_out>"),
    (r"<\|channel\|>\s*(?:analysis|commentary)\b[^<]*+<\|message\|>", r"<\|channel\|>\s*final\b[^<]*+<\|message\|>"),
)
_ENDS = (
    r"<\|(?:im_end|eot_id|eom_id|eot|end_of_text|endoftext|end|eos|end_of_sentence|return|call|user|assistant|system|im_start"
    r"|start_header_id|END_OF_TURN_TOKEN|END_RESPONSE|end_of_solution|endofprompt|observation)\|>"
    r"|<｜(?:end▁of▁sentence|User|Assistant)｜>|<(?:end_of_turn|start_of_turn|eos|EOT|\[\s?end\s?\])>|</s>(?=\s|<|\Z)|\[/?INST\]"
)
# Inside a fence, where the line may be code: what no code ends a line with.
END = re.compile(_ENDS)
MARK = re.compile(
    "|".join(
        (
            rf"<(?P<close>/?)(?:(?P<tag>{'|'.join(TAGS)})|(?P<thought>{_THOUGHTS}))(?:\s[^<>]*+)?>",
            *(rf"(?P<open{index}>{begin})|(?P<end{index}>{end})" for index, (begin, end) in enumerate(_PAIRS)),
            rf"(?P<stop>{_ENDS})",
        )
    ),
    re.IGNORECASE,
)
# A line may have megabytes.
_NEAR = 200
_RUN = re.compile("`++")


class Mark:
    """One of them in a line: what it does, the name that opening and closing share, where it stands."""

    __slots__ = ("begin", "end", "kind", "name")

    def __init__(self, found: re.Match[str]) -> None:
        self.begin, self.end = found.span()
        if found["stop"]:
            self.kind, self.name = "stop", ""
        elif found["tag"]:
            self.kind, self.name = ("close" if found["close"] else "open"), found["tag"].lower()
        elif found["thought"]:
            self.kind, self.name = ("end_thought" if found["close"] else "thought"), found["thought"].lower()
        else:
            group = found.lastgroup or ""
            self.kind, self.name = ("thought" if group.startswith("open") else "end_thought"), group[-1]


@cache
def closing_of(name: str) -> re.Pattern[str]:
    """What closes the thinking of that name."""
    return re.compile(_PAIRS[int(name)][1] if name.isdigit() else rf"</{name}\s*>", re.IGNORECASE)


def marks(line: str, pos: int) -> Iterator[Mark]:
    """The marks of a line from `pos` on that stand neither in inline code nor between quotation marks."""
    if not any(sign in line for sign in "<[◁"):
        return
    spans = inline_code(line, pos)
    span = next(spans, None)
    for found in MARK.finditer(line, pos):
        while span is not None and span[1] <= found.start():
            span = next(spans, None)
        if (span is None or found.start() < span[0]) and not _is_quoted(line, found):
            yield Mark(found)


def inline_code(line: str, pos: int) -> Iterator[tuple[int, int]]:
    """The code spans of a line: from a run of backticks to the next one as long."""
    runs = list(_RUN.finditer(line, pos))
    following: dict[int, int] = {}
    partner = [0] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        length = len(runs[index][0])
        partner[index] = following.get(length, -1)
        following[length] = index
    index = 0
    while index < len(runs):
        if partner[index] < 0:
            index += 1
        else:
            yield runs[index].start(), runs[partner[index]].end()
            index = partner[index] + 1


def without_ends(text: str) -> str:
    """A text without the ends of a turn that it ends with."""
    kept = end = len(text)
    while True:
        while end > 0 and text[end - 1] in " \t\n":
            end -= 1
        found = [match for match in END.finditer(text, max(0, end - 40), end) if match.end() == end]
        if not found:
            return text[:kept]
        kept = end = found[0].start()


def _is_quoted(line: str, found: re.Match[str]) -> bool:
    """Between quotation marks, or behind one mark too many: in a string of code."""
    before = line[max(0, found.start() - _NEAR) : found.start()]
    behind = line[found.end() : found.end() + _NEAR]
    if before and before[-1] in "\"'" and behind.startswith(before[-1]):
        return True
    return before.count('"') % 2 == 1 and '"' in behind
