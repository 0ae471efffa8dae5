"""Code out of a completion: tags, fences, strings and message lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_TAGS = ("answer", "code")
_PYTHON = ("python", "py", "python3", "Python")


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


def extract_code(completion: Any, *, bare: bool = False) -> str | None:
    """The Python code that a completion offers, or None if it offers none.

    The first of these that is there, the last one of its kind, without blank space around it: `<answer>` tags, `<code>` tags, a
    fence marked as Python, a fence without a mark. A tag or a fence that is not closed reaches to the end. A fence inside a
    tag is taken off.

    Args:
        completion: as `completion_text` takes it.
        bare: take the whole text where there is neither tag nor fence.
    """
    text = completion_text(completion).replace("\r\n", "\n")
    for tag in _TAGS:
        inside = _tagged(text, tag)
        if inside is not None:
            return (_fenced(inside) or inside).strip() or None
    fenced = _fenced(text)
    if fenced is None and bare:
        fenced = text
    return (fenced or "").strip() or None


def _tagged(text: str, tag: str) -> str | None:
    begin = text.rfind(f"<{tag}>")
    if begin < 0:
        return None
    return text[begin + len(tag) + 2 :].split(f"</{tag}>", 1)[0]


def _fenced(text: str) -> str | None:
    """The last fence marked as Python, else the last one without a mark."""
    marked = plain = None
    inside: list[str] | None = None
    mark = fence = ""
    for line in text.split("\n"):
        stripped = line.strip()
        if inside is None:
            if stripped.startswith("```"):
                fence = stripped[: len(stripped) - len(stripped.lstrip("`"))]
                mark, inside = stripped[len(fence) :].strip(), []
        elif stripped == fence:
            marked, plain = _kept(mark, inside, marked, plain)
            inside = None
        else:
            inside.append(line)
    if inside is not None:
        marked, plain = _kept(mark, inside, marked, plain)
    return marked if marked is not None else plain


def _kept(mark: str, lines: list[str], marked: str | None, plain: str | None) -> tuple[str | None, str | None]:
    text = "\n".join(lines)
    if mark.split(" ")[0].split("{")[0] in _PYTHON:
        return text, plain
    return marked, plain if mark else text
