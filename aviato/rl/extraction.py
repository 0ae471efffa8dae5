"""Code out of a completion: by CommonMark's rules for fences, and by what models do beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.rl.reading.habits import Completion, Region
from aviato.rl.reading.languages import INVISIBLE, canonical, label
from aviato.rl.reading.marks import TAGS, without_ends
from aviato.rl.reading.prose import has_statements, is_program, is_prose

if TYPE_CHECKING:
    from aviato.rl.reading.commonmark import Fence

_LINE_WITH_FENCE = re.compile("^[ \t>\u200b-\u200f\u2060\ufeff]*(?:`{3}|~{3})[^\n]*$", re.MULTILINE)
_EDGES = " \t\n\r\f\v\u200b\u200c\u200d\u2060\ufeff"
_ENCLOSED = re.compile(r"<(\w+)(?:\s[^<>]*)?>(.*)</\1\s*>\Z", re.DOTALL)
_MAX_MARKDOWN_DEPTH = 2


@dataclass(frozen=True)
class Extraction:
    """The code that a completion offers.

    Attributes:
        code: without blank space around it; None if there is none. A diff keeps its blanks and ends with a line end.
        language: of the code, by its common name in lower case (`cpp` for `C++`); None if there is no code.
        rule: what matched. With code: `answer_tag`, `code_tag`, `solution_tag` (what the tag encloses, or the fence in it),
            `fence` (marked as the language), `open_fence` (so marked, and closed by nothing), `closing_fence_only` (the prompt
            opened it), `plain_fence` (without a mark), `bare` (the whole text). Without: `truncated_thinking` (opened and never
            closed), `prose` (the whole text was asked for and is none), `none`.
    """

    code: str | None
    language: str | None
    rule: str


def completion_text(completion: Any) -> str:
    """The text of a completion, whatever form the trainer gives it.

    Args:
        completion: a string; a message (`{"role", "content"}`) or a list of them, of which the assistant's last one counts;
            a content that is a list of parts, of which the text parts count; bytes; or None, which is empty.

    Raises:
        TypeError: nothing of these.
    """
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, (bytes, bytearray)):
        return bytes(completion).decode(errors="replace")
    if isinstance(completion, Mapping):
        return completion_text(completion["text"] if "text" in completion else completion.get("content"))
    if isinstance(completion, Iterable):
        items = list(completion)
        messages = [item for item in items if isinstance(item, Mapping) and "role" in item]
        if messages:
            of_the_model = [message for message in messages if message["role"] == "assistant"] or messages
            return completion_text(of_the_model[-1])
        return "".join(completion_text(item) for item in items)
    raise TypeError(f"a completion must be text, messages or None, not {type(completion).__name__}")


def extract(completion: Any, *, language: str = "python", bare: bool = False) -> Extraction:
    """The code that a completion offers, and the rule by which it was found.

    Thinking (`<think>`, `<reasoning>`, `[THINK]` and the like) is taken out first; a closing without its opening, which stands
    in the prompt, ends thinking that began with the completion; thinking that never ends hides all that follows it. The end of
    a turn (`<|im_end|>`, `</s>`) ends the text. Then the first of these that is there:

    1. `<answer>`, then `<code>`, then `<solution>`, outside fences and inline code, that encloses code: the last of its kind. A
       fence inside is taken off; prose is no code. One that is not closed reaches to the end. A `<code>` inside a sentence
       comes after the fences.
    2. A fence marked as the language: the last one. So do open-r1 and verl; LiveCodeBench takes the last of any mark. It can be
       an example of use after the solution, but a model that corrects itself writes the better code last, and a reward that
       judged another block than the reference harness does would train another thing.
    3. A fence without a mark: the last that has what only code has, else the last that is not prose.
    4. With `bare`, the whole text, if it is not prose.

    Fences are those of CommonMark 0.31, HTML blocks apart: backticks and tildes of any length, in lists and quotes, whose
    indentation and marks are taken off. Beside it: fences glued to text or code, opened in the prompt, closed by a tag, by
    another opening or by the end of the text. Time is linear in the text, and no text raises.

    Args:
        completion: as `completion_text` takes it.
        language: a name, in any of its spellings (`c++`, `golang`, `sh`, `diff`); an unknown one is a label as it stands.
        bare: take the whole text where there is neither tag nor fence, or where the whole is a Python program.

    Raises:
        TypeError: a completion that is none of these, or a language that is not a name.
    """
    if not isinstance(language, str) or not language.strip():
        raise TypeError(f"language must be the name of a language, such as 'python' or 'cpp', not {language!r}")
    return _extract(_normal(completion_text(completion), canonical(language)), canonical(language), bare, 0)


def extract_code(completion: Any, *, language: str = "python", bare: bool = False) -> str | None:
    """The code that a completion offers, or None if it offers none: `extract(...).code`."""
    return extract(completion, language=language, bare=bare).code


def _normal(text: str, language: str) -> str:
    """With line ends of one kind, and without the characters that nobody sees where they would hide a fence."""
    # In a diff some lines have ends that are those of the file's.
    if language != "diff" or text.count("\r\n") in (0, text.count("\n")):
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if INVISIBLE.search(text):
        text = _LINE_WITH_FENCE.sub(lambda line: INVISIBLE.sub("", line[0]), text)
    return without_ends(text)


def _extract(text: str, language: str, bare: bool, depth: int) -> Extraction:
    if bare and language == "python" and is_program(_tidy(text, language)):
        return _found(text, language, "bare")
    completion = Completion(text, language)
    completion.read()
    inline = [region for region in completion.regions if region.inline and region.tag == "code"]
    found = (
        _in_regions(completion, [region for region in completion.regions if region not in inline])
        or _in_fences(completion, 0, len(completion.fences))
        or _in_regions(completion, inline)
        or _in_markdown(completion, depth)
    )
    if found is not None:
        return found
    if completion.truncated_thinking:
        return Extraction(None, None, "truncated_thinking")
    rest = completion.between(completion.begin, completion.end)
    if not bare or completion.fences or not rest.strip(_EDGES):
        return Extraction(None, None, "none")
    return Extraction(None, None, "prose") if is_prose(rest, language) else _found(rest, language, "bare")


def _in_regions(completion: Completion, regions: list[Region]) -> Extraction | None:
    for tag in TAGS:
        for region in reversed(regions):
            code = _enclosed(completion, region) if region.tag == tag else None
            if code is not None:
                return _found(code, completion.language, f"{tag}_tag")
    return None


def _enclosed(completion: Completion, region: Region) -> str | None:
    fenced = _in_fences(completion, region.first, region.last)
    if fenced is not None:
        return fenced.code
    if any(fence.text.strip() for fence in completion.fences[region.first : region.last]):
        return None
    text = completion.between(region.begin, region.end)
    for _ in TAGS:
        inside = _ENCLOSED.match(text.strip(_EDGES))
        text = inside[2] if inside and inside[1].lower() in TAGS else text
    begin = text.lstrip(_EDGES)
    markup = completion.language == "python" and begin.startswith("<") and not begin.startswith("<<")
    return None if markup or not begin.strip(".…`~ \n") or is_prose(text, completion.language) else text


def _in_fences(completion: Completion, first: int, last: int) -> Extraction | None:
    language = completion.language
    for index in range(last - 1, first - 1, -1):
        fence = completion.fences[index]
        if label(fence.info) == language and fence.text.strip(_EDGES):
            of_the_prompt = index in completion.opened_in_prompt
            rule = "closing_fence_only" if of_the_prompt else "fence" if fence.closed else "open_fence"
            return _found(fence.text, language, rule)
    plain = _last_plain(completion.fences[first:last], language)
    return None if plain is None else _found(plain.text, language, "plain_fence")


def _last_plain(fences: list[Fence], language: str) -> Fence | None:
    plain = [fence for fence in fences if not label(fence.info) and fence.text.strip(_EDGES)]
    sure = (fence for fence in reversed(plain) if has_statements(fence.text, language))
    likely = (fence for fence in reversed(plain) if not is_prose(fence.text, language))
    return next(sure, None) or next(likely, None)


def _in_markdown(completion: Completion, depth: int) -> Extraction | None:
    """A document in a fence of its own: of the whole answer, which has the code in it."""
    for fence in reversed(completion.fences):
        if label(fence.info) == "markdown" and completion.language != "markdown" and depth < _MAX_MARKDOWN_DEPTH:
            found = _extract(fence.text, completion.language, False, depth + 1)
            if found.code is not None:
                return found
    return None


def _found(text: str, language: str, rule: str) -> Extraction:
    code = _tidy(text, language)
    return Extraction(code, language, rule) if code else Extraction(None, None, "none")


def _tidy(text: str, language: str) -> str:
    """Without blank lines around it, the indentation that all lines share, and a line that only names the language."""
    if language == "diff":
        return text.strip("\n") + "\n"
    first, _, rest = text.strip(_EDGES).partition("\n")
    if (
        rest.strip()
        and canonical(first.strip(" \t:")) == language
        and first.strip(" \t:").lower() in (language, "py", "python3", "c++", "js")
    ):
        text = rest
    lines = text.rstrip(_EDGES).split("\n")
    while lines and not lines[0].strip(_EDGES):
        del lines[0]
    if not lines:
        return ""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    if indent and all(line.startswith(indent) or not line.strip() for line in lines):
        lines = [line[len(indent) :] for line in lines]
    return "\n".join(lines).strip(_EDGES)
