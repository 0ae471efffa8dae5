"""How repositories of SWE-bench run their tests, where a row does not say it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from aviato.rl.datasets.swe_logs import PARSERS, ParseLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PARSERS = {
    "django/django": "django",
    "sympy/sympy": "sympy",
    "matplotlib/matplotlib": "matplotlib",
    "psf/requests": "requests",
    "pylint-dev/pylint": "pylint",
    "pydicom/pydicom": "pydicom",
}
"""Of those whose log is not read as pytest's; by SWE-bench's names."""
_DJANGO = "./tests/runtests.py --verbosity 2"
_SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"


def parser_of(row: Mapping[str, Any]) -> ParseLog:
    """Reads the log of a row's repository: pytest's, unless it is known to be another."""
    return PARSERS[_PARSERS.get(str(row.get("repo")), "pytest")]


def command_of(row: Mapping[str, Any], files: Sequence[str]) -> str | None:
    """For bash: the tests in some files, for repositories that do not use pytest; None for all others.

    Args:
        row: with `repo` and `version`.
        files: paths in the repository.
    """
    if row.get("repo") == "sympy/sympy":
        return f"{_SYMPY} {shlex.join(files)}"
    if row.get("repo") != "django/django":
        return None
    options = "" if str(row.get("version")) == "1.9" else " --settings=test_sqlite --parallel 1"
    return f"{_DJANGO}{options} {shlex.join(map(_label, files))}"


def _label(path: str) -> str:
    """A file of Django's tests as its runner names it."""
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")
