"""Runs its arguments under a seccomp filter that forbids new user namespaces, as a container's default profile does."""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL_EPERM, FAIL_ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
CLONE_NEWUSER = 0x10000000
NUMBER, FIRST_ARGUMENT = 0, 16
UNSHARE, CLONE, CLONE3 = 272, 56, 435  # x86-64
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38

PROGRAM = [
    (LOAD, 0, 0, NUMBER),
    (EQUAL, 0, 1, CLONE3),
    (RETURN, 0, 0, FAIL_ENOSYS),
    (EQUAL, 1, 0, UNSHARE),
    (EQUAL, 0, 3, CLONE),
    (LOAD, 0, 0, FIRST_ARGUMENT),
    (ANY_BIT, 0, 1, CLONE_NEWUSER),
    (RETURN, 0, 0, FAIL_EPERM),
    (RETURN, 0, 0, ALLOW),
]


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


def main() -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in PROGRAM)
    buffer = ctypes.create_string_buffer(code, len(code))
    described = Filter(len(PROGRAM), ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(described), 0, 0):
        sys.exit(f"no filter: errno {ctypes.get_errno()}")
    os.execv(sys.argv[1], sys.argv[1:])


main()
