"""What this kernel's Landlock can refuse."""

from __future__ import annotations

import ctypes

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

REFER_ABI, TRUNCATE_ABI, TCP_ABI, DEVICES_ABI, SCOPES_ABI = 2, 3, 4, 5, 6
"""The versions of Landlock that brought them: Linux 5.19, 6.2, 6.7, 6.10, 6.12."""

CREATE_RULESET_VERSION = 1
# The same on every architecture.
_CREATE_RULESET = 444

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
