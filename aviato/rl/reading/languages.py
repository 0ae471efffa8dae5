"""What the label of a fence means: `Python3.11`, `{.cpp .numberLines}`, `py title="x"`, `solution.rs`."""

from __future__ import annotations

import re

_ALIASES: dict[str, str] = {
    "python": "py pyw python python2 python3 py2 py3 ipython ipython3 cpython pypy pypy3 python-code",
    "cpp": "cpp c++ cc cxx hpp hxx g++ gnu++ gnucpp cplusplus",
    "c": "c h gcc gnuc ansic",
    "java": "java openjdk",
    "javascript": "javascript js node nodejs mjs cjs jsx ecmascript",
    "typescript": "typescript ts tsx mts cts",
    "go": "go golang",
    "rust": "rust rs",
    "bash": "bash sh shell zsh ksh shellscript shell-script",
    "diff": "diff patch udiff gitdiff git-diff",
    "csharp": "csharp c# cs",
    "kotlin": "kotlin kt kts",
    "ruby": "ruby rb",
    "php": "php",
    "sql": "sql",
    "markdown": "markdown md",
    "": "code",
}
_NAMES = {"": ""} | {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_WORD = re.compile(r"[^\s,;{}()\[\]|=\"']*")
INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_VERSION = re.compile(r"[-_]?v?[0-9][0-9.xz]*\Z")
# What stands behind a label and is code all the same: what begins a statement, where an attribute would have `key=`.
_CODE_BEHIND = re.compile(
    r"(?:(?:import|from|def|class|async|for|while|if|return|with|assert|lambda|let|const|var|fn|func|public|int|void)\s+\S"
    r"|@\w|#\w*include|[\w.]+\()"
)


def canonical(name: str) -> str:
    """The name of a language that a word means, in lower case; unknown words mean themselves, an empty one no language."""
    word = name.strip().lower().removeprefix("language-").removeprefix("lang-").strip(".#!`")
    for candidate in (name.strip().lower(), word, _VERSION.sub("", word)):
        if candidate in _NAMES:
            return _NAMES[candidate]
    stem, dot, extension = word.rpartition(".")
    if dot and stem and extension in _NAMES:
        return _NAMES[extension]
    return word


def label(info: str) -> str:
    """The language that the info string of a fence names, "" if it names none."""
    return canonical(_word(info))


def is_known(info: str) -> bool:
    """Whether an info string begins with the name of a language that is known here."""
    return label(info) in _ALIASES and _word(info) != ""


def code_behind(info: str) -> str | None:
    """The code that stands on the line of an opening fence behind its label, or None."""
    info = info.strip()
    word = _WORD.match(info)
    behind = info[word.end() :].strip() if word and word[0] else ""
    return behind if _CODE_BEHIND.match(behind) else None


def _word(info: str) -> str:
    """The first word; of attributes in braces, the first that names something."""
    info = INVISIBLE.sub("", info).strip()
    if info.startswith("{"):
        info = info[1:].split("}", 1)[0].strip().lstrip(".#")
    word = _WORD.match(info)
    return word[0].split(":", 1)[0] if word else ""
