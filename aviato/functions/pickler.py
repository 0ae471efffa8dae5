"""cloudpickle's pickler, with the files from which code was read."""

from __future__ import annotations

import types
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as _cloudpickle

_FILENAME_PART = 10
"""Of what a code object is made from, in all versions of Python."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Since 3.1.3 cloudpickle gives all code one name of a file, by which neither tracebacks nor `inspect` find its lines."""

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler`."""
        if isinstance(value, types.CodeType):
            made, parts = _cloudpickle._code_reduce(value)
            # A new string, as cloudpickle's: one that is shared would be written as a reference at times.
            return made, (*parts[:_FILENAME_PART], "".join(value.co_filename), *parts[_FILENAME_PART + 1 :])
        return super().reducer_override(value)
