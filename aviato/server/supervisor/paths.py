"""Paths that process 1 opens for others. Standard library only.

It sees /proc with its own eyes: a link to `/proc/self/fd/6` that code inside has left on the way would lead it through a
descriptor of its own, and `/proc/self/maps` tells of its memory. So no link is followed that only the kernel can follow, and
what lies on the kernel's own file systems is no file of the sandbox: such files may never end. Whatever is looked at is opened
first, so that nobody swaps it meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import NamedTuple

from aviato.server.supervisor.errors import OfTheKernel

AT_FDCWD = -100
OPENAT2 = 437
NO_MAGIC_LINKS = 2
KERNEL_FILE_SYSTEMS = frozenset(
    {
        0x9FA0,  # proc
        0x62656572,  # sysfs
        0x27E0EB,  # cgroup
        0x63677270,  # cgroup2
        0x64626720,  # debugfs
        0x74726163,  # tracefs
        0x73636673,  # securityfs
        0x62656570,  # configfs
        0x6165676C,  # pstore
        0xCAFE4A11,  # bpf
    }
)
"""By the number that statfs(2) tells; `early_files.c` has the same."""
DIRECTORY = os.O_PATH | os.O_DIRECTORY
MOST_LINKS = 40
"""As many as the kernel follows."""
_STATFS_BYTES = 256

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Place(NamedTuple):
    """A name in a directory, which is open: whoever has it closes that."""

    directory: int
    name: str


def open_path(path: str, flags: int, at: int = AT_FDCWD, *, kernel: bool = False) -> int:
    """A descriptor of what is at a path.

    Args:
        path: absolute, or counted from the directory `at`.
        flags: of open(2), for something that is there.
        at: a descriptor.
        kernel: it may be the kernel's, by its own path.

    Raises:
        OfTheKernel: it is the kernel's, or one of its links is on the way.
        OSError: of open(2).
    """
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, NO_MAGIC_LINKS)
    arguments = ctypes.c_int(at), ctypes.c_char_p(encoded), ctypes.c_char_p(how), ctypes.c_size_t(len(how))
    fd: int = _libc.syscall(ctypes.c_long(OPENAT2), *arguments)
    if fd < 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):  # Linux 5.5 and older; and filters of some containers.
            fd = walk(path, flags, at)
        elif number == errno.ELOOP and not _is_a_loop(path, at):
            raise OfTheKernel(path)
        else:
            raise OSError(number, os.strerror(number), path)
    if not kernel and is_of_the_kernel(fd):
        os.close(fd)
        raise OfTheKernel(path)
    return fd


def is_of_the_kernel(fd: int) -> bool:
    """Whether what is open lies on one of its own file systems."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(fd), found) < 0:
        return True
    return ctypes.c_long.from_buffer(found).value in KERNEL_FILE_SYSTEMS


def walk(path: str, flags: int, at: int = AT_FDCWD) -> int:
    """As `open_path`, name by name, where the kernel cannot be told which links to follow."""
    ends_in_directory = False
    pending: list[str] = []
    links = 0

    def take(way: str) -> None:
        nonlocal ends_in_directory
        names = way.split("/")
        # Of the last name alone: before others, a directory is what it has to be in any case.
        ends_in_directory |= not pending and names[-1] in ("", ".", "..")
        pending.extend(name for name in reversed(names) if name not in ("", "."))

    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    current = os.open("/" if path.startswith("/") else ".", DIRECTORY | os.O_CLOEXEC, dir_fd=None if at == AT_FDCWD else at)
    take(path)
    try:
        while pending:
            name = pending.pop()
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            current, above = inner, current
            try:
                if not stat.S_ISLNK(os.fstat(inner).st_mode) or (
                    flags & os.O_NOFOLLOW and not pending and not ends_in_directory
                ):
                    continue
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if is_of_the_kernel(inner):
                    raise OfTheKernel(path)
                target = os.readlink("", dir_fd=inner)
                take(target)
                current = os.open("/", DIRECTORY | os.O_CLOEXEC) if target.startswith("/") else os.dup(above)
                os.close(inner)
            finally:
                os.close(above)
        if (ends_in_directory or flags & os.O_DIRECTORY) and not stat.S_ISDIR(os.fstat(current).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if flags & os.O_PATH:
            current, found = -1, current
            return found
        return os.open(f"/proc/self/fd/{current}", flags & ~os.O_NOFOLLOW | os.O_CLOEXEC)
    finally:
        if current >= 0:
            os.close(current)


def find_place(path: str, *, make: bool = False) -> Place:
    """Where a file is, or would be made: links at the end of its path are followed.

    Args:
        path: absolute, or counted from the current directory.
        make: directories above it that are missing.

    Raises:
        IsADirectoryError: the path can be nothing else.
        OSError: there is no such directory, or another one than can be used.
    """
    at = AT_FDCWD
    try:
        for _ in range(MOST_LINKS):
            head, name = os.path.split(path)
            if name in ("", ".", ".."):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            folder = make_directories(head or ".", at, MOST_LINKS)[0] if make else open_path(head or ".", DIRECTORY, at)
            _close(at)
            at = folder
            try:
                path = os.readlink(name, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):
                    raise
                at = AT_FDCWD
                return Place(folder, name)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    finally:
        _close(at)


def make_directories(path: str, at: int = AT_FDCWD, links: int = 0) -> tuple[int, bool]:
    """A directory, made with those above it if it is missing: a descriptor, and whether it was.

    Args:
        path: absolute, or counted from the directory `at`.
        at: a descriptor.
        links: so many that lead to what is missing are followed.

    Raises:
        FileExistsError: something that is none has the name of a missing one.
        OSError: it cannot be made, or opened.
    """
    missing: list[str] = []
    above = path
    while True:
        try:
            fd = open_path(above, DIRECTORY, at)
            break
        except FileNotFoundError:
            outer, name = os.path.split(above.rstrip("/"))
            if not name or above == ".":
                raise
            missing.append(name)
            above = outer or "."
    for name in reversed(missing):
        try:
            inner = _made(fd, name, links)
        finally:
            os.close(fd)
        fd = inner
    return fd, bool(missing)


def _made(folder: int, name: str, links: int) -> int:
    """A directory in another one, made if it is missing."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        try:
            target = os.readlink(name, dir_fd=folder) if links else None
        except OSError:
            target = None
        if target is not None:
            return make_directories(target, folder, links - 1)[0]
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
    return os.open(name, DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _is_a_loop(path: str, at: int) -> bool:
    """Whether a path leads nowhere, also by links of the kernel."""
    try:
        os.stat(path, dir_fd=None if at == AT_FDCWD else at)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
