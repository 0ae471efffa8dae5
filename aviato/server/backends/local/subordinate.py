"""Users and groups for sandboxes of an ordinary user, out of those that `/etc/subuid` and `/etc/subgid` let it give out.

Root of a sandbox is that user itself; all others inside are subordinate ids, the same ones in each of its sandboxes. Who gives
them out is in a user namespace in which two programs of the machine's, `newuidmap` and `newgidmap`, have mapped them.
Standard library only: `remover.py` loads it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aviato.server.backends.local import bare, syscalls

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = ("/etc/subuid", "/etc/subgid")
PROGRAMS = ("newuidmap", "newgidmap")
IDS = 65_536
"""So many users and groups a sandbox is to have: what images and packages take for granted."""
FEWEST = 1_000
"""With fewer a sandbox has root alone: not even the users of a system would have a number."""
SECONDS = 60.0
ASKS, MAPPED = b"map", b"mapped"


class Ranges(NamedTuple):
    """The first of the ids that this user may give out, and how many."""

    uid: int
    gid: int
    size: int


def ranges_in(path: str) -> list[tuple[str, int, int]]:
    """Who may give out which ids: a name or number, the first and how many."""
    try:
        with open(path) as file:
            fields = [line.strip().split(":") for line in file]
    except OSError:
        return []
    whole = (one for one in fields if len(one) == 3 and one[1].isdecimal() and one[2].isdecimal())
    return [(name, int(first), int(count)) for name, first, count in whole]


def find() -> Ranges | None:
    """What this user may give out; None for root, and where there is nothing or the programs are missing."""
    if os.geteuid() == 0 or not all(map(shutil.which, PROGRAMS)):
        return None
    largest = []
    for path in FILES:
        own = [(count, first) for name, first, count in ranges_in(path) if name in names()]
        largest.append(max(own, default=(0, 0)))
    (uids, uid), (gids, gid) = largest
    count = min(uids, gids, IDS - 1)
    return Ranges(uid, gid, count) if count >= FEWEST else None


def names() -> tuple[str, str]:
    """What this user is called in those files."""
    number = str(os.getuid())
    try:
        return pwd.getpwuid(os.getuid()).pw_name, number
    except KeyError:
        return number, number


def give(pid: int, ranges: Ranges) -> None:
    """Map them in the user namespace that a process of this user has entered.

    Raises:
        OSError: a program could not be started, or refused.
    """
    for program, own, first in zip(PROGRAMS, (os.geteuid(), os.getegid()), ranges, strict=False):
        argv = [program, str(pid), "0", str(own), "1", "1", str(first), str(ranges.size)]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{program} did not end within {SECONDS:g} s") from error
        if done.returncode != 0:
            raise PermissionError(f"{program}: {done.stderr.decode(errors='replace').strip()[-300:]}")


def take(asked: socket.socket) -> None:
    """Be root of a user namespace that has them; whoever is at the other end maps them by `serve`.

    Raises:
        OSError: this process may not have one, or nobody mapped anything.
    """
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    asked.send(ASKS)
    if asked.recv(len(MAPPED)) != MAPPED:
        raise PermissionError("no ids were mapped")
    os.setgroups([])


def serve(asking: socket.socket, pid: int, ranges: Ranges) -> None:
    """The other end of `take`, in the process that has started that one.

    Raises:
        OSError: it ended, or nothing could be mapped.
    """
    if asking.recv(len(ASKS)) != ASKS:
        raise ConnectionError("it ended before it asked")
    give(pid, ranges)
    asking.send(MAPPED)


def remove(directory: str, of_directory: Sequence[str], ranges: Ranges) -> list[str]:
    """Take away trees in which sandboxes have left what belongs to other users of theirs; returns what resists."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executable: str = getattr(sys, "_base_executable", sys.executable)
    argv = [
        executable,
        *bare.FLAGS,
        str(Path(__file__).with_name("remover.py")),
        str(theirs.fileno()),
        directory,
        *of_directory,
    ]
    with ours:
        ours.settimeout(SECONDS)
        with theirs:
            remover = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()], cwd="/", env={}
            )
        with remover:
            try:
                serve(ours, remover.pid, ranges)
            except OSError:
                remover.kill()
            assert remover.stdout is not None
            removed = set(os.fsdecode(remover.stdout.read()).split("\0"))
    return [name for name in of_directory if name not in removed]
