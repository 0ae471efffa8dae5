"""Prose against code: what an answer without a fence holds.

In doubt it is code: wrong code gets a verdict, and only what is surely prose is no code.
"""

from __future__ import annotations

import re

from aviato.values.parsing import parsed

# A text this short is parsed where its lines leave a doubt. A longer one has lines that tell.
_PARSED_CHARACTERS = 2_000
# The beginning tells; the bounds keep the cost of a text apart from its length.
_JUDGED_CHARACTERS = 200_000
_JUDGED_OF_A_LINE = 1_000
# As one program: 100 kB take the parser some tens of milliseconds, and none of its limits is near.
_PROGRAM_CHARACTERS = 100_000

_WORDS_OF_LANGUAGES = """
    and as assert async await break class continue def del elif else except finally for from global if import in is
    lambda nonlocal not or pass raise return try while with yield match case none true false self print abstract auto
    bool boolean byte catch char const default delete do double enum export extends extern final float fn func function
    goto implements inline int interface let long mut namespace new null override package private protected pub public
    register short signed sizeof static str string struct super switch template this throw throws type typedef typename
    union unsigned use using var virtual void volatile where echo then fi done esac local readonly"""
_KEYWORDS = frozenset(_WORDS_OF_LANGUAGES.split())
# Of a sentence that names both tags of a pair.
_BETWEEN_TAGS = ("and", "or", "to", "/", "tag", "tags", ",", "and a closing")
# Python, Go, Rust, C and the like: lines that no prose has.
_SURE = re.compile(
    r"""(?:async\s+)?def\s+\w+\s*[(\[] | class\s+\w+\s*(?:[(:{<]|\Z) | from\s+[\w.]+\s+import\b
    | import\s+[\w.*]+(?:\s+as\s+\w+)?(?:\s*,\s*[\w.]+(?:\s+as\s+\w+)?)*+\s*;?\Z | import\s+["({*]
    | @\w[\w.]*+(?:\(.*)?\Z | \#\s*(?:include|define|pragma|ifdef|ifndef)\b | \#!
    | func\s+[\w(] .*\{ | fn\s+\w+\s*[<(] | package\s+\w+;?\Z | using\s+\w.*;\Z | [})\]]++[;,]?\Z
    | (?:else|try|finally|do)\s*[:{]\Z | [-+]{3}\s[ab]/ | @@\s | diff\s--git\s""",
    re.VERBOSE,
)
# Lines that prose may have too, if it has words in a row beside.
_LIKELY = re.compile(
    r"""(?:if|elif|while|for|with|switch|match|case|except|catch)\b.*[:{]\Z
    | (?:return|raise|yield|assert|del|throw|pass|break)\b
    | [\w.\[\]"'()*]+(?:\s*,\s*[\w.\[\]"'()*]+)*+(?:\s*:[^=]+)?\s*(?:[-+*/%@&|^]|//|\*\*|>>|<<|:)?=(?!=)\s*\S
    | [\w.]+\s?\( | .*[;{}]\Z | .*\)\Z
    | (?:let|const|var|function|public|private|static|void|int|export)\b""",
    re.VERBOSE,
)
_STRINGS = re.compile(r"""(\"{3}|'{3})[\s\S]*?(?:\1|\Z) | "[^"\n]*+" | (?<!\w)'[^'\n]*+' | /\*[\s\S]*?(?:\*/|\Z)""", re.VERBOSE)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ONLY_WORDS = re.compile(r"(?:[^\W\d_]|[ ,.!?:;'’*\-–—…])+\Z")
_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{2}")
_PATCH = re.compile(r"^(?:diff --git |--- |\+\+\+ |@@ |Index: |\*\*\* )", re.MULTILINE)
_NOT_IN_A_SENTENCE = re.compile(r"[;{}$|<>=]")


def is_prose(text: str, language: str) -> bool:
    """Whether a text is surely no code: natural language, or for a diff anything else.

    For Python, what parses is code, comments alone apart, and so is what has one line that only code has: code that was cut
    off, or that is wrong.
    """
    if language == "diff":
        return _PATCH.search(text) is None
    if text.strip().lower() in _BETWEEN_TAGS:
        return True
    lines = _lines(text)
    if language == "python" and lines and all(line.startswith("#") for line in lines):
        return not text.lstrip().startswith("#!")
    if language not in _READ:
        return any(_is_sentence(line) for line in lines)
    if any(_SURE.match(line) for line in lines):
        return False
    if sum(map(_is_prose, lines)) <= sum(map(_is_code, lines)):
        return False
    return not (language == "python" and _is_short_expression(text))


def has_code(text: str, language: str) -> bool:
    """Whether a text has what only code has; an expression of Python is enough."""
    return has_statements(text, language) or (
        language == "python" and not is_prose(text, language) and _is_short_expression(text)
    )


def has_statements(text: str, language: str) -> bool:
    """Whether a text has lines that only code has, and no output of a program."""
    if language == "diff":
        return _PATCH.search(text) is not None
    return not is_prose(text, language) and any(_is_code(line) for line in _lines(text))


def is_program(text: str) -> bool:
    """Whether a text is Python as it stands, from its first line to its last."""
    return len(text) <= _PROGRAM_CHARACTERS and parses(text)


def parses(text: str) -> bool:
    """Whether Python can read a text. Nothing is run; what is too deep for the parser counts as no."""
    try:
        parsed(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


_READ = frozenset(("python", "cpp", "c", "java", "javascript", "typescript", "go", "rust", "csharp", "kotlin"))


def _lines(text: str) -> list[str]:
    begin = _STRINGS.sub('""', text[:_JUDGED_CHARACTERS])
    return [stripped for line in begin.split("\n") if (stripped := line[:_JUDGED_OF_A_LINE].strip())]


def _is_short_expression(text: str) -> bool:
    # A backslash may be an escape that Python warns of, on the trainer's stderr.
    return len(text) <= _PARSED_CHARACTERS and "\\" not in text and not _IDEOGRAPHS.search(text) and parses(text.strip())


def _is_code(line: str) -> bool:
    return _SURE.match(line) is not None or (_LIKELY.match(line) is not None and _words_in_a_row(line) < 3)


def _is_prose(line: str) -> bool:
    if line.startswith(("#", "//")):
        return False
    if _IDEOGRAPHS.search(line):
        return True
    if _words_in_a_row(line) >= 3 or (_is_sentence(line) and line[-1] != ":"):
        return True
    return _ONLY_WORDS.match(line) is not None and _is_phrase(line)


def _is_sentence(line: str) -> bool:
    return line[0].isupper() and line[-1] in ".!?:" and line.count(" ") >= 3 and not _NOT_IN_A_SENTENCE.search(line)


def _is_phrase(line: str) -> bool:
    words = [word.lower() for word in _WORD.findall(line)]
    return len(words) >= 2 and (
        line[-1] in ".!?" or line.startswith(("- ", "* ")) or sum(word not in _KEYWORDS for word in words) >= 2
    )


def _words_in_a_row(line: str) -> int:
    """The longest row of words with a blank between each, none of them a word of a language."""
    longest = row = end = 0
    for word in _WORD.finditer(line):
        if line[end : word.start()] not in (" ", ", "):
            row = 0
        row = 0 if word[0].lower() in _KEYWORDS else row + 1
        longest, end = max(longest, row), word.end()
    return longest
