"""Tags of sandboxes as labels of pods. Pure.

A label's value has at most 63 letters, digits, `-`, `_` and `.`, and begins and ends with a letter or digit; a tag is any text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "aviato.dev/"
CLAIM, PLACE, SANDBOX = f"{PREFIX}claim", f"{PREFIX}place", f"{PREFIX}sandbox"
SERVER, NETWORK = f"{PREFIX}server", f"{PREFIX}network"
TAG = "tag.aviato.dev/"
TAGS = f"{PREFIX}tags"
"""An annotation: all tags exactly, as JSON."""
LONGEST = 63
DIGEST_CHARACTERS = 8
VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""What can be a label's."""
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+")
_OUTER = "-_."
_SEPARATOR = re.compile(r"[=:]")


def tag_labels(tags: Iterable[str]) -> dict[str, str]:
    """The labels by which a pod is found by its tags.

    A tag `run=7` or `wandb-run:7` is the label `tag.aviato.dev/run` or `tag.aviato.dev/wandb-run` with the value `7`, and
    `eval` is `tag.aviato.dev/eval` without one. What cannot stand in a label becomes `-`, with an end that says which it was.
    Of tags that have the same name the first is the label's.
    """
    found: dict[str, str] = {}
    for tag in tags:
        name, *rest = _SEPARATOR.split(tag, maxsplit=1)
        found.setdefault(TAG + (_fit(name) or _digest(name)), _fit(rest[0]) if rest else "")
    return found


def tag_annotation(tags: Iterable[str]) -> dict[str, str]:
    """All of them as they were given."""
    given = list(tags)
    return {TAGS: json.dumps(given, ensure_ascii=False)} if given else {}


def _fit(text: str) -> str:
    """The text, or what is like it and can stand in a label; empty only for nothing."""
    plain = _OTHERS.sub("-", text).strip(_OUTER)
    if plain == text and len(text) <= LONGEST:
        return text
    most = LONGEST - 1 - DIGEST_CHARACTERS
    kept = plain[:most].rstrip(_OUTER)
    return f"{kept}-{_digest(text)}" if kept else _digest(text) if text else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]
