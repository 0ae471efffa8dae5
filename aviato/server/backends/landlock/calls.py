"""Landlock's three system calls, through ctypes. Standard library only: the template loads it."""

from __future__ import annotations

import ctypes
import os
import struct

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

REFER_ABI, TRUNCATE_ABI, TCP_ABI, DEVICES_ABI, SCOPES_ABI = 2, 3, 4, 5, 6
"""The versions of Landlock that brought them: Linux 5.19, 6.2, 6.7, 6.10, 6.12."""

OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""What a rule of something that is no directory may grant."""

CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
# The same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def abi() -> int:
    """The version of Landlock that this kernel has; 0 if it has none, or it is switched off."""
    flags = ctypes.c_uint(CREATE_RULESET_VERSION)
    return max(0, int(_libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), flags)))


def handled(version: int) -> tuple[int, int, int]:
    """All that this version can refuse: of files, of TCP, and by scope."""
    files = (1 << 13) - 1
    for needed, right in ((REFER_ABI, REFER), (TRUNCATE_ABI, TRUNCATE), (DEVICES_ABI, IOCTL_DEV)):
        files |= right if version >= needed else 0
    network = BIND_TCP | CONNECT_TCP if version >= TCP_ABI else 0
    return files, network, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SCOPES_ABI else 0


def make_ruleset(version: int) -> int:
    """A ruleset that refuses all that this version can; rules of `allow` make exceptions."""
    files, network, scopes = handled(version)
    # Older kernels refuse a structure that is longer than theirs and not zero there.
    size = 8 if version < TCP_ABI else 16 if version < SCOPES_ABI else 24
    described = struct.pack("QQQ", files, network, scopes)[:size]
    number, no_flags = ctypes.c_long(_CREATE_RULESET), ctypes.c_uint(0)
    return _check(_libc.syscall(number, ctypes.c_char_p(described), ctypes.c_size_t(size), no_flags), "landlock_create_ruleset")


def allow(ruleset: int, path: str, rights: int) -> bool:
    """Make an exception for a path and all below it; whether there is such a path. A link at its end is followed."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        allow_opened(ruleset, fd, rights)
    finally:
        os.close(fd)
    return True


def allow_opened(ruleset: int, fd: int, rights: int) -> None:
    """As `allow`, of what is open."""
    described = struct.pack("=Qi", rights, fd)
    kind, number, no_flags = ctypes.c_int(RULE_PATH_BENEATH), ctypes.c_long(_ADD_RULE), ctypes.c_uint(0)
    result = _libc.syscall(number, ctypes.c_int(ruleset), kind, ctypes.c_char_p(described), no_flags)
    _check(result, "landlock_add_rule")


def restrict(ruleset: int) -> None:
    """Be bound by a ruleset, for good, with all descendants; it takes no_new_privs."""
    result = _libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0))
    _check(result, "landlock_restrict_self")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
