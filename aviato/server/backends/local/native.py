"""The compiled part of a template, if there is one: `birth.c`, `template.c` and others. Standard library only: it loads this.

It is compiled when aviato is built, by whichever C compiler is there, and again where it was made from other sources than are
there. Without one, and for what it does not fit, the same steps are taken by `kernel.Kernel`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.server.backends.local import compiling
from aviato.server.supervisor import takeover

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = os.path.abspath(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")
LIBRARY = f"{PACKAGE}/{compiling.LIBRARY}"
SWITCH = "AVIATO_COMPILED"
INIT = "AVIATO_INIT"
"""An environment variable of the server: `0` leaves the compiled part out."""

OPERATIONS = (
    *("chdir", "fchdir", "openat", "dup3", "close", "write", "mkdirat", "fchmodat", "symlinkat", "unlinkat"),
    *("mount", "umount2", "open_tree", "mount_setattr", "move_mount", "pivot_root", "setresgid", "setresuid"),
    *("prctl", "sethostname", "prlimit64", "capset", "umask", "socket", "sched_setaffinity"),
    *("label", "receive", "bound_capabilities", "load_filter", "raise_loopback", "lend", "is", "enter_user_namespace"),
)
"""What it can do, in the order that numbers it."""

CALL = struct.Struct("=IBBBB4s6s6x6q")
"""`struct call`: size, operation, result, how many to skip where it was done and where it was forgiven, what is forgiven, kinds
and arguments. Its text follows."""
REGISTERS = 64
"""Descriptors that it can tell apart."""
CONNECTION, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN, OTHERS = range(7)
"""Registers of what a supervisor keeps, in the order of its descriptors; ports and control groups follow."""
SYNC, LOWER, SCRATCH, MERGED, NAMED = range(24, 29)
"""The template's socket, what it sends, what is not needed for long, a root that another sandbox had, the first with names."""
PATH_DESCRIPTOR = 120
"""The number of a descriptor that a path names, below where more room would be taken. A template holds it from its begin on, so
that nothing that it or a child opens has it."""


class Birth(ctypes.Structure):
    """`struct birth`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("group", ctypes.c_int64),
        ("title", ctypes.c_void_p),
        ("title_size", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("unneeded", ctypes.c_int64),
        ("program", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("registers", ctypes.POINTER(ctypes.c_int32)),
        ("kept", ctypes.c_uint64),
        ("pidfd", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("label", ctypes.c_int64),
    )


ENDED, MESSAGE, CHILDREN_DIED, BORN = range(4)
"""What a template's turn ends with: the server is gone, a message that it does not serve, the dead, being a child itself."""
GIVEN = 4
"""Descriptors that can come with a message."""
MAGIC = b"AVB\1"
REQUEST = struct.Struct("=4s9I")
"""`struct request`: magic, number, uid, gid, flags, how many owned directories and trees, where the calls begin, the number of
an earlier request or 0, and how many ids there are from these on."""
TREE = struct.Struct("=IIQQ")
"""`struct tree`: the register, attributes, and by which file system and number there it is known; zeros where it is not."""
GIVES_IDS = "gives-ids"
"""A word of a template's command line, see `Template`."""
HAS_PORTS, HAS_LOWER, LENDS_ROOT = 1, 2, 4


class Turn(ctypes.Structure):
    """`struct template`."""

    _fields_ = (
        ("control", ctypes.c_int32),
        ("children", ctypes.c_int32),
        ("alone", ctypes.c_int32),
        ("fds", ctypes.c_int32 * GIVEN),
        ("fd_count", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("room", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("namespaces", ctypes.c_uint64),
        ("ports", ctypes.c_int32),
        ("connection", ctypes.c_int32),
        ("spare", ctypes.c_int32),
        ("spare_pidfd", ctypes.c_int32),
        ("spare_socket", ctypes.c_int32),
        ("birth", Birth),
        ("early", takeover.Early),
    )


class Usual(NamedTuple):
    """A usual request, as compiled code takes it.

    Attributes:
        uid, gid: host ids of the sandbox's user.
        flags: `HAS_PORTS`, `HAS_LOWER`, `LENDS_ROOT`.
        counts: how many owned directories and trees, and where the calls begin.
        earlier: the request for the sandbox whose place and layers it has; 0 for one with its own.
        ids: how many it has, from `uid` and `gid` on.
        behind: what follows that: trees, names and calls.
    """

    uid: int
    gid: int
    flags: int
    counts: tuple[int, int, int]
    earlier: int
    ids: int
    behind: bytes

    @property
    def lends(self) -> bool:
        """Whether another sandbox may have its place and layers."""
        return bool(self.flags & LENDS_ROOT)

    def renamed(self, ids: Mapping[str, str], uid: int, gid: int, earlier: int = 0) -> Usual:
        """The same for another sandbox, with other ids in place of some. Ids have one length, so that nothing else moves."""
        behind = self.behind
        for sandbox_id, other in ids.items():
            behind = behind.replace(sandbox_id.encode(), other.encode())
        return Usual(uid, gid, self.flags, self.counts, earlier, self.ids, behind)

    def message(self, number: int) -> bytes:
        """What is sent."""
        return REQUEST.pack(MAGIC, number, self.uid, self.gid, self.flags, *self.counts, self.earlier, self.ids) + self.behind


def usual(wanted: dict[str, Any]) -> Usual | None:
    """A request for compiled code; None for one that Python has to serve.

    Args:
        wanted: see `Zygote.ask`.
    """
    calls, trees, lower = wanted["calls"], wanted["trees"], wanted["lower"]
    if calls is None or wanted["groups"] or wanted["born_filter"]:
        return None
    flags = (HAS_PORTS if wanted["ports"] else 0) | (HAS_LOWER if lower is not None else 0)
    flags |= LENDS_ROOT if wanted["lends"] else 0
    further = [name for name in (wanted["earlier"], lower) if name is not None]
    names = [wanted["place"], *wanted["owned"], *further, *(path for _, _, path, *_ in trees)]
    text = b"".join(TREE.pack(register, attributes, *known) for register, _, _, attributes, known in trees)
    text += b"".join(os.fsencode(name) + b"\0" for name in names)
    text += b"\0" * (-(REQUEST.size + len(text)) % 8)
    counts = (len(wanted["owned"]), len(trees), REQUEST.size + len(text))
    return Usual(wanted["uid"], wanted["gid"], flags, counts, 0, wanted["ids"], text + bytes(calls))


def label(birth: Birth) -> str:
    """What the call was for at which a child failed."""
    return ctypes.string_at(birth.program + birth.label + CALL.size).decode()


@functools.cache
def renew() -> str | None:
    """Make the library anew where it was made from other sources than are there; what is to be said of that, if it was."""
    if not os.path.exists(LIBRARY) or compiling.is_current(PACKAGE):
        return None
    why = compiling.compile_library(PACKAGE)
    if why is None:
        return "the compiled part of aviato was made from other sources, and was compiled anew"
    return f"the compiled part of aviato was made from other sources, is left out, and could not be compiled anew: {why}"


@functools.cache
def load(*, renews: bool = True) -> Any | None:
    """The library; None where there is none that was made from the sources that are there.

    Args:
        renews: whether it is made anew, where one is there that was not.
    """
    if renews:
        renew()
    if not compiling.is_current(PACKAGE):
        return None
    try:
        # Held: the interpreter's lock must not be given up, since the child has no other thread to get it back from.
        library = ctypes.PyDLL(LIBRARY)
        library.aviato_birth.argtypes = (ctypes.POINTER(Birth),)
        library.aviato_birth.restype = ctypes.c_long
        library.aviato_template.argtypes = (ctypes.POINTER(Turn),)
        library.aviato_network_ended.argtypes = (ctypes.c_long,)
        library.aviato_network_ended.restype = None
        library.aviato_layers_ended.argtypes = (ctypes.c_long,)
        library.aviato_layers_ended.restype = None
        library.aviato_enter_group.argtypes = ()
        for name in ("aviato_leave_group", "aviato_group_ended"):
            getattr(library, name).argtypes = (ctypes.c_long,)
            getattr(library, name).restype = None
    except (OSError, ValueError, AttributeError):
        return None
    return library


def wanted() -> bool:
    """Whether the server is to use it."""
    return os.environ.get(SWITCH) != "0" and init() is None and load() is not None


def init() -> str | None:
    """The `aviato-init` that is asked for to make sandboxes and be their process 1, in place of all that is here."""
    return os.environ.get(INIT) or None
