"""Executes the steps of a plan, in the child that becomes a sandbox's process 1. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import struct
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import mounted
from aviato.server.backends.local import syscalls as sys
from aviato.server.supervisor.buffers import open_diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.server.backends.local.plan import Step

ATTRIBUTES = {"rdonly": sys.MOUNT_ATTR_RDONLY, "nosuid": sys.MOUNT_ATTR_NOSUID, "nodev": sys.MOUNT_ATTR_NODEV}
FLAGS = {"rdonly": sys.MS_RDONLY, "nosuid": sys.MS_NOSUID, "nodev": sys.MS_NODEV}
KEPT_FLAGS = {
    "ro": sys.MS_RDONLY,
    "nosuid": sys.MS_NOSUID,
    "nodev": sys.MS_NODEV,
    "noexec": sys.MS_NOEXEC,
    "noatime": sys.MS_NOATIME,
    "nodiratime": sys.MS_NODIRATIME,
    "relatime": sys.MS_RELATIME,
}
"""Flags of a mount that came from outside are locked: a remount has to repeat them."""

# SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, each with its lock: uid 0 means nothing here.
SECURE_BITS = 1 | 2 | 4 | 8
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


class StepError(Exception):
    """A step failed; the message says which and how."""


class Confinement:
    """One child on its way in."""

    def __init__(
        self,
        wait_for_maps: Callable[[], int | None],
        *,
        modern: bool = True,
        content: int | None = None,
        compiled: bytes = b"",
    ) -> None:
        self._wait_for_maps = wait_for_maps
        self._modern = modern
        """Whether the kernel has mount_setattr (5.12)."""
        self._taken: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._content = content
        """What the caller's read-only files hold, one behind the other."""
        self._compiled = compiled
        """The filter."""
        self._lower: int | None = None
        self._old_root = -1

    def execute(self, steps: Iterable[Step]) -> None:
        """Take the steps in order.

        Raises:
            StepError: one of them failed; the process must end.
        """
        for operation, arguments, reason in steps:
            try:
                getattr(self, f"_do_{operation}")(*arguments)
            except OSError as error:
                raise StepError(f"{operation} ({reason}): {error}") from error

    # -- sources and identity -------------------------------------------------------------------------------------------

    def _do_place(self, path: str) -> None:
        os.chdir(path)

    def _do_take(self, sources: list[tuple[str, str, tuple[str, ...]]]) -> None:
        for path, name, attributes in sources:
            if name not in self._taken:
                self._taken[name] = (self._copy(path, attributes), attributes)

    def _do_identity(self) -> None:
        self._lower = self._wait_for_maps()
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # The change of uid took /proc/self away from us, which the second map needs.
        sys.prctl(sys.PR_SET_DUMPABLE, 1)

    def _do_private_mounts(self) -> None:
        sys.mount("none", "/", None, sys.MS_REC | sys.MS_PRIVATE)

    def _do_write_mounted(self, sizes: list[int]) -> None:
        if self._content is None:
            raise OSError(errno.EINVAL, "no content was sent")
        attributes = ("rdonly", "nosuid", "nodev")
        for path in mounted.write(self._content, sizes):
            self._taken[path] = (self._copy(path, attributes), attributes)

    # -- the root -------------------------------------------------------------------------------------------------------

    def _do_bind_self(self, path: str, attributes: tuple[str, ...]) -> None:
        self._attach(self._copy(path, attributes), path, attributes)

    def _do_put_lower(self, target: str) -> None:
        if self._lower is None:
            raise OSError(errno.EINVAL, "the template sent no lower layer")
        sys.move_mount(self._lower, target)

    def _do_overlay(self, lower: str, layers: str, target: str, attributes: tuple[str, ...]) -> None:
        if layers != ".":
            for name in ("upper", "work"):
                os.mkdir(f"{layers}/{name}", 0o755)
        link = lower
        if ":" in lower or "," in lower or "\\" in lower or lower.startswith("/"):
            # The option's own separators need no escape when the path is a descriptor's.
            link = f"/proc/self/fd/{os.open(lower, os.O_PATH | os.O_CLOEXEC)}"
        flags = sum(FLAGS[name] for name in attributes)
        options = f"lowerdir={link},upperdir={layers}/upper,workdir={layers}/work,userxattr"
        try:
            # Else its end would write all that anybody has written to that disk, and wait until it is there.
            sys.mount("overlay", target, "overlay", flags, f"{options},volatile")
        except OSError:
            # Before Linux 5.10, and where the disk has had an error that nobody has been told of.
            sys.mount("overlay", target, "overlay", flags, options)

    def _do_keep_layer(self, path: str) -> None:
        # A mount of its own: its `..` leads nowhere, and what is mounted inside does not hide what lies below.
        self.layer = sys.open_tree(path, recursive=False)

    def _do_pivot(self, new: str) -> None:
        self._old_root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(new)
        sys.pivot_root(".", ".")

    def _do_leave_old_root(self) -> None:
        os.fchdir(self._old_root)
        sys.unmount(".")
        os.chdir("/")
        os.close(self._old_root)

    # -- filling it -----------------------------------------------------------------------------------------------------

    def _do_directories(self, directories: list[tuple[str, int]]) -> None:
        for path, mode in directories:
            try:
                os.mkdir(path, mode)
            except FileExistsError:
                continue
            if mode & 0o1000:
                os.chmod(path, mode)

    def _do_links(self, links: list[tuple[str, str]]) -> None:
        for path, target in links:
            os.symlink(target, path)

    def _do_unlink(self, paths: list[str]) -> None:
        for path in paths:
            os.unlink(path)

    def _do_files(self, files: list[tuple[str, str]]) -> None:
        for path, content in files:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(fd, content.encode())
            os.close(fd)

    def _do_put(self, mounts: list[tuple[str, str, bool]]) -> None:
        for name, target, is_directory in mounts:
            fd, attributes = self._taken[name]
            _make_target(target, is_directory)
            self._attach(fd, target, attributes)

    def _do_put_mounted(self, paths: list[str]) -> None:
        mounted.make_targets(paths, lambda path: self._attach(self._copy(path, ()), path, ()))
        for number, path in enumerate(paths):
            fd, attributes = self._taken[f"{mounted.DIRECTORY}/{number}"]
            self._attach(fd, path, attributes)

    def _do_proc(self) -> None:
        sys.mount("proc", "/proc", "proc", sys.MS_NOSUID | sys.MS_NODEV | sys.MS_NOEXEC)

    def _do_devices(self, names: list[str], terminals: int) -> None:
        sys.mount("tmpfs", "/dev", "tmpfs", sys.MS_NOSUID, "mode=755,size=64k")
        for name in names:
            fd, attributes = self._taken[f"device {name}"]
            _make_target(f"/dev/{name}", False)
            self._attach(fd, f"/dev/{name}", attributes)
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(target, f"/dev/{name}")
        os.mkdir("/dev/pts", 0o755)
        os.mkdir("/dev/shm", 0o755)
        own = f"newinstance,ptmxmode=0666,mode=620,max={terminals}"
        sys.mount("devpts", "/dev/pts", "devpts", sys.MS_NOSUID | sys.MS_NOEXEC, own)
        os.symlink("pts/ptmx", "/dev/ptmx")
        sys.mount(None, "/dev", None, sys.MS_REMOUNT | sys.MS_BIND | sys.MS_RDONLY | sys.MS_NOSUID)

    def _do_tmpfs(self, target: str, size: int, mode: int) -> None:
        sys.mount("tmpfs", target, "tmpfs", sys.MS_NOSUID | sys.MS_NODEV, f"mode={mode:o},size={size}")

    def _do_cover_read_only(self, paths: list[str]) -> None:
        for path in paths:
            self._attach(self._copy(path, ("rdonly",)), path, ("rdonly",))

    def _do_cover_file(self, paths: list[str]) -> None:
        for path in paths:
            self._attach(self._copy("/dev/null", ()), path, ())

    def _do_cover_directory(self, paths: list[str]) -> None:
        for path in paths:
            # /sys is ours and empty here.
            sys.mount("tmpfs", path, "tmpfs", sys.MS_RDONLY | sys.MS_NOSUID | sys.MS_NODEV, "size=4k,nr_inodes=1")

    # -- powers ---------------------------------------------------------------------------------------------------------

    def _do_no_more_namespaces(self) -> None:
        _write("/proc/sys/user/max_user_namespaces", "1")

    def _do_kernel_counts(self, settings: list[tuple[str, str]]) -> None:
        for name, value in settings:
            try:
                _write(f"/proc/sys/{name}", value)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS):
                    raise

    def _do_loopback(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))

    def _do_watch_sockets(self) -> None:
        self.sockets = open_diagnosis()

    def _do_hostname(self, name: str) -> None:
        sys.set_hostname(name)

    def _do_last_user_namespace(self) -> None:
        sys.unshare(sys.CLONE_NEWUSER)
        _write("/proc/self/uid_map", "0 0 1")
        _write("/proc/self/gid_map", "0 0 1")

    def _do_limits(self, limits: list[tuple[str, int]]) -> None:
        for name, value in limits:
            number = getattr(resource, f"RLIMIT_{name.upper()}")
            hard = resource.getrlimit(number)[1]
            bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (bounded, bounded))

    def _do_capabilities(self, kept: list[int]) -> None:
        sys.bound_capabilities(kept)
        sys.prctl(sys.PR_SET_SECUREBITS, SECURE_BITS)
        sys.prctl(sys.PR_CAP_AMBIENT, sys.PR_CAP_AMBIENT_CLEAR_ALL)
        bits = sum(1 << number for number in kept)
        sys.set_capabilities(bits, bits)

    def _do_settle(self, umask: int) -> None:
        sys.prctl(sys.PR_SET_NO_NEW_PRIVS, 1)
        os.umask(umask)
        sys.prctl(sys.PR_SET_DUMPABLE, 0)

    def _do_filter(self, families: list[str]) -> None:
        sys.load_filter(self._compiled)

    # -- mounts, on new kernels and old ---------------------------------------------------------------------------------

    def _copy(self, path: str, attributes: tuple[str, ...]) -> int:
        """A mount to be attached later."""
        if not self._modern:
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        fd = sys.open_tree(path)
        if attributes:
            sys.mount_setattr(fd, sum(ATTRIBUTES[name] for name in attributes))
        return fd

    def _attach(self, fd: int, target: str, attributes: tuple[str, ...]) -> None:
        if self._modern:
            sys.move_mount(fd, target)
        else:
            source = f"/proc/self/fd/{fd}"
            sys.mount(source, target, None, sys.MS_BIND | sys.MS_REC)
            if attributes:
                _remount(target, sum(FLAGS[name] for name in attributes))
        os.close(fd)


def _make_target(path: str, is_directory: bool) -> None:
    """Something to mount on."""
    try:
        if is_directory:
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o755)
        _make_target(path, is_directory)


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _unescape(field: bytes) -> str:
    """A path of mountinfo. By hand: a codec would have to be imported, and the root may be the sandbox's already."""
    for octal, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(octal, character)
    return os.fsdecode(field)


def _remount(target: str, flags: int) -> None:
    """Add flags to a bind mount and everything mounted below it, repeating the flags that are locked."""
    with open("/proc/self/mountinfo", "rb") as file:
        mounts = [line.split() for line in file]
    real = os.path.realpath(target)
    for fields in mounts:
        point = _unescape(fields[4])
        if point == real or point.startswith(real.rstrip("/") + "/"):
            kept = sum(KEPT_FLAGS.get(name, 0) for name in fields[5].decode().split(","))
            # From where we stand: the way from / may lead through directories that this id may not enter.
            reachable = os.path.join(target, os.path.relpath(point, real)) if point != real else target
            try:
                sys.mount(None, reachable, None, sys.MS_REMOUNT | sys.MS_BIND | kept | flags)
            except OSError as error:
                if point == real or error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EINVAL):
                    raise


def given(confinement: Confinement, name: str, fd: int, attributes: Any = ()) -> None:
    """A mount that the template made, under the name that the plan will put it by."""
    confinement._taken[name] = (fd, tuple(attributes))
