"""A /usr/local that can be written to, with what the machine has in its own.

The machine's is mounted beside, read only. What `host` sandboxes have as /usr/local is a part of their own tree: directories of
theirs, in which links lead to the machine's files. So it is one more bind, counts as their disk, and needs no right to files
of other owners, which a second overlay would: an ordinary user cannot have those copied above.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = "/usr/local"
HOME = "/root/.local"
"""What takes its part where nobody can write to it: its programs are on PATH, too."""
MACHINES = "/.aviato/local"
"""Where the machine's is in a sandbox."""
DEPTH = 3
"""Directories so far below it are the sandbox's own; what lies in deeper ones is the machine's, read only."""
MOST_NAMES = 4000
"""Beyond so many, further directories are the machine's."""
_PYTHON = re.compile(r"python3\.\d+")


class Local(NamedTuple):
    """What is to be made of it, by paths as they are inside.

    Attributes:
        directories: parents first.
        links: with their targets.
        copies: files that have to be there themselves: a Python takes what lies beside itself for its own.
    """

    directories: list[str]
    links: list[tuple[str, str]]
    copies: list[str]


def find(path: str = LOCAL) -> Local | None:
    """Look at the machine's; None where there is none, or it is only a link.

    Args:
        path: where it is.
    """
    if not os.path.isdir(path) or os.path.islink(path):
        return None
    found = Local([LOCAL], [], [])
    level = [""]
    for depth in range(DEPTH + 1):
        level = [name for directory in level for name in _look(path, directory, depth < DEPTH, found)]
    return found


def _look(path: str, directory: str, deeper: bool, found: Local) -> Iterator[str]:
    """Add what one directory has; those of its directories that are to be looked at are told.

    Args:
        path: of the machine's.
        directory: below it.
        deeper: whether there may be such.
        found: so far.
    """
    try:
        entries = sorted(os.scandir(path + directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name = f"{directory}/{entry.name}"
        if entry.is_symlink():
            found.links.append((LOCAL + name, os.readlink(path + name)))
        elif entry.is_file() and directory == "/bin" and _PYTHON.fullmatch(entry.name):
            found.copies.append(LOCAL + name)
        elif deeper and entry.is_dir() and len(found.links) < MOST_NAMES and _is_open(path + name):
            found.directories.append(LOCAL + name)
            yield name
        else:
            found.links.append((LOCAL + name, MACHINES + name))


def _is_open(directory: str) -> bool:
    """Whether it can be the sandbox's own.

    The library of a Python and its packages are left together as they are: whoever finds that he can write there begins to
    replace them, and finds then that he cannot. Told at once, `pip` puts its own into the home.
    """
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    return not any(name == "os.py" or name.endswith((".dist-info", ".egg-info", ".egg")) for name in names)
