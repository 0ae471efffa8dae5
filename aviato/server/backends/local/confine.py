"""What the steps of a plan ask of the kernel, on the way to being a sandbox's process 1. Standard library only."""

from __future__ import annotations

import errno
import os
import resource
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import mounted
from aviato.server.backends.local import syscalls as sys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.backends.local.kernel import Kernel
    from aviato.server.backends.local.plan import Step
    from aviato.server.backends.local.record import Recorder

ATTRIBUTES = {"rdonly": sys.MOUNT_ATTR_RDONLY, "nosuid": sys.MOUNT_ATTR_NOSUID, "nodev": sys.MOUNT_ATTR_NODEV}
FLAGS = {"rdonly": sys.MS_RDONLY, "nosuid": sys.MS_NOSUID, "nodev": sys.MS_NODEV}
OF_PROC = sys.MS_NOSUID | sys.MS_NODEV | sys.MS_NOEXEC
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

NOT_TO_BE_SET = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Of settings that only newer kernels have, or let a sandbox change."""


class StepError(Exception):
    """A step failed; the message says which and how."""


class Confinement:
    """One process on its way in.

    Args:
        kernel: does what the steps ask for, or notes it.
        modern: whether the kernel has mount_setattr (5.12).
        content: what the caller's read-only files hold, one behind the other.
    """

    def __init__(self, kernel: Kernel | Recorder, *, modern: bool = True, content: int | None = None) -> None:
        self._kernel = kernel
        self._modern = modern
        self._content = content
        self._attributes: dict[str, tuple[str, ...]] = {}

    def execute(self, steps: Iterable[Step]) -> None:
        """Take the steps in order.

        Raises:
            StepError: one of them failed; the process must end.
        """
        for operation, arguments, reason in steps:
            try:
                self.take(operation, arguments)
            except OSError as error:
                raise StepError(f"{operation} ({reason}): {error}") from error

    def take(self, operation: str, arguments: Iterable[Any]) -> None:
        """Take one step."""
        getattr(self, f"_do_{operation}")(*arguments)

    # -- sources and identity -------------------------------------------------------------------------------------------

    def _do_place(self, path: str) -> None:
        self._kernel.change_directory(path)

    def _do_take(self, sources: list[tuple[str, str, tuple[str, ...]]]) -> None:
        for path, name, attributes in sources:
            if not self._kernel.has(name):
                self._keep_copy(name, path, attributes)

    def _do_take_directory(self, path: str, device: int, inode: int, name: str, attributes: tuple[str, ...]) -> None:
        if not self._kernel.has(name):
            self._keep_copy(name, self._kernel.path_of_directory(path, device, inode), attributes, private=True)

    def _keep_copy(self, name: str, path: str, attributes: tuple[str, ...], *, private: bool = False) -> None:
        self._kernel.keep(name, self._copy(path, attributes, private=private))
        self._attributes[name] = attributes

    def _do_identity(self) -> None:
        self._kernel.wait_for_maps()
        self._kernel.be(0, 0)
        # The change of uid took /proc/self away from us, which the second map needs.
        self._kernel.control(sys.PR_SET_DUMPABLE, 1)

    def _do_private_mounts(self) -> None:
        self._kernel.mount("none", "/", None, sys.MS_REC | sys.MS_PRIVATE)

    def _do_write_mounted(self, sizes: list[int]) -> None:
        if self._content is None:
            raise OSError(errno.EINVAL, "no content was sent")
        for path in mounted.write(self._content, sizes):
            self._keep_copy(path, path, ("rdonly", "nosuid", "nodev"))

    # -- the root -------------------------------------------------------------------------------------------------------

    def _do_bind_self(self, path: str, attributes: tuple[str, ...]) -> None:
        self._attach(self._copy(path, attributes), path, attributes)

    def _do_put_lower(self, target: str) -> None:
        self._kernel.attach(self._kernel.kept("lower"), target)

    def _do_overlay(self, lower: str, layers: str, target: str, attributes: tuple[str, ...]) -> None:
        if layers != ".":
            for name in ("upper", "work"):
                self._kernel.make_directory(f"{layers}/{name}", 0o755)
        link = lower
        if ":" in lower or "," in lower or "\\" in lower or lower.startswith(("/", "../")):
            # The option's own separators need no escape when the path is a descriptor's, which tells nothing of the machine or
            # of this sandbox to a later one that has its root.
            link = self._kernel.path_by_descriptor(lower)
        flags = sum(FLAGS[name] for name in attributes)
        options = f"lowerdir={link},upperdir={layers}/upper,workdir={layers}/work,userxattr"
        # Volatile: else its end would write all that anybody has written to that disk, and wait until it is there. Not before
        # Linux 5.10, and not where the disk has had an error that nobody has been told of.
        self._kernel.mount("overlay", target, "overlay", flags, f"{options},volatile", options)

    def _do_put_merged(self, target: str) -> None:
        self._kernel.attach(self._kernel.kept("merged"), target)

    def _do_lend_root(self, path: str) -> None:
        self._kernel.lend(path)

    def _do_keep_layer(self, path: str) -> None:
        # A mount of its own: its `..` leads nowhere, and what is mounted inside does not hide what lies below.
        self._kernel.keep("layer", self._kernel.copy_mount(path, recursive=False))
        if path != "root":
            # It is let go together with the old root, which leaves it to its descriptor alone. As a mount that ends by itself,
            # with process 1, it would have the kernel stop every processor once more.
            self._kernel.attach(self._kernel.kept("layer"), path)

    def _do_pivot(self, new: str) -> None:
        self._kernel.keep("old root", self._kernel.open("/", os.O_RDONLY | os.O_DIRECTORY))
        self._kernel.change_directory(new)
        self._kernel.pivot_root(".", ".")

    def _do_leave_old_root(self) -> None:
        old_root = self._kernel.kept("old root")
        self._kernel.return_to(old_root)
        self._kernel.unmount(".")
        self._kernel.change_directory("/")
        self._kernel.close(old_root)

    # -- filling it -----------------------------------------------------------------------------------------------------

    def _do_directories(self, directories: list[tuple[str, int]]) -> None:
        for path, mode in directories:
            self._kernel.make_directory(path, mode)

    def _do_links(self, links: list[tuple[str, str]]) -> None:
        for path, target in links:
            self._kernel.link(path, target)

    def _do_unlink(self, paths: list[str]) -> None:
        for path in paths:
            self._kernel.unlink(path)

    def _do_files(self, files: list[tuple[str, str]]) -> None:
        for path, content in files:
            self._kernel.create(path, content)

    def _do_put(self, mounts: list[tuple[str, str, bool]]) -> None:
        for name, target, is_directory in mounts:
            self._make_target(target, is_directory)
            self._put(name, target)

    def _do_put_directory(self, name: str, target: str) -> None:
        self._put(name, target)

    def _put(self, name: str, target: str) -> None:
        self._attach(self._kernel.kept(name), target, self._attributes.get(name, ()))

    def _do_put_mounted(self, paths: list[str]) -> None:
        mounted.make_targets(paths, lambda path: self._attach(self._copy(path, ()), path, ()))
        for number, path in enumerate(paths):
            self._put(f"{mounted.DIRECTORY}/{number}", path)

    def _do_proc(self) -> None:
        self._kernel.mount("proc", "/proc", "proc", OF_PROC)

    def _do_shared_devices(self) -> None:
        self._put("devices", "/dev")

    def _do_devices(self, names: list[str], links: list[tuple[str, str]], directories: list[str]) -> None:
        kernel = self._kernel
        kernel.mount("tmpfs", "/dev", "tmpfs", sys.MS_NOSUID, "mode=755,size=64k")
        for name in names:
            kernel.make_file(f"/dev/{name}")
            self._put(f"device {name}", f"/dev/{name}")
        for name, target in links:
            kernel.link(f"/dev/{name}", target)
        for name in directories:
            kernel.make_directory(f"/dev/{name}", 0o755)
        kernel.mount(None, "/dev", None, sys.MS_REMOUNT | sys.MS_BIND | sys.MS_RDONLY | sys.MS_NOSUID)

    def _do_terminals(self, most: int) -> None:
        own = f"newinstance,ptmxmode=0666,mode=620,max={most}"
        self._kernel.mount("devpts", "/dev/pts", "devpts", sys.MS_NOSUID | sys.MS_NOEXEC, own)

    def _do_tmpfs(self, target: str, size: int, mode: int) -> None:
        self._kernel.mount("tmpfs", target, "tmpfs", sys.MS_NOSUID | sys.MS_NODEV, f"mode={mode:o},size={size}")

    def _do_cover_read_only(self, paths: list[str]) -> None:
        # What is bound has the attributes of the mount that it is seen by: one change of that is cheaper than one of each.
        remount = sys.MS_REMOUNT | sys.MS_BIND | OF_PROC
        self._kernel.mount(None, "/proc", None, remount | sys.MS_RDONLY)
        for path in paths:
            self._kernel.bind_self(path)
        self._kernel.mount(None, "/proc", None, remount)

    def _do_cover_file(self, paths: list[str]) -> None:
        for path in paths:
            self._kernel.mount("/dev/null", path, None, sys.MS_BIND)

    def _do_cover_with(self, covers: list[tuple[str, str]]) -> None:
        for path, by in covers:
            self._kernel.mount(by, path, None, sys.MS_BIND)

    def _do_cover_directory(self, paths: list[str], taken: bool) -> None:
        for path in paths:
            if taken:
                self._put(f"empty {path}", path)
                continue
            # There is nothing empty and read only that could be bound in its place.
            flags = sys.MS_RDONLY | sys.MS_NOSUID | sys.MS_NODEV
            self._kernel.mount("tmpfs", path, "tmpfs", flags, "size=4k,nr_inodes=1")

    # -- powers ---------------------------------------------------------------------------------------------------------

    def _do_no_more_namespaces(self) -> None:
        self._kernel.write("/proc/sys/user/max_user_namespaces", "1")

    def _do_kernel_counts(self, settings: list[tuple[str, str]]) -> None:
        for name, value in settings:
            self._kernel.write(f"/proc/sys/{name}", value, NOT_TO_BE_SET)

    def _do_loopback(self) -> None:
        self._kernel.raise_loopback()

    def _do_watch_sockets(self) -> None:
        self._kernel.keep("sockets", self._kernel.open_diagnosis())

    def _do_hostname(self, name: str) -> None:
        self._kernel.name_host(name)

    def _do_last_user_namespace(self, ids: int) -> None:
        self._kernel.enter_user_namespace(sys.id_map(0, ids))

    def _do_limits(self, limits: list[tuple[str, int]]) -> None:
        for name, value in limits:
            self._kernel.limit(getattr(resource, f"RLIMIT_{name.upper()}"), value)

    def _do_processors(self, processors: list[int]) -> None:
        self._kernel.run_on(processors)

    def _do_capabilities(self, kept: list[int], rights: list[int]) -> None:
        # Whoever is root has, after it has started a program, what is left here.
        self._kernel.bound_capabilities(rights)
        self._kernel.control(sys.PR_CAP_AMBIENT, sys.PR_CAP_AMBIENT_CLEAR_ALL)
        self._kernel.set_capabilities(sum(1 << number for number in {*kept, *rights}))

    def _do_settle(self, umask: int) -> None:
        self._kernel.control(sys.PR_SET_NO_NEW_PRIVS, 1)
        self._kernel.set_umask(umask)
        self._kernel.control(sys.PR_SET_DUMPABLE, 0)

    def _do_filter(self, families: list[str]) -> None:
        self._kernel.load_filter()

    # -- mounts, on new kernels and old ---------------------------------------------------------------------------------

    def _copy(self, path: str, attributes: tuple[str, ...], *, private: bool = False) -> int:
        """A mount to be attached later; with `private`, one that no later mount of the machine's comes to."""
        if not self._modern:
            return self._kernel.open(path, os.O_PATH)  # What it is attached from has been made private by then.
        return self._kernel.copy_mount(path, sum(ATTRIBUTES[name] for name in attributes), private=private)

    def _attach(self, fd: int, target: str, attributes: tuple[str, ...]) -> None:
        if self._modern:
            self._kernel.attach(fd, target)
        else:
            source = f"/proc/self/fd/{fd}"
            sys.mount(source, target, None, sys.MS_BIND | sys.MS_REC)
            if attributes:
                _remount(target, sum(FLAGS[name] for name in attributes))
        self._kernel.close(fd)

    def _make_target(self, path: str, is_directory: bool) -> None:
        """Something to mount on."""
        names = path.split("/")[1:]
        for depth in range(1, len(names) + is_directory):
            self._kernel.make_directory("/" + "/".join(names[:depth]), 0o755)
        if not is_directory:
            self._kernel.make_file(path)


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
