"""Whose doing a skip is: the grader's, or that of the code under test, which shares the grader's process. Before `runs.py`."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Origins:
    """Tells exceptions that went through code under test from those that did not.

    Code that gives itself another file's name is not told: it could as well put its own functions in the place of pytest's.
    """

    def __init__(self, policy: list[str]) -> None:
        """Remember what is whose, before anything of either is loaded.

        Args:
            policy: paths of the code under test.
        """
        self.files = {os.path.realpath(path) for path in policy}
        self.modules = {name for path in policy for name in module_names(path)}
        self.begin = time.time()

    def graders(self, error: Any) -> bool:
        """Whether no code under test has a part in an exception, or in those that it was raised for."""
        left, seen = [error], set()
        while left:
            one = left.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, ImportError) and str(one.name).split(".")[0] in self.modules:
                return False  # A name that the code under test lacks.
            trace = one.__traceback__
            while trace is not None:
                if trace.tb_frame.f_globals is not globals() and not self.known(trace.tb_frame.f_code.co_filename):
                    return False
                trace = trace.tb_next
            left += [one.__cause__, one.__context__]
        return True

    def known(self, path: str) -> bool:
        """Whether a file of code was there before the code under test ran, and is none of it."""
        if path.startswith("<frozen "):
            return True
        try:
            found = os.path.realpath(path)
            while not os.path.exists(found):
                found = os.path.dirname(found)  # An archive has what is below it.
            # Unlike the other times of a file this one cannot be set.
            return found not in self.files and os.path.isfile(found) and os.stat(found).st_ctime <= self.begin
        except (OSError, ValueError):
            return False


def module_names(path: str) -> list[str]:
    """First parts of the names that a file may be imported by."""
    parts = [part for part in path[: -len(".py")].split("/") if part] if path.endswith(".py") else []
    return [part for part in parts if part.isidentifier() and part != "__init__"]
