"""What tasks, cases and checkers are given, checked when they are made: whatever passes here can be run."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Set
from numbers import Number
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.exceptions import AviatoValidationError
from aviato.grading.inside.packing import SEQUENCES, pack
from aviato.languages import ALIASES, RECIPES
from aviato.values.text import encode, is_unicode, shown

if TYPE_CHECKING:
    from aviato.languages import Recipe

MOST_ARGUMENT_BYTES = 128 << 10
"""Of all arguments of a program; a kernel takes no more in one."""
LONGEST_NAME_BYTES = 255
LONGEST_PATH_BYTES = 4095
DEEPEST_VALUE = 95
"""How deep a value may be nested, the list of arguments included: a dict crosses as two brackets, and Python reads some 200."""
NESTING = ("d", *[tag for tag, _ in SEQUENCES])


def language(value: Any) -> str:
    """A language by its name in `RECIPES`, of that name or another, in any case.

    Raises:
        TypeError: no text.
        AviatoValidationError: it is not known.
    """
    if not isinstance(value, str):
        raise TypeError(f"language must be a str such as 'python', not {type(value).__name__}")
    word = value.strip().lower()
    name = ALIASES.get(word, word)
    if name in RECIPES:
        return name
    known = [f"{each} ({', '.join(also)})" if (also := _also(each)) else each for each in sorted(RECIPES)]
    raise wrong("language", f"language must be one of {', '.join(known)}, got {value!r}")


def files(value: Any) -> dict[str, bytes]:
    """Paths and contents of files that are written before something runs.

    Raises:
        TypeError: no mapping of str to bytes.
        AviatoValidationError: a path that is none of a file, or two that stand in each other's way.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"files must be a dict of paths and contents, not {type(value).__name__}")
    found: dict[str, bytes] = {}
    plain: dict[str, str] = {}
    for path, content in value.items():
        if not isinstance(path, str):
            raise TypeError(f"files must have paths that are str, not {type(path).__name__}: {path!r}")
        if isinstance(content, str):
            raise TypeError(f"files must have contents that are bytes, and that of {path!r} is text: write .encode()")
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise TypeError(f"files must have contents that are bytes, not {type(content).__name__} as that of {path!r}")
        first = plain.setdefault(_plain(path), path)
        if first != path:
            raise wrong("files", f"{first!r} and {path!r} are one file")
        found[path] = bytes(content)
    for own, path in plain.items():
        above = next((each for each in _above(own) if each in plain), None)
        if above is not None:
            raise wrong("files", f"{plain[above]!r} is a file, and {path!r} needs a directory of that name")
    return found


def files_of(recipe: Recipe) -> tuple[str, ...]:
    """The files that the code of a language has by itself: its source, and what is made of it."""
    made = (posixpath.normpath(recipe.run[0]),) if recipe.run[0].startswith("./") else ()
    return (recipe.file, *made, *(("Main.class",) if recipe.file == "Main.java" else ()))


def check_own(given: Mapping[str, bytes], own: Iterable[str], whose: str) -> None:
    """Refuse files that stand where the code itself does.

    Args:
        given: checked by `files`.
        own: paths of the code's own.
        whose: names the code.

    Raises:
        AviatoValidationError: one does.
    """
    for path in given:
        plain = posixpath.normpath(path)
        for each in own:
            if each in (plain, *_above(plain)):
                raise wrong("files", f"{path!r} cannot be given: {each!r} is the file of {whose} itself")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings without NUL.

    Raises:
        TypeError: something else.
        AviatoValidationError: a NUL in one.
    """
    if value is None or isinstance(value, (Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of strings, not {type(value).__name__}")
    return checks.texts(name, value)


def arguments(value: Any) -> tuple[str, ...]:
    """Arguments that a program can be started with.

    Raises:
        TypeError: no list of strings.
        AviatoValidationError: too long, or with what no program can be given.
    """
    found = strings("args", value)
    size = sum(len(word.encode()) + 1 for word in found)
    if size > MOST_ARGUMENT_BYTES:
        message = f"args have {size} bytes, and may have {MOST_ARGUMENT_BYTES}; give what is long as stdin or as a file"
        raise wrong("args", message)
    return found


def returncode(value: Any) -> int | None:
    """A returncode of a program, or None.

    Raises:
        TypeError: no int.
        AviatoValidationError: none of 0 to 255.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"returncode must be an int from 0 to 255, or None for any, not {type(value).__name__}: {value!r}")
    if not 0 <= value <= 255:
        hint = f"; killed by signal {-value} is {128 - value}" if -65 < value < 0 else ""
        raise wrong("returncode", f"returncode must be 0 to 255, or None for any, got {value}{hint}")
    return value


def text_or_bytes(name: str, value: Any) -> str | bytes:
    """Text or bytes.

    Raises:
        TypeError: something else.
    """
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a str or bytes, not {type(value).__name__}")
    return value


def plain(text: str) -> str:
    """A text as a `str` and nothing more: one of numpy's shows itself as no literal."""
    return text if type(text) is str else str.__str__(text)


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}: {value!r}")
    return value


def packed(name: str, value: Any, *, numbers: bool = False) -> Any:
    """Data as it crosses.

    Args:
        name: of the argument.
        value: of the caller's making.
        numbers: whether all kinds of numbers will do, such as `Decimal`; their form is not to be sent.

    Raises:
        AviatoValidationError: no data, or nested too deep.
    """

    def refuse(item: Any) -> Any:
        if numbers and isinstance(item, Number):
            return 0
        kind = type(item).__name__
        raise wrong(name, f"{name} holds a {kind}, and takes data alone: numbers, text, bytes, lists, tuples, sets, dicts")

    try:
        form = pack(value, refuse)
        deep = _depth(form) > DEEPEST_VALUE
    except AviatoValidationError:
        raise
    except (ValueError, RecursionError):  # deeper than `pack` goes
        deep = True
    if deep:
        raise wrong(name, f"{name} holds a value that is nested more than {DEEPEST_VALUE} deep, and cannot cross")
    return form


def wrong(name: str, message: str) -> AviatoValidationError:
    """The error about an argument."""
    return AviatoValidationError(message, field_violations={name: message})


def _also(name: str) -> list[str]:
    return [alias for alias, meant in ALIASES.items() if meant == name]


def _plain(path: str) -> str:
    """A path that is written in one way alone."""
    why = None
    if not path or path.endswith(("/", "/.")) or path == ".":
        why = "is a directory" if path else "is empty"
    elif "\0" in path or not is_unicode(path):
        why = "holds a NUL or a lone surrogate"
    elif ".." in path.split("/"):
        why = "leads out of its directory"
    elif len(encode(path)) > LONGEST_PATH_BYTES or max(len(encode(part)) for part in path.split("/")) > LONGEST_NAME_BYTES:
        why = "is longer than a system takes"
    if why is not None:
        raise wrong("files", f"files must have paths of files: {shown(repr(path), 100)} {why}")
    return posixpath.normpath(path)


def _above(path: str) -> list[str]:
    """The directories above a path."""
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]


def _depth(form: Any) -> int:
    """How many lists, tuples, sets or dicts stand in each other."""
    if not isinstance(form, list) or form[0] not in NESTING:
        return 0
    inner = [each for pair in form[1:] for each in pair] if form[0] == "d" else form[1:]
    return 1 + max(map(_depth, inner), default=0)
