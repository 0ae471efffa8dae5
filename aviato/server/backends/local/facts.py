"""What plans have to know of this machine."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import resource
import stat
from typing import TYPE_CHECKING

from aviato.server import machine
from aviato.server.backends.local import configuration, groups, hardware, own_local, tools, way_out
from aviato.server.backends.local.bounds import (
    LIMIT_FILE_BYTES,
    LIMIT_OPEN_FILES,
    LIMIT_WATCHES,
    OPEN_FILES_SHARE,
    SOCKETS_SHARE,
    WATCHES_SHARE,
)
from aviato.server.backends.local.host_tree import own_prefix
from aviato.server.backends.local.plan import PAGE_BYTES, PROC_READ_ONLY, HostFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aviato.server.images.interpreters import Interpreter

MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
RECORDS = ("/var/lib/dpkg/status", "/var/lib/dpkg/arch")
"""By which Debian's tools know what is installed in /usr."""
PROCESSES_OF_A_SANDBOX = 2
"""Threads of process 1 that count as well."""
HEAD_BYTES = 512
"""Of a program, in which it says what it is run by."""


def kernel() -> tuple[int, int]:
    """Major and minor version of the running kernel."""
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(match[1]), int(match[2])) if match else (0, 0)


def gather(*, grouped: bool = True) -> HostFacts:
    """Look at the machine; with `grouped`, also for control groups, and make ours there."""
    links = tuple((name, os.readlink(f"/{name}").removeprefix("/")) for name in MERGED if os.path.islink(f"/{name}"))
    directories = tuple(name for name in MERGED if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"))
    shared = configuration.find()
    zones = (f"/usr/share/zoneinfo/{name}" for name in ("Etc/UTC", "UTC"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    names = [name for name in os.listdir("/proc") if not name.isdecimal()]
    return HostFacts(
        links=links,
        directories=directories,
        etc_shared=shared.names,
        etc_left_out=shared.left_out,
        hardware=hardware.find(),
        local=own_local.find(),
        jvm_networks=tuple(_jvm_networks(shared.names)),
        records=tuple(path for path in RECORDS if os.path.isfile(path)),
        proc=frozenset(names),
        proc_writable=frozenset(name for name in names if name not in PROC_READ_ONLY and _is_writable(f"/proc/{name}")),
        has_bash=os.access("/bin/bash", os.X_OK),
        utc=next((zone for zone in zones if os.path.isfile(zone)), None),
        open_files=LIMIT_OPEN_FILES if hard == resource.RLIM_INFINITY else min(LIMIT_OPEN_FILES, hard // OPEN_FILES_SHARE),
        file_bytes=min(LIMIT_FILE_BYTES, _hard(resource.RLIMIT_FSIZE) or LIMIT_FILE_BYTES),
        processes=None if (most := _hard(resource.RLIMIT_NPROC)) is None else max(0, most - PROCESSES_OF_A_SANDBOX),
        address_bytes=min(filter(None, map(_hard, (resource.RLIMIT_AS, resource.RLIMIT_DATA))), default=None),
        watches=None if os.geteuid() == 0 else _watches(),
        sockets=tuple(_sockets()),
        limit_processes=kernel() >= (5, 14) or os.geteuid() == 0,
        memory_bytes=memory_bytes(),
        processors=len(os.sched_getaffinity(0)),
        swap=bool(machine.meminfo_bytes("SwapTotal")),
        groups=groups.find() if grouped else (),
    )


def _jvm_networks(shared: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    """What of it sandboxes see: one with a password in it is none of theirs."""
    names = {f"/etc/{name}" for name, _ in shared}
    for path in sorted(glob.glob(way_out.JVM_SETTINGS)):
        if path in names or os.path.dirname(path) in names:
            with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
                yield path, file.read()


def _is_writable(path: str) -> bool:
    """Whether it is a file that anybody can write to, or a directory that may hold one; a link is neither."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return any(_is_writable(f"{path}/{name}") for name in os.listdir(path))
    except PermissionError:
        return True
    except OSError:
        return False  # Gone meanwhile.
    return not stat.S_ISLNK(mode) and bool(mode & 0o222)


def _hard(number: int) -> int | None:
    """The server's own hard limit, which none of its sandboxes can go beyond."""
    hard = resource.getrlimit(number)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _watches() -> int:
    try:
        with open("/proc/sys/fs/epoll/max_user_watches") as file:
            return min(LIMIT_WATCHES, int(file.read()) // WATCHES_SHARE)
    except (OSError, ValueError):
        return LIMIT_WATCHES


def _sockets() -> Iterator[tuple[str, int]]:
    """Of closed connections, and of what TCP and UDP hold; nothing of what this server cannot see."""
    for name, file in (("orphans", "tcp_max_orphans"), ("tcp_bytes", "tcp_mem"), ("udp_bytes", "udp_mem")):
        try:
            with open(f"/proc/sys/net/ipv4/{file}") as opened:
                most = int(opened.read().split()[-1])
        except (OSError, ValueError, IndexError):
            continue
        yield name, most // WATCHES_SHARE if name == "orphans" else most // SOCKETS_SHARE * PAGE_BYTES


def memory_bytes() -> int:
    """Of the machine, or of the smallest control group around this process if one has less."""
    total = machine.meminfo_bytes("MemTotal") or 0
    limit = machine.group_limit("memory", "memory.max", "memory.limit_in_bytes")
    return total if limit is None else min(total, limit)


def file_system(path: str) -> str:
    """The type of the file system that a path lies on (`ext4`, `overlay`, `nfs4` …)."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    best = ("", "")
    real = os.path.realpath(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            _, _, device_number, _, point, *_ = fields.split()
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]) and (device_number == number or not best[0]):
                best = (point, rest.split()[0])
    return best[1]


def strangers(interpreters: Iterable[Interpreter], path: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """By executable, the names that mean another interpreter's tools.

    Args:
        interpreters: of the machine; those of which all names are their own are left out.
        path: directories in which programs are looked for, after an interpreter's own outside /usr.
    """
    found = (
        (one.executable, tuple(name for name in tools.names(one.minor) if _is_strange(name, one, path))) for one in interpreters
    )
    return tuple((executable, strange) for executable, strange in found if strange)


def _is_strange(name: str, interpreter: Interpreter, path: Sequence[str]) -> bool:
    """Whether a name is there, and not this interpreter's."""
    if own_prefix(interpreter.prefix) and _is_program(f"{interpreter.prefix}/bin/{name}"):
        return False  # It comes first.
    first = next((file for directory in path if _is_program(file := f"{directory}/{name}")), None)
    return first is not None and not _is_of(first, interpreter)


def _is_program(file: str) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)


def _is_of(file: str, interpreter: Interpreter) -> bool:
    """Whether a program is for this interpreter, by its own name or by what it is run by."""
    if re.search(rf"python{re.escape(interpreter.version)}[a-z]*-config$", os.path.realpath(file)):
        return True
    try:
        with open(file, "rb") as opened:
            head = os.fsdecode(opened.read(HEAD_BYTES))
    except OSError:
        return False
    first, _, rest = head.partition("\n")
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words[:1] == ["/bin/sh"] and rest.startswith("'''exec'"):  # The way to it is too long for a first line.
        words = rest.removeprefix("'''exec'").replace('"', " ").split()
    return bool(words) and os.path.realpath(words[0]) == interpreter.executable
