"""How the compiled part is made from its sources, and how a library tells which ones. Standard library only.

Its sources are all files of C of two directories. A hash of them and of the flags is in the library: one that was made from
others does not fit the Python code beside it, which has its structures and numbers. The build of aviato loads this file by
itself.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys

DIRECTORIES = ("server/backends/local", "server/supervisor")
LIBRARY = "server/backends/local/libaviato.so"
"""Below the package, as are the directories."""
FLAGS = (
    *("-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"),
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
)
MARK = "aviato-sources:"
"""Before the hash, in the library."""


def sources(package: str) -> list[str]:
    """All files of C, headers included, below the package and in order.

    Raises:
        OSError: they cannot be listed.
    """
    names = [f"{directory}/{name}" for directory in DIRECTORIES for name in os.listdir(f"{package}/{directory}")]
    return sorted(name for name in names if name.endswith((".c", ".h")))


def mark(package: str) -> str:
    """What a library has in it that is made from the sources as they are.

    Raises:
        OSError: they cannot be read.
    """
    found = hashlib.sha256(repr(FLAGS).encode())
    for name in sources(package):
        with open(f"{package}/{name}", "rb") as file:
            content = file.read()
        found.update(f"{name} {len(content)} ".encode() + content)
    return MARK + found.hexdigest()


def is_current(package: str) -> bool:
    """Whether there is a library, made from the sources as they are. It is read, and not loaded."""
    try:
        with open(f"{package}/{LIBRARY}", "rb") as file:
            return mark(package).encode() in file.read()
    except OSError:
        return False


def compile_library(package: str) -> str | None:
    """Make the library anew; returns why it could not be made, and None if it was.

    The compiler is `cc`, or what the variable `CC` names. A new file is put in place at once: others may use the old one.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    library = f"{package}/{LIBRARY}"
    if sys.platform != "linux" or not compiler or shutil.which(compiler[0]) is None:
        return "there is no C compiler"
    if not os.access(os.path.dirname(library), os.W_OK):
        return f"{os.path.dirname(library)} cannot be written to"
    new = f"{library}.{os.getpid()}"
    named = f'-DAVIATO_SOURCES="{mark(package)}"'
    files = [f"{package}/{name}" for name in sources(package) if name.endswith(".c")]
    done = subprocess.run([*compiler, *FLAGS, named, "-o", new, *files], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if os.path.exists(new):
            os.unlink(new)
        return f"{shlex.join([*compiler, *FLAGS])}: {done.stderr.strip()[:4000]}"
    os.replace(new, library)
    return None
