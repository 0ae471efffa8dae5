"""What this machine gives to sandboxes without namespaces, and what it does not."""

from __future__ import annotations

import os
import stat
import struct
import threading
from typing import TYPE_CHECKING

from aviato.server.backends.base import Check
from aviato.server.backends.local import syscalls
from aviato.values.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.server.backends.base import Limit
    from aviato.server.images.interpreters import Interpreter

CAP_SETGID, CAP_SETUID, CAP_KILL = 6, 7, 5
ALLOW_ALL = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
REMEDY = "use Linux 5.13 or newer with lsm=…,landlock, and a container whose seccomp profile allows landlock_create_ruleset"


def may_change_ids() -> bool:
    """Whether this root can give sandboxes ids of their own, and end what has them."""
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return all(held >> number & 1 for number in (CAP_SETGID, CAP_SETUID, CAP_KILL))


def may_ask() -> bool:
    """Whether a filter can have the kernel ask a process about calls: the server may have been started under one that does.

    Filters are a thread's own, so one is tried in a thread that ends.
    """
    found: list[bool] = []

    def attempt() -> None:
        try:
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            os.close(syscalls.load_filter(ALLOW_ALL, listening=True))
        except OSError:
            return
        found.append(True)

    thread = threading.Thread(target=attempt, name="aviato-filter-trial")
    thread.start()
    thread.join()
    return bool(found)


def is_open(path: str) -> bool:
    """Whether everybody may come to a path and read it."""
    while True:
        if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def explain(
    abi: int,
    directory: str,
    granted: Iterable[str],
    uids: int | None,
    interpreters: list[Interpreter],
    asks: bool,
    unkept: Mapping[str, str],
    limits: Mapping[str, Limit],
) -> list[Check]:
    """The lines of `aviato doctor`.

    Args:
        abi: the version of Landlock, 0 for none.
        directory: of all sandboxes.
        granted: paths that every sandbox may read.
        uids: how many ids of their own sandboxes can have; None if they have none.
        interpreters: that sandboxes can use.
        asks: see `may_ask`.
        unkept: promises by name.
        limits: those of a sandbox that asks for none.
    """
    checks = [
        Check(
            name="landlock",
            ok=abi > 0,
            detail=f"version {abi}" if abi else "the kernel has none, or it is switched off or forbidden",
            remedy=None if abi else REMEDY,
        ),
        _seccomp(),
        _descent(),
    ]
    if uids is not None:
        checks.append(Check(name="host uids", ok=True, detail=f"{uids} ids, one of its own for each sandbox"))
    checks.append(_place(directory, granted, uids is not None))
    listed = ", ".join(f"{one.version} ({one.executable})" for one in interpreters)
    install = None if interpreters else "sudo apt install python3"
    detail = listed or "no Python that sandboxes may use"
    checks.append(Check(name="interpreters", ok=bool(interpreters), detail=detail, remedy=install, required=False))
    checks.append(_by_number(asks))
    for strength in ("hard", "watched", "none"):
        names = [_shown(name, limit) for name, limit in limits.items() if limit.strength == strength]
        if names:
            checks.append(Check(name=f"limits: {strength}", ok=strength != "none", detail=", ".join(names), required=False))
    checks += [Check(name=f"not promised: {name}", ok=False, detail=text, required=False) for name, text in unkept.items()]
    return checks


def _place(directory: str, granted: Iterable[str], own_ids: bool) -> Check:
    """Whether the sandboxes' directory can be come to by their ids, and not by way of what all may read."""
    name, remedy = "state directory", "set AVIATO_STATE_DIR to another directory"
    real = os.path.realpath(directory)
    for path in granted:
        if f"{real}/".startswith(f"{os.path.realpath(path)}/"):
            return Check(name=name, ok=False, detail=f"{directory} lies in {path}, which every sandbox may read", remedy=remedy)
    if own_ids and not is_open(directory):
        remedy = f"chmod o+x the directories above, or {remedy}"
        closed = f"a directory above {directory} is closed to the sandboxes' ids"
        return Check(name=name, ok=False, detail=closed, remedy=remedy)
    return Check(name=name, ok=True, detail=directory)


def _by_number(asks: bool) -> Check:
    """Whether programs can name themselves by their numbers where they change limits, priorities and processors."""
    refused = "programs change their limits, priority and processors by the number 0 alone: another filter asks already"
    return Check(name="limits by number", ok=asks, detail="a sandbox's own" if asks else refused, required=False)


def _descent() -> Check:
    """Whether the kernel tells of the children of processes: by those a sandbox knows its own."""
    pid = os.getpid()
    there = os.path.exists(f"/proc/{pid}/task/{pid}/children")
    remedy = None if there else "use a kernel with CONFIG_PROC_CHILDREN, and a /proc that is not masked"
    return Check(name="descent", ok=there, detail="works" if there else "/proc does not tell of children", remedy=remedy)


def _seccomp() -> Check:
    try:
        syscalls.take_filters()
    except OSError as error:
        remedy = "use a kernel with CONFIG_SECCOMP_FILTER"
        return Check(name="seccomp", ok=False, detail=f"filters are refused: {error.strerror}", remedy=remedy)
    return Check(name="seccomp", ok=True, detail="works")


def _shown(name: str, limit: Limit) -> str:
    if limit.value is None:
        return name
    return f"{name} {format_bytes(limit.value) if name in ('memory', 'disk', 'file_size') else format(limit.value, '.0f')}"
