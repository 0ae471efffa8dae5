"""The compiled part of a sandbox's birth, where there is one: `birth.c`. Standard library only: the template loads it.

It is compiled when aviato is built, by whichever C compiler is there. Without one, and for what it does not fit, the same steps
are taken by `kernel.Kernel`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from typing import Any

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "birth.so")
SWITCH = "AVIATO_COMPILED"
"""An environment variable of the server: `0` leaves the compiled part out."""

OPERATIONS = (
    *("chdir", "fchdir", "openat", "dup3", "close", "write", "mkdirat", "fchmodat", "symlinkat", "unlinkat"),
    *("mount", "umount2", "open_tree", "mount_setattr", "move_mount", "pivot_root", "setresgid", "setresuid"),
    *("prctl", "unshare", "sethostname", "prlimit64", "capset", "umask", "socket", "ioctl"),
    *("label", "receive", "bound_capabilities", "load_filter"),
)
"""What it can do, in the order that numbers it."""

CALL = struct.Struct("=IBBBB4s6s6x6q")
"""`struct call`: size, operation, result, how many to skip where it was done and where it was forgiven, what is forgiven, kinds
and arguments. Its text follows."""
REGISTERS = 64
"""Descriptors that it can tell apart."""
CONNECTION, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN, OTHERS = range(7)
"""Registers of what a supervisor keeps, in the order of its descriptors; ports and control groups follow."""
SYNC, LOWER, SCRATCH, NAMED = 24, 25, 26, 27
"""The template's socket, what it sends, what is not needed for long, and the first of those with names."""
PATH_DESCRIPTOR = 120
"""The number of a descriptor that a path names, above those that the child opens and below where more room would be taken."""


class Birth(ctypes.Structure):
    """`struct birth`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("group", ctypes.c_int64),
        ("title", ctypes.c_void_p),
        ("title_size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("program", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
        ("registers", ctypes.POINTER(ctypes.c_int32)),
        ("kept", ctypes.c_uint64),
        ("pidfd", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("label", ctypes.c_int64),
    )


def label(calls: bytes, birth: Birth) -> str:
    """What the call was for at which a child failed."""
    begin = int(birth.label) + CALL.size
    return calls[begin : calls.index(b"\0", begin)].decode()


@functools.cache
def load() -> Any | None:
    """The function; None where there is none that fits."""
    try:
        # Held: the interpreter's lock must not be given up, since the child has no other thread to get it back from.
        library = ctypes.PyDLL(LIBRARY)
        names = ctypes.c_char.in_dll(library, "aviato_operations")
        if ctypes.string_at(ctypes.addressof(names)).decode().split() != list(OPERATIONS):
            return None  # Compiled from another version of its source.
        function = library.aviato_birth
    except (OSError, ValueError, AttributeError):
        return None
    function.argtypes = (ctypes.POINTER(Birth),)
    function.restype = ctypes.c_long
    return function


def wanted() -> bool:
    """Whether the server is to use it."""
    return os.environ.get(SWITCH) != "0" and load() is not None
