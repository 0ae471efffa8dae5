"""Tools of a Python that go by names which others have, too: what is first on PATH belongs together.

A machine has one `pip`, and it is that of the machine's own Python: in a sandbox with another one it would install what nobody
there can import. Pure.
"""

from __future__ import annotations

import os

FAMILIES = {"pip": "pip", "pydoc": "pydoc", "idle": "idlelib", "2to3": "lib2to3"}
"""What names begin with, and the module that does the work."""
INSTALLERS = ("pip", "pip3")


def names(minor: int) -> tuple[str, ...]:
    """Those that a Python's directory of programs has beside `python` and its like."""
    version = f"3.{minor}"
    found = [f"{family}{suffix}" for family in ("pip", "pydoc", "idle") for suffix in ("", "3", version)]
    return (*found, "2to3", f"2to3-{version}", "python-config", "python3-config", f"python{version}-config")


def installers(minor: int) -> tuple[str, ...]:
    """Those that have to know the packages that are there."""
    return (*INSTALLERS, f"pip3.{minor}")


def script(directory: str, prefix: str, minor: int) -> str:
    """A program that is, by the name that it is called by, the tool of the interpreter whose `python` is in a directory."""
    return f'''#!{directory}/python3.{minor}
"""What goes by this name elsewhere on PATH is another interpreter's, or does not see the packages of this one."""
import importlib.util
import os
import runpy
import sys

name = os.path.basename(sys.argv[0])
config = {os.path.join(prefix, "bin", f"python3.{minor}-config")!r}
module = next((module for family, module in {FAMILIES!r}.items() if name.startswith(family)), None)
if module is None and os.access(config, os.X_OK):
    os.execv(config, [config] + sys.argv[1:])
if module is None or importlib.util.find_spec(module) is None:
    print(name + ": Python 3.{minor} has none here", file=sys.stderr)
    sys.exit(127)
asked = sys.argv[1:]
if module == "pip" and next((word for word in asked if word[:1] != "-"), None) == "install":
    # Where packages are, nobody can write, which pip finds out too late where it is refused by no mode of a file.
    if not any(word.startswith(("-t", "--target", "--prefix", "--root", "--user", "--no-user")) for word in asked):
        os.environ.setdefault("PIP_USER", "1")
runpy.run_module(module, run_name="__main__", alter_sys=True)
'''
