"""The system calls that Python lacks, through ctypes. Standard library only: `remover.py` loads it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections import defaultdict
from typing import Any

CLONE_NEWUSER = 0x10000000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NODEV = 1, 4
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
PR_SET_TIMERSLACK, PR_SET_THP_DISABLE = 29, 41
IOPRIO_WHO_PROCESS, MPOL_DEFAULT, ANY_PERSONALITY = 1, 0, 0xFFFFFFFF
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 4, 8, 32

_NUMBERS = defaultdict(
    lambda: -1,
    {
        "x86_64": {"keyctl": 250, "seccomp": 317, "ioprio_set": 251, "set_mempolicy": 238},
        "aarch64": {"keyctl": 219, "seccomp": 277, "ioprio_set": 30, "set_mempolicy": 237},
    }.get(platform.machine(), {}),
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _function(name: str, *types: Any) -> Any:
    """A function of its own with these types."""
    found = _libc[name]
    found.argtypes = types
    return found


_LONG, _ULONG = ctypes.c_long, ctypes.c_ulong
_system_call = _function("syscall", _LONG, _LONG, _LONG, _LONG)
_personality = _function("personality", _ULONG)
_prctl = _function("prctl", ctypes.c_int, _ULONG, _ULONG, _ULONG, _ULONG)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(option: int, value: int = 0) -> None:
    """Change an attribute of this process."""
    _check(_prctl(option, value, 0, 0, 0), f"prctl {option}")


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
