"""The template: a small process with the supervisor loaded, which forks sandboxes. Standard library only; started by path.

Its one descriptor is a SEQPACKET socket to the server. A message asks for a sandbox and carries the first connection to it; the
answer carries a pidfd. When the socket closes the template ends, and its sandboxes live on.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import bare  # type: ignore[import-not-found]

    del sys.path[0]
    bare.enter_profile()
    bare.packages(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4)))

import array
import ctypes
import errno
import fcntl
import gc
import json
import mmap
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import native, newborn, requests, subordinate, syscalls
from aviato.server.supervisor import lineage, program, rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator

    Message = tuple[bytes | None, list[int]]
    """What the server asks for, with descriptors; nothing where children have died."""

LARGEST_MESSAGE = 1 << 18
ALL_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWCGROUP
)
ABSENT = -1
"""In place of a descriptor."""


def make_place(place: str, owned: list[str], uid: int, gid: int) -> tuple[int, int]:
    """A sandbox's directory: a listening address, a note that is locked as long as it lives, directories that its id owns.

    Nobody comes in but the server and that id, and it cannot change who does: it passes by its group.
    """
    os.mkdir(place, 0o700 if uid == os.geteuid() else 0o710)
    if uid != os.geteuid():
        os.chown(place, -1, gid)
    for name in owned:
        os.mkdir(f"{place}/{name}", 0o755)
        os.chown(f"{place}/{name}", uid, gid)
    note = os.open(f"{place}/note", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return bind_in(place, "s", socket.SOCK_STREAM), note


def bind_in(place: str, name: str, kind: int) -> int:
    """A Unix socket in a sandbox's directory, where nobody inside can see it."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    os.chdir(place)  # A path of one letter is never too long for a socket.
    listener.bind(name)
    os.chdir("/")
    return listener.detach()


def make_groups(groups: list[dict[str, Any]], uid: int) -> list[int]:
    """The control groups of a sandbox; returns what `program.run` takes."""
    if not groups:
        return []
    unified = "supervisors" in groups[0]
    opened: list[int] = []
    try:
        for group in groups:
            os.mkdir(group["path"])
            for name, value, needed in group["files"]:
                _set(f"{group['path']}/{name}", value, needed)
        events = "memory.events" if unified else "memory.oom_control"
        opened.append(os.open(f"{groups[0]['path']}/{events}", os.O_RDONLY | os.O_CLOEXEC))
        if unified:
            # Process 1 starts commands in there, and it is the kernel that asks whether it may.
            os.chown(f"{groups[0]['path']}/cgroup.procs", uid, -1)
            opened.append(os.open(groups[0]["path"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        else:
            opened.append(os.open(f"{groups[0]['path']}/memory.max_usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC))
            opened += [os.open(f"{group['path']}/tasks", os.O_WRONLY | os.O_CLOEXEC) for group in groups]
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    return opened


def _set(path: str, value: str, needed: bool) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if needed:
            raise
        return
    try:
        os.write(fd, value.encode())
    except OSError as error:
        if needed or error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


class Template:
    """One server's forker of sandboxes.

    Args:
        control: the socket to the server.
        gives_ids: it is to be root of a user namespace that has subordinate ids, which the server maps.
    """

    def __init__(self, control: int, gives_ids: bool = False) -> None:
        self._control = socket.socket(fileno=control)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, native.PATH_DESCRIPTOR, inheritable=False)
        os.close(null)
        if gives_ids:
            subordinate.take(self._control)
        elif os.geteuid() == 0:
            _leave_groups()
        # Possession opens keys, whatever the uid: what the server's login session holds (Kerberos tickets, say) stays outside.
        syscalls.leave_session_keyring()
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)
        # As process 1 a child is safe from signals of its inside only where no handler is set.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._children = program.child_signals()
        rehearsal.rehearse(self._children)
        with open("/proc/self/stat", "rb") as file:
            start, end = (int(field) for field in file.read().rpartition(b")")[2].split()[45:47])
        self._arguments = (start, end - start)
        self._supervisors: set[int] = set()
        """Of sandboxes without namespaces."""
        self._native = native.load(renews=False)  # The server has.
        self._orphans = False
        """Whether there have been any: what a supervisor that is killed leaves behind comes to this process."""

    def run(self) -> None:
        """Serve until the server is gone."""
        gc.collect()
        gc.freeze()
        gc.disable()
        turns = self._turns() if self._native is None else self._compiled_turns(self._native)
        for data, fds in turns:
            if data is None:
                self._reap()
            else:
                self._serve(data, fds)

    def _turns(self) -> Iterator[Message]:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._children:
                    yield None, []
                    continue
                space = socket.CMSG_SPACE(native.GIVEN * 4)
                data, ancillary, _, _ = self._control.recvmsg(LARGEST_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
                fds = array.array("i")
                for _, _, payload in ancillary:
                    fds.frombytes(payload)
                if not data:
                    return
                yield data, list(fds)

    def _compiled_turns(self, library: Any) -> Iterator[Message]:
        """As `_turns`, but the usual requests are served on the way."""
        room = mmap.mmap(-1, LARGEST_MESSAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start, size = self._arguments
        turn = native.Turn(self._control.fileno(), self._children, 1, room=LARGEST_MESSAGE, namespaces=ALL_NAMESPACES)
        turn.buffer = ctypes.addressof(ctypes.c_char.from_buffer(room))
        turn.birth.title, turn.birth.title_size, turn.birth.name = start, size, newborn.NAME
        early = program.early()  # Held, since it points to what is held by it alone.
        turn.early = early
        while True:
            turn.alone = not self._orphans
            what = library.aviato_template(turn)
            if what == native.BORN:
                newborn.go_on(turn.birth, turn.connection, bool(turn.ports), early=turn.early)
            if what == native.ENDED:
                return
            yield (None, []) if what == native.CHILDREN_DIED else (room[: turn.size], turn.fds[: turn.fd_count])

    def _reap(self) -> None:
        os.read(self._children, 4096)
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                break
            self._supervisors.discard(pid)
            if self._native is not None:
                self._native.aviato_network_ended(pid)
                self._native.aviato_layers_ended(pid)
                self._native.aviato_group_ended(pid)
        if self._orphans:
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill what is left of sandboxes without namespaces whose supervisor was killed; their own children come next."""
        for pid in lineage.children(None, str(os.getpid())):
            if int(pid) not in self._supervisors:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _serve(self, data: bytes, kept: list[int]) -> None:
        head, _, calls = data.partition(b"\0")
        if data.startswith(requests.SHARING):
            return
        if data.startswith((requests.BURIAL, requests.OBLIVION)):  # Asked of a template without its compiled part.
            self._tell({"n": int.from_bytes(data[4:8], sys.byteorder), "kept": []})
            return
        request = json.loads(head)
        request["calls"] = calls
        try:
            pid, pidfd = self._create(request, kept)
            kept.append(pidfd)
            self._tell({"n": request["n"], "pid": pid}, [pidfd])
        except OSError as error:
            self._tell({"n": request["n"], "errno": 0, "error": str(error)})
        finally:
            for fd in kept:
                os.close(fd)

    def _tell(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._control.sendmsg([json.dumps(message).encode()], ancillary)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise

    def _create(self, request: dict[str, Any], kept: list[int]) -> tuple[int, int]:
        """Make the place, clone, map the ids; `kept` collects what this process has to close."""
        listener, note = make_place(request["place"], request["owned"], request["uid"], request["gid"])
        kept += [listener, note]
        fds = [kept[0], listener, note]
        if request["ports"]:
            fds.append(bind_in(request["place"], "p", socket.SOCK_SEQPACKET))
            kept.append(fds[-1])
        groups = make_groups(request["groups"], request["uid"])
        kept += groups
        fds += groups
        supervisors, namespaces = None, ALL_NAMESPACES
        if request["groups"] and "supervisors" in request["groups"][0]:
            supervisors = os.open(request["groups"][0]["supervisors"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            kept.append(supervisors)
            # Nobody is let into a group that lies outside of what his namespace shows.
            namespaces &= ~syscalls.CLONE_NEWCGROUP
        trees: list[tuple[int, str, int]] = []
        for number, name, path, attributes, known in request["trees"]:
            tree = _copy_known(path, *known) if known[1] else syscalls.open_tree(path)
            kept.append(tree)
            syscalls.mount_setattr(tree, attributes, private=True)
            trees.append((number, name, tree))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            if request["plan"] is None:
                pid, pidfd = self._bear(request, namespaces, supervisors, (ours, theirs), fds, trees)
            else:
                pid, pidfd = self._clone(0 if request["descent"] else namespaces, supervisors)
                if pid == 0:
                    ours.close()
                    self._control.close()
                    content = kept[1] if request["content"] else None
                    newborn.execute(request, self._arguments, theirs, fds, self._children, trees, content)
            if request["descent"]:
                self._supervisors.add(pid)
                self._orphans = True
                return pid, pidfd
            try:
                self._map(pid, request, ours)
            except OSError:
                os.kill(pid, signal.SIGKILL)
                os.close(pidfd)
                raise
        return pid, pidfd

    def _clone(self, namespaces: int, supervisors: int | None) -> tuple[int, int]:
        """A child, in a group of its own where processors are shared out by groups."""
        if self._native is None or supervisors is not None:
            return syscalls.clone(namespaces, supervisors)
        group = self._native.aviato_enter_group()
        pid = -1
        try:
            pid, pidfd = syscalls.clone(namespaces, group if group >= 0 else None)
        finally:
            if pid != 0:
                self._native.aviato_leave_group(pid)
        return pid, pidfd

    def _bear(
        self,
        request: dict[str, Any],
        namespaces: int,
        supervisors: int | None,
        sync: tuple[socket.socket, socket.socket],
        fds: list[int],
        trees: list[tuple[int, str, int]],
    ) -> tuple[int, int]:
        """Have compiled code clone, and in the child make the calls of its plan."""
        connection, listener, note, *others = fds
        start, size = self._arguments
        registers = (ctypes.c_int32 * native.REGISTERS)(connection, listener, note, ABSENT, ABSENT, self._children, *others)
        registers[native.SYNC] = sync[1].fileno()
        for number, _, tree in trees:
            registers[number] = tree
        calls = request["calls"]
        birth = native.Birth(
            namespaces,
            ABSENT if supervisors is None else supervisors,
            start,
            size,
            newborn.NAME,
            sync[0].fileno(),
            ctypes.cast(ctypes.c_char_p(calls), ctypes.c_void_p),
            len(calls),
            registers,
            native.OTHERS + len(others),
            ABSENT,
            0,
            0,
        )
        if self._native is None:
            raise OSError(errno.ENOSYS, "the compiled part of a sandbox's birth is gone; start the server again")
        pid = self._native.aviato_birth(birth)
        if pid == 0:
            newborn.go_on(birth, connection, request["ports"], bytes.fromhex(request["born_filter"]))
        if pid < 0:
            raise OSError(birth.error, f"clone: {os.strerror(birth.error)}")
        return pid, birth.pidfd

    def _map(self, pid: int, request: dict[str, Any], sync: socket.socket) -> None:
        ids = request["ids"]
        for name, content in (
            *([("setgroups", "deny")] if ids == 1 else []),
            ("uid_map", syscalls.id_map(request["uid"], ids)),
            ("gid_map", syscalls.id_map(request["gid"], ids)),
        ):
            fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, content.encode())
            finally:
                os.close(fd)
        if request["lower"] is None:
            sync.send(b"m")
            return
        tree = syscalls.open_tree(request["lower"], recursive=False)
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, recursive=False, user_namespace=namespace, private=True)
            socket.send_fds(sync, [b"m"], [tree])
        finally:
            os.close(namespace)
            os.close(tree)


def _copy_known(path: str, device: int, inode: int) -> int:
    """A copy of the mount of a directory that is what it was when the server looked at it."""
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(directory)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return syscalls.open_tree("", directory=directory)
    finally:
        os.close(directory)


def _leave_groups() -> None:
    try:
        os.setgroups([])
    except PermissionError:
        pass  # A root without this right has none to give its sandboxes other ids either.


if __name__ == "__main__":
    for number in sys.argv[2:]:
        if number.isdecimal():
            os.close(int(number))  # What this was run from.
    Template(int(sys.argv[1]), native.GIVES_IDS in sys.argv).run()
