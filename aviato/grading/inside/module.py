"""Runs in a sandbox: the code under test as the module `solution`, of a file of that name in the current directory."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from typing import Any

FILE = "solution.py"


def be_in_a_directory(code: bytes) -> None:
    """Import what a program in the current directory would; tests and spawned processes import the code itself."""
    sys.path[:0] = [os.getcwd(), *[part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]]
    try:
        with open(FILE, "wb") as file:
            file.write(code)
    except OSError:
        pass  # A disk that is full, a directory that is read only: all but those works.


def new_module(imported: bool) -> dict[str, Any]:
    """The names of a new module `solution`; whether it is the one that imports of that name, and of `__main__`, give."""
    import _frozen_importlib_external as importer

    name, path = FILE[: -len(".py")], os.path.join(os.getcwd(), FILE)
    module = type(sys)(name)
    module.__file__ = path
    module.__loader__ = importer.SourceFileLoader(name, path)
    module.__spec__ = importer.spec_from_file_location(name, path, loader=module.__loader__)
    module.__package__ = ""
    vars(module)["__cached__"] = None
    if imported:
        sys.modules[name] = sys.modules["__main__"] = module
    return vars(module)
