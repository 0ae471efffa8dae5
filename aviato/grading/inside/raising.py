"""Runs in the solution's sandbox: what is said of an exception, from which `raised.py` makes it again. Follows `calls.py`.

Nobody trusts it. It is a list: the names of its classes, its text, the forms of its arguments and of its attributes, and what
else it has: that of its cause, that of what it was raised beside, whether that is hidden, and those of its parts. Last comes
by which names modules of the solution have its classes, each with the module's file.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aviato.grading.inside.calls import as_json, written
    from aviato.grading.inside.packing import data_among, no_data

LONGEST_FORM = 4000
DEEPEST_CHAIN = 3
MOST_PARTS = 20
MOST_NAMES = 50
LOADED: dict[str, Any] = {}
"""Modules of the solution that a test has named, by their files in its directory."""
BEGINS: list[str] = [""]
"""That directory."""


def failure(names: list[str], message: str) -> bytes:
    """An answer without a value."""
    return b'{"error":%b}' % written([names, message[:LONGEST_FORM]]).encode("ascii")


def raised(error: BaseException) -> bytes:
    """The answer of a call that has raised it."""
    return b'{"error":%b}' % said_of(error).encode("ascii")


def exception_of(name: str, args: Any, attributes: dict[str, Any]) -> BaseException:
    """An exception that the test gives."""
    module, _, own = name.rpartition(".")
    kind = getattr(__import__(module or "builtins", fromlist=[own]), own)
    made: BaseException = kind(*args) if not module else kind.__new__(kind, *args)
    vars(made).update(attributes)
    return made


def said_of(error: BaseException, depth: int = 0) -> str:
    names = [name_of(kind) for kind in type(error).__mro__]
    told = written([names, text_of(error)[:LONGEST_FORM]])[1:-1]
    parts = (told, arguments_of(error), attributes_of(error), belongings_of(error, depth + 1), written(known_as(error)))
    return "[%s,%s,%s,%s,%s]" % parts


def known_as(error: BaseException) -> list[list[str]]:
    """The files and names by which a test may have imported a class that it is of."""
    found: list[list[str]] = []
    try:
        modules = dict(LOADED)
        for kind in type(error).__mro__:
            name = kind.__module__
            while name:
                file = getattr(sys.modules.get(name), "__file__", None)
                if type(file) is str and file.startswith(BEGINS[0]):
                    modules.setdefault(file[len(BEGINS[0]) :], sys.modules[name])
                name = name.rpartition(".")[0]
        for file, module in modules.items():
            for name, value in list(vars(module).items()):
                if isinstance(value, type) and name[:2] != "__" and isinstance(error, value) and len(found) < MOST_NAMES:
                    found.append([file, name])
    except BaseException:
        pass  # Whatever its classes do, it is an exception.
    return found


def name_of(kind: type) -> str:
    module, name = kind.__module__, kind.__name__
    return name if module == "builtins" else "%s.%s" % (module, name)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def arguments_of(error: BaseException) -> str:
    """The form of its arguments, where they are data and short."""
    try:
        args = error.args
        if isinstance(error, OSError) and error.errno is not None:
            args = (error.errno, error.strerror, error.filename)[: 3 if error.filename is not None else 2]
        form = as_json(list(args))
        return form if len(form) <= LONGEST_FORM else "null"
    except BaseException:
        return "null"


def attributes_of(error: BaseException) -> str:
    """The form of its attributes that are data, where they are short."""
    try:
        of_names = isinstance(error, (AttributeError, ImportError, NameError))
        items = [*vars(error).items(), *([("name", getattr(error, "name", None))] if of_names else [])]
        form = as_json(data_among(items, no_data))
        return form if len(form) <= LONGEST_FORM else '["d"]'
    except BaseException:
        return '["d"]'


def belongings_of(error: BaseException, depth: int) -> str:
    try:
        if depth > DEEPEST_CHAIN:
            return "[]"
        chain = [error.__cause__, None if error.__cause__ is error.__context__ else error.__context__]
        told = ["null" if one is None else said_of(one, depth) for one in chain]
        told.append(written(error.__suppress_context__ is True))
        group: Any = getattr(builtins, "ExceptionGroup", ())  # Not before Python 3.11.
        if isinstance(error, group):
            told += [written(error.message), *[said_of(one, depth) for one in error.exceptions[:MOST_PARTS]]]
        return "[%s]" % ",".join(told)
    except BaseException:
        return "[]"
