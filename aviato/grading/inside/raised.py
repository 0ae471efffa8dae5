"""Runs beside the tests: an exception of the solution, made of what its sandbox says of it (`raising.py`). Follows `kinds.py`.

Its class is a built-in one, or one of a library that the tests have loaded. Of a class of the solution's own there is one of
that name, derived from what that is derived from. Never does one come that ends, skips or cuts short more than a call, and
nothing that the solution has written is run to make it.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from aviato.grading.inside.packing import data_among, refused, unpack
    from aviato.grading.inside.standin import named_class

TEXT_BYTES = 2000
LONGEST_NAME = 100
DEEPEST_CHAIN = 3
MOST_PARTS = 20
MOST_BASES = 20
FAILED = 70
SILENT = (StopIteration, StopAsyncIteration)
"""They would end the test's own loop, as if all of it had passed."""
FRAMEWORKS = ("unittest", "pytest", "_pytest", "pluggy", "hypothesis", "doctest", "bdb", "nose", "twisted")
"""How the names of libraries begin whose exceptions say what becomes of a test."""
MEANT = frozenset(("SkipTest", "Skipped", "skipped", "Failed", "XFailed", "xfailed", "CollectError", "Exit", "not_run"))
"""Names by which such are known."""
MADE_HERE = "_aviato_made"
"""Attribute of the classes that are made here."""
MOST_NAMES, MOST_NAMED = 50, 1000
MEANT_AS_CLASSES: set[str] = set()
"""Names in the solution that tests may mean as classes."""
NAMED: dict[tuple[str, str], Any] = {}
"""File and name of such → what stands for it."""


class SolutionError(Exception):
    """The solution raised an exception of a class of its own."""


class SolutionStop(SolutionError):
    """The solution raised `StopIteration`, of a function, which would end the test's own loop as if all of it had passed."""


class SolutionFailed(BaseException):
    """The solution gave neither data nor an exception: it cannot be loaded, or has ended. No test expects that."""


class SolutionExit(SystemExit):
    """The solution has called `exit()`. It ends what expects it as such, and nobody's program as if that had passed."""

    def __init__(self, code: Any) -> None:
        super().__init__(code)
        self._code = code

    @property
    def code(self) -> Any:  # type: ignore[override]
        """What it has called it with; for the interpreter, which nobody has called, that of a failure."""
        try:
            sys._getframe(1)
        except ValueError:
            return FAILED
        return self._code


def error_of(said: Any, libraries: Mapping[str, Any], depth: int = 0) -> BaseException:
    """The solution's exception.

    Args:
        said: what its sandbox says of it.
        libraries: the modules among which its classes are looked for: to import one because the solution says so could do
            whatever that does.
        depth: at which it belongs to others.
    """
    try:
        names, message, *forms = said
        names, message = [str(name) for name in names[:MOST_BASES]], shown(str(message))
        arguments, attributes, belongings, known_as = forms or (None, None, [], [])
        given = read_data(arguments, list)
        if names[:1] == ["SystemExit"]:
            codes = [message] if given is None else given
            return SolutionExit(codes[0] if len(codes) == 1 else codes or None)
        if "Exception" in names:
            parts = [error_of(part, libraries, depth + 1) for part in belongings[4 : 4 + MOST_PARTS] if depth < DEEPEST_CHAIN]
            given = [str(belongings[3]), parts] if parts else given
            meant = [(str(file), name) for file, name in known_as[:MOST_NAMES] if name in MEANT_AS_CLASSES]
            named = [named_class(*one) for one in meant if one in NAMED or len(NAMED) < MOST_NAMED]
            made = made_of(names, message, given, read_data(attributes, dict) or {}, libraries, (*named,), said)
            belong(made, belongings[:3], libraries, depth + 1)
            return made
        return SolutionFailed("%s: %s" % (names[0], message) if names else message)
    except Exception as error:
        return SolutionFailed("what came from the solution is no exception: %s" % shown(str(error)))


def made_of(
    names: list[str],
    message: str,
    given: Any,
    attributes: dict[Any, Any],
    libraries: Any,
    named: tuple[Any, ...],
    said: Any,
) -> Exception:
    """With the text that it had; with its arguments, unless they are no data: then the text is its only one."""
    module, _, name = names[0].rpartition(".")
    exact = class_of(names[0], libraries)
    if not module and names[0] in ("StopIteration", "Exception"):
        exact = SolutionStop if names[0] == "StopIteration" else Exception
    label = harmless(name) if module or named else ""
    if named and not label:
        label = "Named"
    own = {"__module__": shown(module or "builtins"), "__reduce__": lambda _: (remade, (said,)), MADE_HERE: True}
    for bases in [*([] if exact is None else [(exact,)]), *bases_of(names, libraries)]:
        try:
            bases = (*[each for each in bases if each is not Exception], *named) if named else bases
            kind: Any = type(label, bases, own) if label and bases != (exact,) else bases[0]
            made = made_by(kind, [message] if given is None else given, attributes)
            if shown(str(made)) == message:
                return made
            worded = type(kind.__name__, (kind,), {**own, "__module__": kind.__module__, "__str__": lambda _: message})
            return made_by(worded, [message] if given is None else given, attributes)
        except Exception:
            continue  # These classes cannot be together, or one takes no such arguments.
    return SolutionError(message)


def harmless(name: str) -> str:
    """What a class of that name is called here; empty: as what it is derived from."""
    return name if name.isidentifier() and len(name) <= LONGEST_NAME and name not in MEANT else ""


def made_by(kind: Any, given: list[Any], attributes: dict[Any, Any]) -> Exception:
    """One of a class with those arguments and attributes, of which no other part of the class has made anything."""
    made: Exception = kind.__new__(kind, *given)
    next(each for each in kind.__mro__ if each.__module__ == "builtins").__init__(made, *given)
    for name, value in attributes.items():
        if name == "__notes__":
            made.__notes__ = [str(note) for note in value]
        elif type(name) is str and name.isidentifier() and not name.startswith("_"):
            there = getattr(kind, name, None)
            if type(there).__name__ == "member_descriptor" or not hasattr(there, "__get__"):
                setattr(made, name, value)
    return made


def belong(made: Exception, belongings: list[Any], libraries: Mapping[str, Any], depth: int) -> None:
    """Give it its cause and what it was raised beside."""
    if depth > DEEPEST_CHAIN or len(belongings) != 3:
        return
    cause, context, hides = belongings
    if cause is not None:
        made.__cause__ = made.__context__ = error_of(cause, libraries, depth)
    if context is not None:
        made.__context__ = error_of(context, libraries, depth)
    made.__suppress_context__ = hides is True


def remade(said: Any) -> BaseException:
    """In another process of the tests."""
    return error_of(said, sys.modules)


def class_name(value: BaseException) -> str | None:
    """As what an exception is given to the solution; None if it is of the tests' own making."""
    kind: Any = type(value)
    while MADE_HERE in vars(kind):
        kind = kind.__base__
    if kind in (SolutionError, SolutionStop):
        return "Exception"
    if kind.__module__ == "builtins":
        return str(kind.__name__)
    name = "%s.%s" % (kind.__module__, kind.__name__)
    return name if class_of(name, sys.modules) is kind else None


def attributes_of(value: BaseException) -> dict[str, Any]:
    """Those of an exception that are data."""
    return data_among(vars(value).items(), refused)


def bases_of(names: list[str], libraries: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Of a class of the solution's own: those that it is derived from, or one of them."""
    known: list[Any] = []
    for name in names[1:]:
        found = class_of(name, libraries)
        if found is not None and not any(issubclass(each, found) for each in known):
            known.append(found)
    return [*([(*known,)] if len(known) > 1 else []), *[(each,) for each in known], (SolutionError,)]


def class_of(name: str, libraries: Mapping[str, Any]) -> Any:
    """The class of that name, if it is one of those of which there may be an exception, and says more than `Exception`."""
    module, _, own = name.rpartition(".")
    if module and not is_library(module, libraries):
        return None
    found = vars(libraries[module] if module else builtins).get(own)
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, SILENT) or found is Exception:
        return None
    return None if any(each.__module__.startswith(FRAMEWORKS) for each in found.__mro__) else found


def is_library(module: str, libraries: Mapping[str, Any]) -> bool:
    """Whether it is one of Python's, or an installed one, and loaded: none of the tests' own."""
    top = libraries.get(module.partition(".")[0])
    if module not in libraries or top is None:
        return False
    path = getattr(top, "__file__", None)
    if type(path) is not str:
        return module in sys.builtin_module_names
    return path.startswith(os.path.dirname(os.__file__) + "/") or "/site-packages/" in path or "/dist-packages/" in path


def read_data(form: Any, kind: type) -> Any:
    """What a form says, if it is data of that kind."""
    try:
        found = unpack(form, refused)
    except Exception:
        return None
    return found if type(found) is kind else None


def shown(text: str) -> str:
    return text if len(text) <= TEXT_BYTES else text[: TEXT_BYTES - 1] + "…"
