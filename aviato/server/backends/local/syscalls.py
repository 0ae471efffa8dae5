"""The system calls that Python lacks, through ctypes. Standard library only: the template loads it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000
CLONE_INTO_CGROUP = 1 << 33

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 1024, 2048, 1 << 21
MNT_DETACH = 2

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4

PR_SET_NAME, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 15, 4, 24, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_SET_TIMERSLACK, PR_SET_THP_DISABLE = 29, 41
IOPRIO_WHO_PROCESS, MPOL_DEFAULT, ANY_PERSONALITY = 1, 0, 0xFFFFFFFF
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_SETPERM, SESSION_KEYRING = 1, 5, -3
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 4, 8, 32
CAPABILITY_VERSION_3 = 0x20080522
LARGEST_CAPABILITY = 63

_NUMBERS = defaultdict(
    lambda: -1,
    {
        "x86_64": {"clone": 56, "pivot_root": 155, "keyctl": 250, "seccomp": 317, "ioprio_set": 251, "set_mempolicy": 238},
        "aarch64": {"clone": 220, "pivot_root": 41, "keyctl": 219, "seccomp": 277, "ioprio_set": 30, "set_mempolicy": 237},
    }.get(platform.machine(), {}),
)
# From here on every architecture has the same numbers.
_OPEN_TREE, _MOVE_MOUNT, _PIDFD_OPEN, _CLONE3, _MOUNT_SETATTR = 428, 429, 434, 435, 442

_libc = ctypes.CDLL(None, use_errno=True)
# A call that must not give up the interpreter's lock: its child has no other thread to get it back from.
_held = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = _held.syscall.restype = ctypes.c_long


def _function(name: str, *types: Any) -> Any:
    """A function of its own with these types: an object for each argument of each call would cost as much as the calls do."""
    found = _libc[name]
    found.argtypes = types
    return found


_INT, _UINT, _LONG, _ULONG, _TEXT = ctypes.c_int, ctypes.c_uint, ctypes.c_long, ctypes.c_ulong, ctypes.c_char_p
_mount = _function("mount", _TEXT, _TEXT, _TEXT, _ULONG, _TEXT)
_setns = _function("setns", _INT, _INT)
_system_call = _function("syscall", _LONG, _LONG, _LONG, _LONG)
_personality = _function("personality", _ULONG)
_prctl = _function("prctl", _INT, _ULONG, _ULONG, _ULONG, _ULONG)
_open_tree = _function("syscall", _LONG, _INT, _TEXT, _UINT)
_mount_setattr = _function("syscall", _LONG, _INT, _TEXT, _UINT, _TEXT, ctypes.c_size_t)
_move_mount = _function("syscall", _LONG, _INT, _TEXT, _INT, _TEXT, _UINT)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _encoded(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def _path(path: str | None) -> ctypes.c_char_p:
    return ctypes.c_char_p(_encoded(path))


def clone(flags: int, group: int | None = None) -> tuple[int, int]:
    """Fork into new namespaces; (0, -1) in the child, (pid, pidfd) in the parent. For processes of one thread only.

    Args:
        flags: of clone(2).
        group: a descriptor of the directory of a control group of version 2 that the child is born in.
    """
    pidfd = ctypes.c_int(-1)
    # PyOS_AfterFork_Child is left out: it forgets other threads, of which there are none, and costs half a millisecond.
    if group is not None:
        given = struct.pack("11Q", flags | CLONE_PIDFD | CLONE_INTO_CGROUP, ctypes.addressof(pidfd), 0, 0, 17, *[0] * 5, group)
        pid = _held.syscall(ctypes.c_long(_CLONE3), ctypes.c_char_p(given), ctypes.c_size_t(len(given)))
        return (0, -1) if pid == 0 else (_check(pid, "clone3"), pidfd.value)
    pid = _held.syscall(
        ctypes.c_long(_NUMBERS["clone"]), ctypes.c_ulong(flags | CLONE_PIDFD | 17), None, ctypes.byref(pidfd), None, None
    )
    if pid == 0:
        return 0, -1
    return _check(pid, "clone"), pidfd.value


def id_map(first: int, ids: int) -> str:
    """What maps 0 and those behind it to as many from the first on.

    Of 0 by itself: a range has to lie in one range of the namespace around, where root may be one and all others another.
    """
    return f"0 {first} 1\n" + (f"1 {first + 1} {ids - 1}\n" if ids > 1 else "")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_mounts() -> None:
    """Enter this process' own mount namespace anew, which leads out of a chroot; root's alone."""
    fd = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_setns(fd, CLONE_NEWNS), "setns")
    finally:
        os.close(fd)


def mount(source: str | None, target: str, type: str | None, flags: int, options: str | None = None) -> None:
    """Mount, bind or remount."""
    result = _mount(_encoded(source), _encoded(target), _encoded(type), flags, _encoded(options))
    _check(result, f"mount {type or source or ''} on {target}")


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """Take a mount away, by default as soon as nobody uses it."""
    _check(_libc.umount2(_path(target), ctypes.c_int(flags)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Change the root of this mount namespace."""
    _check(_libc.syscall(ctypes.c_long(_NUMBERS["pivot_root"]), _path(new), _path(old)), "pivot_root")


def open_tree(path: str, *, directory: int = AT_FDCWD, recursive: bool = True) -> int:
    """A detached copy of a mount, as a descriptor."""
    result: int = _open_tree(_OPEN_TREE, directory, os.fsencode(path), open_tree_flags(path, recursive))
    return _check(result, f"open_tree {path}")


def open_tree_flags(path: str, recursive: bool) -> int:
    """Those of `open_tree`."""
    return OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0) | (0 if path else AT_EMPTY_PATH)


def mount_setattr(fd: int, attributes: int, *, recursive: bool = True, user_namespace: int = 0, private: bool = False) -> None:
    """Add attributes to a mount; with `private`, take it out of those to which mounts elsewhere come."""
    what = mount_attributes(attributes, user_namespace, private=private)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    _check(_mount_setattr(_MOUNT_SETATTR, fd, b"", flags, what, len(what)), "mount_setattr")


def mount_attributes(attributes: int, user_namespace: int = 0, *, private: bool = False) -> bytes:
    """What mount_setattr(2) is to set."""
    return struct.pack("QQQQ", attributes, 0, MS_PRIVATE if private else 0, user_namespace)


def move_mount(fd: int, target: str) -> None:
    """Attach a detached mount."""
    result: int = _move_mount(_MOVE_MOUNT, fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    if result < 0:
        _check(result, f"move_mount on {target}")


def pidfd_open(pid: int) -> int:
    """Get a handle of a process that its number's reuse cannot confuse."""
    return _check(_libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)), "pidfd_open")


def prctl(option: int, value: int = 0) -> None:
    """Change an attribute of this process."""
    _check(_prctl(option, value, 0, 0, 0), f"prctl {option}")


def bound_capabilities(kept: Container[int]) -> None:
    """Take all others out of what this thread, and whoever it starts, may ever have."""
    for number in range(LARGEST_CAPABILITY + 1):
        if number not in kept and _prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # The kernel has no more.


def leave_session_keyring() -> None:
    """Have a new session keyring that nobody may use; where keyrings are not to be had, nobody inside has them either."""
    number, key = ctypes.c_long(_NUMBERS["keyctl"]), ctypes.c_long(SESSION_KEYRING)
    if _libc.syscall(number, ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None) < 0:
        if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            return
        _check(-1, "keyctl join")
    _check(_libc.syscall(number, ctypes.c_long(KEYCTL_SETPERM), key, ctypes.c_long(0)), "keyctl setperm")


def load_filter(program: bytes, *, listening: bool = False) -> int:
    """Have a seccomp filter in this thread, for good; it takes no_new_privs.

    Args:
        program: the filter.
        listening: return a descriptor by which is answered what the filter asks about; else 0.

    Raises:
        OSError: the filter is refused. EBUSY: another one that this thread has asks somebody already.
    """
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    # Without the flag older kernels slow everything inside down, to protect it from others, of which it has none.
    flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW | (SECCOMP_FILTER_FLAG_NEW_LISTENER if listening else 0)
    number, mode = ctypes.c_long(_NUMBERS["seccomp"]), ctypes.c_uint(SECCOMP_SET_MODE_FILTER)
    if listening:  # From Linux 5.19 on, no signal interrupts a call that is being answered.
        deaf = ctypes.c_uint(flags | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
        found: int = _libc.syscall(number, mode, deaf, ctypes.c_char_p(described))
        if found >= 0 or ctypes.get_errno() != errno.EINVAL:
            return _check(found, "seccomp")
    return _check(_libc.syscall(number, mode, ctypes.c_uint(flags), ctypes.c_char_p(described)), "seccomp")


def take_filters() -> None:
    """Ask the kernel whether it takes filters at all: one that does misses the program that is not given.

    Raises:
        OSError: it does not.
    """
    number, mode = ctypes.c_long(_NUMBERS["seccomp"]), ctypes.c_uint(SECCOMP_SET_MODE_FILTER)
    _libc.syscall(number, mode, ctypes.c_uint(0), None)
    if ctypes.get_errno() != errno.EFAULT:
        _check(-1, "seccomp")


def forget_starter(timer_slack_nanoseconds: int) -> None:
    """Put back what is handed on by exec and known by few: priority of I/O, memory policy, huge pages, timer slack, keys.

    What a security module forbids stays.
    """
    _system_call(_NUMBERS["ioprio_set"], IOPRIO_WHO_PROCESS, 0, 0)
    _system_call(_NUMBERS["set_mempolicy"], MPOL_DEFAULT, 0, 0)
    _system_call(_NUMBERS["keyctl"], KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
    _prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)
    _prctl(PR_SET_TIMERSLACK, timer_slack_nanoseconds, 0, 0, 0)


def usual_personality() -> bool:
    """Put back how programs are loaded from the next exec on; whether that was another way."""
    changed = _personality(ANY_PERSONALITY) > 0
    return changed and _personality(0) >= 0 and bool(_personality(ANY_PERSONALITY) == 0)


def prctl_name(name: bytes) -> None:
    """Name this thread; 15 bytes of it."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(PR_SET_NAME), ctypes.c_char_p(name), zero, zero, zero), "prctl name")


def set_capabilities(effective: int, permitted: int, inheritable: int = 0) -> None:
    """capset(2) for this thread; bits are numbers of capabilities."""
    head, data = capability_sets(effective, permitted, inheritable)
    _check(_libc.capset(ctypes.c_char_p(head), ctypes.c_char_p(data)), "capset")


def capability_sets(effective: int, permitted: int, inheritable: int = 0) -> tuple[bytes, bytes]:
    """The two arguments of capset(2)."""
    low = (effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, inheritable & 0xFFFFFFFF)
    data = struct.pack("6I", *low, effective >> 32, permitted >> 32, inheritable >> 32)
    return struct.pack("Ii", CAPABILITY_VERSION_3, 0), data


def set_hostname(name: str) -> None:
    """Name this UTS namespace."""
    encoded = name.encode()
    _check(_libc.sethostname(ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded))), "sethostname")
