"""The directories of sandboxes: finding who lives there, and taking them away. Blocking: call it in a thread."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import struct
import time
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import groups, subordinate
from aviato.trees.removal import remove_tree
from aviato.wire.ids import SANDBOX_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SO_PEERPIDFD = 77
STARTING_SECONDS = 5.0
OF_OVERLAYS = frozenset(f"user.overlay.{name}" for name in ("uuid", "origin", "impure"))
"""Attributes that the kernel gives a layer by itself, by which nothing is seen."""


class Directories:
    """`sandboxes/`, `left/` and `trash/` below one directory."""

    def __init__(self, directory: Path) -> None:
        self.sandboxes = directory / "sandboxes"
        self.left = directory / "left"
        self.trash = directory / "trash"
        self.ranges: subordinate.Ranges | None = None
        """Ids that sandboxes have beside the server's own."""
        self.groups = directory / "groups"
        self.group_directories: list[str] = []
        """Where control groups of the sandboxes may lie."""

    def make(self) -> None:
        """Make them; sandboxes' own ids pass through."""
        self.sandboxes.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.left.mkdir(mode=0o700, exist_ok=True)
        self.trash.mkdir(mode=0o700, exist_ok=True)

    def path(self, sandbox_id: str) -> str:
        """The directory of one sandbox."""
        if not SANDBOX_ID.fullmatch(sandbox_id):
            raise ValueError(f"{sandbox_id!r} is not a sandbox id")
        return f"{self.sandboxes}/{sandbox_id}"

    def left_path(self, sandbox_id: str) -> str:
        """Where the directory of one that is gone is kept for another."""
        return f"{self.left}/{os.path.basename(self.path(sandbox_id))}"

    def ids(self) -> list[str]:
        """All sandboxes that have a directory."""
        try:
            return sorted(name for name in os.listdir(self.sandboxes) if SANDBOX_ID.fullmatch(name))
        except FileNotFoundError:
            return []

    def uids(self) -> list[int]:
        """The host uids that sandboxes have."""
        return [uid for name in self.ids() if (uid := self.owner(name)) >= 0]

    def owner(self, sandbox_id: str) -> int:
        """The host uid of one, which as root is its gid, too; negative where it has no directory."""
        with contextlib.suppress(OSError):
            # What is in it can be given to others inside, it cannot.
            found = os.stat(self.path(sandbox_id))
            return found.st_gid if os.geteuid() == 0 else found.st_uid
        return -1

    def has_empty_layer(self, sandbox_id: str) -> bool:
        """Whether nobody has written, removed or changed anything in its root, the root itself included."""
        try:
            with os.scandir(f"{self.path(sandbox_id)}/upper") as entries:
                return next(entries, None) is None and self.has_plain_root(sandbox_id)
        except OSError:
            return False

    def has_plain_root(self, sandbox_id: str) -> bool:
        """Whether its root itself is as it was made: overlayfs takes what that has from the uppermost layer alone.

        And with the ids that a store has, so that the layer is one of a store as it lies there.
        """
        upper = f"{self.path(sandbox_id)}/upper"
        try:
            found, attributes = os.lstat(upper), os.listxattr(upper)
        except OSError:
            return False
        as_made = 0o755, os.geteuid(), os.getegid()
        return (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == as_made and OF_OVERLAYS.issuperset(attributes)

    def connect(self, sandbox_id: str, name: str = "s", kind: int = socket.SOCK_STREAM) -> socket.socket | None:
        """A connection to the sandbox's process 1; None if there is none any more.

        Args:
            sandbox_id: which.
            name: of the socket: `s` is process 1's own, `p` (SOCK_SEQPACKET) that of its ports.
            kind: of the socket.
        """
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
            try:
                directory = os.open(self.path(sandbox_id), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    sock.connect(f"/proc/self/fd/{directory}/{name}")
                    if not os.path.samestat(os.stat(self.path(sandbox_id)), os.fstat(directory)):
                        sock.close()  # Another sandbox has its place by now.
                        return None
                finally:
                    os.close(directory)
                return sock
            except OSError as error:
                sock.close()
                if error.errno not in (errno.ECONNREFUSED, errno.ENOENT) or not self._is_held(sandbox_id):
                    return None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)  # A process holds the note: it is on its way to listening, or on its way out.

    def find(self, sandbox_id: str) -> int | None:
        """A pidfd of the sandbox's process 1, by the credentials of its listening socket; None if there is none."""
        sock = self.connect(sandbox_id)
        if sock is None:
            return None
        with sock:
            pidfd = peer_pidfd(sock)
            if pidfd is not None:
                return pidfd
            pid = peer_pid(sock)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        # The same process still listens, so the number was not used again in between.
        again = self.connect(sandbox_id)
        if again is not None:
            with again:
                if peer_pid(again) == pid:
                    return pidfd
        os.close(pidfd)
        return None

    def note(self, sandbox_id: str) -> dict[str, Any] | None:
        """The reason that a process 1 left behind."""
        try:
            fd = os.open(f"{self.path(sandbox_id)}/note", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            lines = os.read(fd, 1 << 16).splitlines()
        finally:
            os.close(fd)
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and "reason" in value:
                    return value
        return None

    def leave_note(self, sandbox_id: str, reason: str) -> None:
        """Say in place of its process 1 how a sandbox ended.

        Raises:
            OSError: it cannot be written.
        """
        path = self.path(sandbox_id)
        os.makedirs(path, mode=0o700, exist_ok=True)
        with open(f"{path}/note", "a", encoding="utf-8") as file:
            file.write(json.dumps({"reason": reason, "returncode": None}) + "\n")

    def leave_results(self, sandbox_id: str, path: str) -> bool:
        """Keep the note, if there are results behind it that nobody confirmed, under another name too.

        A server that was killed when it had done so does it again.
        """
        note = f"{self.path(sandbox_id)}/note"
        try:
            with open(note, "rb") as file:
                if not any(b'"exec_id"' in line for line in file):
                    return False
                try:
                    os.link(note, path)
                except FileExistsError:
                    if not os.path.samefile(note, path):  # Others were kept before.
                        file.seek(0)
                        with open(path, "ab") as kept:
                            kept.write(b"\n")  # What another server did not write to its end.
                            shutil.copyfileobj(file, kept)
        except FileNotFoundError:
            return False
        return True

    def remove(self, sandbox_id: str, *, grouped: bool = True) -> None:
        """Take the directory away; what resists goes to the trash.

        Args:
            sandbox_id: whose.
            grouped: whether it may have control groups.
        """
        path = self.path(sandbox_id)
        name = os.path.basename(path)
        if grouped:
            groups.remove(name, self.group_directories)
        if _remove_unused(path):
            return
        parent = os.open(self.sandboxes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in remove_tree(parent, name):
                pass
        except FileNotFoundError:
            return
        except OSError:
            if self._remove_as_theirs(self.sandboxes, [name]):
                os.rename(f"{self.sandboxes}/{name}", f"{self.trash}/{name}.{time.time_ns()}")
        finally:
            os.close(parent)

    def remove_left(self, sandbox_id: str) -> None:
        """Take away one that was kept for another.

        Raises:
            OSError: something of it resists.
        """
        if not _remove_unused(self.left_path(sandbox_id)) and self._empty(self.left, [sandbox_id]):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.left_path(sandbox_id))

    def remove_tree(self, tree: Path) -> None:
        """Take away a tree that files of any users may be in.

        Raises:
            OSError: something of it resists.
        """
        if self._empty(tree.parent, [tree.name]):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(tree))

    def empty_trash(self) -> list[str]:
        """Try again what resisted, and remove what a server before kept; returns what still resists."""
        return [name for directory in (self.left, self.trash) for name in self._empty(directory, os.listdir(directory))]

    def _empty(self, directory: Path, names: Iterable[str]) -> list[str]:
        """Remove these; returns what resists."""
        return self._remove_as_theirs(directory, _empty(directory, names))

    def _remove_as_theirs(self, directory: Path, names: list[str]) -> list[str]:
        """Remove what other users of sandboxes have left, which an ordinary user's server cannot; returns what resists."""
        return subordinate.remove(str(directory), names, self.ranges) if names and self.ranges is not None else names

    def _is_held(self, sandbox_id: str) -> bool:
        """Whether any process holds the sandbox's note, which its process 1 locks for life."""
        try:
            fd = os.open(f"{self.path(sandbox_id)}/note", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


def _empty(directory: Path, names: Iterable[str]) -> list[str]:
    """Remove these; returns what resists."""
    resisted = []
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            try:
                for _ in remove_tree(parent, name):
                    pass
            except FileNotFoundError:
                continue
            except OSError:
                resisted.append(name)
    finally:
        os.close(parent)
    return resisted


def _remove_unused(path: str) -> bool:
    """Remove a directory in which nothing was written, without looking into each of its own; False if something is left."""
    try:
        for name in ("note", "s"):
            os.unlink(f"{path}/{name}")
        with contextlib.suppress(FileNotFoundError):  # Only of an overlay that is `volatile`.
            for name in ("", "/incompat", "/incompat/volatile") if os.geteuid() != 0 else ():
                os.chmod(f"{path}/work/work{name}", 0o700)  # The kernel gives nobody any right to them.
            os.unlink(f"{path}/work/work/incompat/volatile/dirty")
            os.rmdir(f"{path}/work/work/incompat/volatile")
            os.rmdir(f"{path}/work/work/incompat")
        for name in ("/work/work", "/work", "/upper", ""):
            os.rmdir(path + name)
    except OSError:
        return False
    return True


def peer_pid(sock: socket.socket) -> int:
    """The process that last called listen() on the other end."""
    pid: int = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def peer_pidfd(sock: socket.socket) -> int | None:
    """A pidfd of it, on kernels that have that (6.5)."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return None
