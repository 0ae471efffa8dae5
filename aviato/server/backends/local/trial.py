"""Tries what a sandbox needs, each thing in a child of its own, and prints JSON. Standard library only; started by path.

Arguments: a scratch directory on the file system that sandboxes will use, a host uid (as root) or `-`, and the directory of
control groups of version 2, or `-`.
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

import errno
import json
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import container, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACES = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID
TRIAL_SECONDS = 10


def attempt(
    flags: int,
    uid: int | None,
    inside: Callable[[], None],
    between: Callable[[int], Any] | None = None,
    group: int | None = None,
) -> dict[str, Any]:
    """Clone, map, run `inside`; what failed first is reported by step and errno."""
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    try:
        pid, pidfd = syscalls.clone(flags, group)
    except OSError as error:
        return {"ok": False, "step": "clone", "errno": error.errno}
    if pid == 0:
        signal.alarm(TRIAL_SECONDS)
        os.close(go_write)
        _child(go_read, said_write, uid, inside)
    os.close(pidfd)
    result: dict[str, Any] = {"ok": True}
    try:
        if uid is not None:
            _write(f"/proc/{pid}/setgroups", "deny")
            _write(f"/proc/{pid}/uid_map", f"0 {uid} 1")
            _write(f"/proc/{pid}/gid_map", f"0 {uid if os.geteuid() == 0 else os.getegid()} 1")
        if between is not None:
            between(pid)
        os.write(go_write, b"g")
    except OSError as error:
        result = {"ok": False, "step": "map" if between is None else "between", "errno": error.errno}
    for fd in (go_read, go_write, said_write):
        os.close(fd)
    said = os.read(said_read, 4096)
    os.close(said_read)
    os.waitpid(pid, 0)
    return result if not result["ok"] else json.loads(said or b'{"ok": false, "step": "died", "errno": 0}')


def _child(go: int, said: int, uid: int | None, inside: Callable[[], None]) -> None:
    try:
        if not os.read(go, 1):
            os._exit(1)
        if uid is not None:
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        inside()
        os.write(said, b'{"ok": true}')
    except OSError as error:
        os.write(said, json.dumps({"ok": False, "step": "inside", "errno": error.errno}).encode())
    finally:
        os._exit(0)


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _nothing() -> None:
    """Being there is enough."""


def _private() -> None:
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)


def _mount_proc() -> None:
    _private()
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def _overlay(scratch: str, uid: int) -> Callable[[], None]:
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(f"{scratch}/{name}")
        os.chown(f"{scratch}/{name}", uid, -1)
    os.chdir(scratch)

    def inside() -> None:
        _private()
        syscalls.mount("overlay", "merged", "overlay", 0, "lowerdir=lower,upperdir=upper,workdir=work,userxattr")
        os.mkdir("merged/made")

    return inside


def _idmap(scratch: str) -> Callable[[int], None]:
    def between(pid: int) -> None:
        tree = syscalls.open_tree(scratch, recursive=False)
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        syscalls.mount_setattr(tree, syscalls.MOUNT_ATTR_IDMAP, recursive=False, user_namespace=namespace)

    return between


def _grouped(groups: str, uid: int) -> dict[str, Any]:
    """Starting a command in its control group, from among the supervisors."""
    path = f"{groups}/aviato-trial-{os.getpid()}"
    opened: list[int] = []

    def inside() -> None:
        pid, _ = syscalls.clone(0, opened[1])
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    try:
        os.mkdir(path)
        os.chown(f"{path}/cgroup.procs", uid, -1)
        opened += [os.open(place, os.O_PATH | os.O_DIRECTORY) for place in (f"{groups}/supervisors", path)]
        return attempt(NAMESPACES, uid, inside, group=opened[0])
    except OSError as error:
        return {"ok": False, "step": "make", "errno": error.errno}
    finally:
        for fd in opened:
            os.close(fd)
        if os.path.exists(path):
            os.rmdir(path)


def main(scratch: str, uid: int, groups: str | None = None) -> dict[str, Any]:
    """Everything, in order; what depends on something that failed is left out."""
    results: dict[str, Any] = {"user_namespaces": attempt(syscalls.CLONE_NEWUSER, None, _nothing)}
    if results["user_namespaces"]["ok"]:
        results["id_map"] = attempt(NAMESPACES, uid, _nothing)
    if results.get("id_map", {}).get("ok"):
        results["mounts"] = attempt(NAMESPACES, uid, _private)
        results["filters"] = attempt(NAMESPACES, uid, syscalls.take_filters)
        results["network"] = attempt(NAMESPACES | syscalls.CLONE_NEWNET, uid, _nothing)
    if results.get("mounts", {}).get("ok"):
        results["proc"] = attempt(NAMESPACES, uid, _mount_proc)
        results["overlay"] = attempt(NAMESPACES, uid, _overlay(scratch, uid))
        if os.geteuid() == 0:
            results["idmapped"] = attempt(NAMESPACES, uid, _nothing, _idmap(f"{scratch}/lower"))
        if groups is not None:
            results["groups"] = _grouped(groups, uid)
    if results["user_namespaces"].get("errno") == errno.EPERM:
        results["chroot"] = container.is_chroot() or _leads_out()
    return results


def _leads_out() -> bool:
    """Whether the root of the mount namespace is another mount than our root; of root's processes alone this can be known."""
    before = container.root_mount()
    try:
        syscalls.enter_mounts()
    except OSError:
        return False
    return container.root_mount() != before


if __name__ == "__main__":
    own_id = os.geteuid() if sys.argv[2] == "-" else int(sys.argv[2])
    print(json.dumps(main(sys.argv[1], own_id, None if sys.argv[3] == "-" else sys.argv[3])))  # noqa: T201
