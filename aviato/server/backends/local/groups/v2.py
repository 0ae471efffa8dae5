"""Control groups of version 2, where this server may make some.

`BASE/aviato` has a group for each sandbox's commands, and one for all supervisors. A process 1 starts its commands in their
group (`clone3`), since moving a process waits for every processor of the machine. The kernel lets it where it may
write to `cgroup.procs` of the sandbox's group and of the one that both lie in, which takes nobody in, as it has groups below.

BASE is a group of ours: the server's own, the top of a container's or, for root, of the machine's. What systemd manages and has
not delegated is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local.groups.shares import quota

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNIFIED = "unified"
CONTROLLERS = ("memory", "cpu", "pids")
NAME = "aviato"
SUPERVISORS = "supervisors"
OTHERS = "aviato-others"
"""Below a group of ours: what was in it before. A group that shares something out has no processes of its own."""
WEIGHT_A_PROCESSOR = 100
MOST_WEIGHT = 10_000
ROUNDS = 20
"""Of moving processes, while others are born."""
UNITS = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
ASK_SECONDS = 5.0
BORN_IN_A_GROUP = (5, 7)
"""The first kernel that starts processes in a group."""


def find() -> tuple[tuple[str, str], ...]:
    """The controllers that can be used, each with the same directory, which is made."""
    if tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2] if number.isdigit()) < BORN_IN_A_GROUP:
        return ()
    try:
        top, own = _own()
        base = _base(top, own)
        return () if base is None else _make(base)
    except OSError:
        return ()


def settings(
    name: str,
    groups: Mapping[str, str],
    memory_bytes: int,
    cpu: float | None,
    cpu_request: float | None,
    processes: int | None,
) -> list[dict[str, Any]]:
    """See the package; `name` is that of the directory."""
    files = [("memory.max", str(memory_bytes), True), ("memory.swap.max", "0", False)]
    weight = cpu_request if cpu_request is not None else cpu
    if "cpu" in groups and weight is not None:
        files.append(("cpu.weight", str(min(MOST_WEIGHT, max(1, round(WEIGHT_A_PROCESSOR * weight)))), True))
        if cpu is not None:
            files.append(("cpu.max", "{} {}".format(*quota(cpu)), True))
    if "pids" in groups and processes is not None:
        files.append(("pids.max", str(processes), True))
    path = groups[UNIFIED]
    shown = f"{_path_of(path)}/{name}".strip("/")
    return [{"shown": shown, "path": f"{path}/{name}", "files": files, "supervisors": f"{path}/{SUPERVISORS}"}]


def kill(directory: str) -> None:
    """Kill everyone in a group, where the kernel does that at once (5.14).

    Raises:
        OSError: it does not, or this is no group of version 2.
    """
    fd = os.open(f"{directory}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def _own() -> tuple[str, str]:
    """The directory at the top of what can be seen, and that of this process's own group."""
    with open("/proc/self/cgroup") as file:
        path = next((line.rstrip("\n")[3:] for line in file if line.startswith("0::")), None)
    for root, point in _mounts():
        if path is not None and f"{path}/".startswith(f"{root}/"):
            return point, f"{point}{path[len(root) :]}".rstrip("/")
    raise FileNotFoundError("no control groups of version 2")


def _mounts() -> Iterator[tuple[str, str]]:
    """Of groups of version 2: which is at the top of each, and where."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields = left.split()
            if right.startswith("cgroup2 "):
                yield fields[3].rstrip("/"), fields[4]


@functools.lru_cache
def _path_of(directory: str) -> str:
    """What the kernel calls the group of a directory, as this process's namespace of groups has it."""
    found = (f"{root}{directory[len(point) :]}" for root, point in _mounts() if f"{directory}/".startswith(f"{point}/"))
    return next(found, directory)


def _base(top: str, own: str) -> str | None:
    """The group to make ours in, ready to have some below that share out; None if there is none."""
    ours = list(_ours(top, own))
    for directory in ours:
        if "memory" in _words(f"{directory}/cgroup.subtree_control"):
            return directory
    for directory in ours:
        if "memory" in _words(f"{directory}/cgroup.controllers") and (
            _is_machines(directory) or (directory == own and _empty(directory))
        ):
            return directory
    return None


def _ours(top: str, own: str) -> Iterator[str]:
    """The groups that some of ours may lie below, the nearest first."""
    for directory in _upwards(top, own):
        if _limited(top, own, directory):
            return  # What the operator set for the server would not hold for its sandboxes.
        if directory != top and _is_unit(directory):
            # From here on systemd's, or its user's instance's. Only at the very top root may have a group beside theirs.
            if os.geteuid() == 0 and _is_machines(top) and _writable(top) and not _limited(top, own, top):
                yield top
            return
        if _writable(directory):
            yield directory


def _is_machines(directory: str) -> bool:
    """Whether it is the machine's top, which may have processes and groups that share out."""
    return not os.path.exists(f"{directory}/cgroup.type")


def _make(base: str) -> tuple[tuple[str, str], ...]:
    """Our group in there, with one for supervisors."""
    found = f"{base}/{NAME}"
    for directory in (base, found):
        os.makedirs(directory, exist_ok=True)
        for controller in CONTROLLERS:
            with contextlib.suppress(OSError):
                _write(f"{directory}/cgroup.subtree_control", f"+{controller}")
    shared = _words(f"{found}/cgroup.subtree_control")
    if "memory" not in shared:
        return ()
    supervisors = f"{found}/{SUPERVISORS}"
    os.makedirs(supervisors, exist_ok=True)
    if "cpu" in shared:
        _write(f"{supervisors}/cpu.weight", str(MOST_WEIGHT))
    if os.geteuid() == 0:
        os.chmod(f"{found}/cgroup.procs", 0o666)  # Process 1s have uids of their own.
    return (*((controller, found) for controller in CONTROLLERS if controller in shared), (UNIFIED, found))


def _empty(directory: str) -> bool:
    """Move everyone in a group of ours one further down, where the same limits hold for them."""
    os.makedirs(f"{directory}/{OTHERS}", exist_ok=True)
    for _ in range(ROUNDS):
        pids = _words(f"{directory}/cgroup.procs")
        if not pids:
            return True
        if "0" in pids:
            return False  # It has processes that are out of sight.
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _write(f"{directory}/{OTHERS}/cgroup.procs", pid)
    return False


def _limited(top: str, own: str, directory: str) -> bool:
    """Whether the server has limits that would not hold in `directory`."""
    for below in _upwards(top, own):
        if below == directory:
            return False
        if any(_words(f"{below}/{name}")[:1] not in ([], ["max"]) for name in ("memory.max", "cpu.max")):
            return True
    return False


@functools.lru_cache
def _is_unit(directory: str) -> bool:
    """Whether systemd manages what is in there: it has not delegated it."""
    if not directory.endswith(UNITS):
        return False
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return False
    # What a user's instance delegates has no such mark.
    return os.geteuid() == 0 or os.stat(directory).st_uid != os.geteuid() or not _is_delegated(os.path.basename(directory))


def _is_delegated(unit: str) -> bool:
    """Whether the user's instance of systemd has delegated a unit, by its own words."""
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **os.environ}
    argv = ["systemctl", "--user", "show", "--value", "--property=Delegate", unit]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=ASK_SECONDS, env=environment, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == b"yes"


def _upwards(top: str, own: str) -> Iterator[str]:
    while True:
        yield own
        if own == top or not own.startswith(top):
            return
        own = os.path.dirname(own)


def _writable(directory: str) -> bool:
    names = (".", "cgroup.procs", "cgroup.subtree_control")
    return all(os.access(f"{directory}/{name}", os.W_OK) for name in names)


def _words(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
