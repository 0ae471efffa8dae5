"""What this machine gives: tried, told apart, and each with the line that repairs it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.base import Check
from aviato.server.backends.local import binary, container, facts, groups, landlock_calls, own_ids, subordinate
from aviato.server.backends.local.limits import limits_of
from aviato.server.backends.local.plan import HostFacts
from aviato.trees.removal import remove_tree
from aviato.values.quantities import format_bytes

if TYPE_CHECKING:
    from aviato.server.backends.base import Limit, Strength
    from aviato.server.images.interpreters import Interpreter

TRIAL_SECONDS = 60.0
TRIAL_PREFIX = ".trial-"
MINIMUM_KERNEL = (5, 3)
OVERLAY_KERNEL = (5, 11)

MAX_NAMESPACES = "sudo sysctl -w user.max_user_namespaces=15000"
USERNS_CLONE = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
APPARMOR = (
    "printf 'abi <abi/4.0>,\\nprofile aviato flags=(unconfined) {\\n  userns,\\n}\\n' | sudo tee /etc/apparmor.d/aviato"
    " && sudo apparmor_parser -r /etc/apparmor.d/aviato"
)
APPARMOR_OF_CONTAINERS = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
"""A profile by the program's path does not reach into one."""
ASK_FOR_LANDLOCK = "AVIATO_BACKEND=landlock"
LANDLOCK_GIVES_UP = (
    "sandboxes without namespaces, with less isolation: no root directory, /tmp, network and list of processes of their own, "
    "and memory and processes are only watched; `aviato doctor` with it set and the threat model have the whole list"
)
"""In a line, for those who are offered it."""
WITHOUT_NAMESPACES = "without namespaces"
NAMESPACE_CHECKS = (
    "user namespaces",
    "user id map",
    "mounts in a user namespace",
    "network namespaces",
    "root directory",
    "own /proc",
    "host uids",
)
NOT_DELEGATED = "v2, not delegated"
DELEGATE = "systemd-run --user --scope -p Delegate=yes aviato serve"
STATE_DIR = "export AVIATO_STATE_DIR=/a/directory/on/a/local/disk   # ext4, xfs or btrfs"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What explains a failed trial.

    Attributes:
        kernel: its version.
        root: whether the server is root.
        container: what kind it runs in, None where there is no sign of any.
        other_proc: whether /proc is that of another PID namespace.
        seccomp: whether it was started under a filter of system calls.
        modules: the kernel's security modules, by name.
        max_user_namespaces, userns_clone, apparmor_restricts: the settings of those names, None where there is none.
        file_system: of the sandboxes' directory.
        cgroups: `v2, delegated`, `v2, not delegated`, `v1, writable`, `v1, not writable` or `none`.
        own_ids: the line after which an ordinary user's sandboxes have ids of their own.
        users: how many users an ordinary user's sandboxes have.
        no_users: the line after which they have more than root.
        uids: the first of the host ids that each sandbox can have, as root.
        facts: of the machine, for the limits that sandboxes have, with control groups only if they could be used.
    """

    kernel: tuple[int, int]
    root: bool
    container: container.Container | None = None
    other_proc: bool = False
    seccomp: bool = False
    modules: str = ""
    max_user_namespaces: int | None = None
    userns_clone: int | None = None
    apparmor_restricts: int | None = None
    file_system: str = "ext4"
    cgroups: str = "none"
    own_ids: str | None = None
    users: int = 1
    no_users: str | None = None
    uids: range | None = None
    facts: HostFacts = field(default_factory=HostFacts)


def look_around(directory: str, uids: range | None, machine: HostFacts) -> Surroundings:
    """Read the settings."""
    return Surroundings(
        kernel=facts.kernel(),
        root=os.geteuid() == 0,
        container=container.find(),
        other_proc=os.readlink("/proc/self") != str(os.getpid()),
        seccomp="\nSeccomp:\t2\n" in _text("/proc/self/status"),
        modules=_text("/sys/kernel/security/lsm"),
        max_user_namespaces=_number("/proc/sys/user/max_user_namespaces"),
        userns_clone=_number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restricts=_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        file_system=facts.file_system(directory),
        cgroups=_cgroups(),
        own_ids=None if os.geteuid() == 0 else own_ids.repair(),
        users=1 if (ranges := subordinate.find()) is None else 1 + ranges.size,
        no_users=None if os.geteuid() == 0 else " && ".join(own_ids.lacking()) or None,
        uids=uids,
        facts=machine,
    )


def run_trial(directory: str, uid: int | None, groups: str | None = None) -> dict[str, Any]:
    """Try it, by `aviato-init probe`.

    Args:
        directory: where sandboxes will be.
        uid: that a sandbox will have, if the server is root.
        groups: where control groups of version 2 are made, if any.
    """
    scratch = tempfile.mkdtemp(prefix=TRIAL_PREFIX, dir=directory)
    held = _locked(scratch)
    os.chmod(scratch, 0o711)
    try:
        argv = [binary.found(), "probe", "--scratch", scratch]
        argv += [] if uid is None else ["--uid", str(uid)]
        argv += [] if groups is None else ["--groups", groups]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=TRIAL_SECONDS, env={}, cwd="/", check=False)
            result: dict[str, Any] = json.loads(done.stdout)
        except OSError as error:
            return _no_trial(f"{argv[0]} cannot be run: {error.strerror}", error.errno or 0)
        except subprocess.TimeoutExpired:
            return _no_trial(f"{argv[0]} probe did not end within {TRIAL_SECONDS} s")
        except ValueError:
            return _no_trial(f"{argv[0]} probe ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
        if "chroot" in result:
            result["chroot"] = result["chroot"] or container.is_chroot()
        return result
    finally:
        _remove(scratch)
        if held is not None:
            os.close(held)


def _no_trial(message: str, number: int = 0) -> dict[str, Any]:
    return {"trial": {"ok": False, "step": "start", "errno": number, "message": message}}


def clear(directory: str) -> None:
    """Take away what trials of processes that were killed have left."""
    for name in os.listdir(directory):
        if name.startswith(TRIAL_PREFIX) and (held := _locked(path := f"{directory}/{name}")) is not None:
            _remove(path)
            os.close(held)


def _locked(scratch: str) -> int | None:
    """A descriptor that keeps others from a trial's directory, as long as this process lives; None where one has it."""
    try:
        fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None  # It has just gone, or is none of ours.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove(scratch: str) -> None:
    """Take a used overlay's directories away: its `work` has no permissions, which stops an ordinary user's `rmtree`."""
    parent = os.open(os.path.dirname(scratch), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            for _ in remove_tree(parent, os.path.basename(scratch)):
                pass
    finally:
        os.close(parent)


def explain(trial: dict[str, Any], around: Surroundings, interpreters: list[Interpreter]) -> list[Check]:
    """The lines of `aviato doctor`, from what was tried and seen. Pure."""
    return [
        _kernel_check(around),
        *([_trial_check(trial["trial"])] if "trial" in trial else _isolation(trial, around)),
        *([_uid_check(around)] if around.root else [_users_check(around), _counts_check(around)]),
        *_layers(trial, around),
        *_limit_checks(around, trial.get("groups")),
        _interpreter_check(interpreters),
        etc_check(around.facts),
    ]


MOST_NAMES = 8
"""Of what there is in /etc: whoever wants to know all of it looks there."""


def etc_check(machine: HostFacts) -> Check:
    """What sandboxes see of the machine's /etc, and what programs may look for there in vain."""
    names = [name for name, _ in machine.etc_shared]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    detail = f"sandboxes see {', '.join(names[:MOST_NAMES]) or 'nothing'}{more}"
    without: dict[str, list[str]] = {}
    for name, why in machine.etc_left_out:
        without.setdefault(why, []).append(name)
    detail += "".join(f"; not {', '.join(left_out)}: {why}" for why, left_out in without.items())
    return Check(name="files of /etc", ok=True, detail=detail, required=False)


def filter_check(trouble: str | None, remedy: str | None) -> Check:
    """Whether the server can compile the filter of system calls."""
    return Check(name="system call filter", ok=trouble is None, detail=trouble or "compiled by libseccomp", remedy=remedy)


def program_check(trouble: binary.Trouble | None) -> Check:
    """Whether the program that makes sandboxes, and is their process 1, can be used."""
    if trouble is None:
        return Check(name="aviato-init", ok=True, detail=f"process 1 of sandboxes is {binary.found()}")
    return Check(name="aviato-init", ok=False, detail=trouble.said, remedy=trouble.repair)


def other_backend(checks: list[Check]) -> list[Check]:
    """A line on the landlock backend, where namespaces are what is missing and it would work. It is never used unasked."""
    failed = first_failure(checks)
    if failed is None or failed.name not in NAMESPACE_CHECKS or not landlock_calls.abi():
        return []
    detail = f"export {ASK_FOR_LANDLOCK}: {LANDLOCK_GIVES_UP}"
    return [Check(name=WITHOUT_NAMESPACES, ok=True, detail=detail, required=False)]


def first_failure(checks: list[Check]) -> Check | None:
    """The required check that failed, if any."""
    return next((check for check in checks if check.required and not check.ok), None)


def cannot_run(checks: list[Check], where: str) -> SandboxUnavailableError | None:
    """The error of a backend for which a required check failed, with what repairs it; None: none did.

    Args:
        checks: all of them.
        where: sandboxes would be.
    """
    failed = first_failure(checks)
    if failed is None:
        return None
    remedy = f"; to repair it: {failed.remedy}" if failed.remedy else ""
    other = next((f"; or else: {check.detail}" for check in checks if check.name == WITHOUT_NAMESPACES), "")
    message = f"sandboxes cannot run {where}: {failed.name}: {failed.detail}{remedy}{other}"
    return SandboxUnavailableError(message, reason="cannot_run", retryable=False)


def _kernel_check(around: Surroundings) -> Check:
    found = ".".join(str(number) for number in around.kernel)
    ok = around.kernel >= MINIMUM_KERNEL
    return Check(name="kernel", ok=ok, detail=f"Linux {found}", remedy=None if ok else "use Linux 5.3 or newer")


def _trial_check(result: dict[str, Any]) -> Check:
    return Check(name="user namespaces", ok=False, detail=f"the trial could not be run: {result.get('message', '')}")


def _isolation(trial: dict[str, Any], around: Surroundings) -> list[Check]:
    checks = []
    names = {
        "user_namespaces": "user namespaces",
        "id_map": "user id map",
        "mounts": "mounts in a user namespace",
        "filters": "seccomp",
        "network": "network namespaces",
        "root": "root directory",
        "proc": "own /proc",
    }
    for key, name in names.items():
        result = trial.get(key)
        if result is None:
            continue
        if result["ok"]:
            checks.append(Check(name=name, ok=True, detail="works"))
        else:
            chrooted = key == "user_namespaces" and trial.get("chroot")
            cause, remedy = _CHROOT if chrooted else _cause(key, result["errno"], around)
            checks.append(Check(name=name, ok=False, detail=f"{cause} ({_error(result)})", remedy=remedy))
    return checks


_CHROOT: tuple[str, str | None] = (f"the server is in {container.CHROOT.name}", container.CHROOT.remedy)


def _cause(key: str, number: int, around: Surroundings) -> tuple[str, str | None]:
    """Why a trial failed, and the line that repairs it."""
    inside, forbidden = around.container, number in (errno.EPERM, errno.EACCES)
    if key == "filters" and number in (errno.EINVAL, errno.ENOSYS):
        return "the kernel was built without it", "use a kernel with CONFIG_SECCOMP_FILTER"
    if key == "user_namespaces":
        if around.max_user_namespaces == 0 or number == errno.ENOSPC:
            return _no_more_namespaces(around)
        if around.userns_clone == 0 and not around.root:
            return "kernel.unprivileged_userns_clone is 0", _of_machine(USERNS_CLONE, around)
    if around.other_proc and key != "user_namespaces":
        remedy = inside.proc_remedy if inside is not None and inside.proc_remedy else "sudo mount -t proc proc /proc"
        return "/proc is that of another PID namespace", remedy
    if key == "proc" and forbidden and around.apparmor_restricts != 1:
        where = inside or container.DOCKER
        return "parts of /proc are masked, so that a new one may not be mounted", where.proc_remedy or where.remedy
    if around.apparmor_restricts == 1 and not around.root:
        why = "AppArmor takes the capabilities out of unprivileged user namespaces"
        return why, _of_machine(APPARMOR if inside is None else APPARMOR_OF_CONTAINERS, around)
    if forbidden:
        return _forbidden(around)
    if number == errno.EINVAL:
        return "the kernel was built without it", "use a kernel with CONFIG_USER_NS, CONFIG_PID_NS and CONFIG_NET_NS"
    return "it failed", None


def _no_more_namespaces(around: Surroundings) -> tuple[str, str]:
    if around.max_user_namespaces in (0, None):
        return f"user.max_user_namespaces is {around.max_user_namespaces}", _of_machine(MAX_NAMESPACES, around)
    if around.container is container.BWRAP:
        return "bubblewrap was told to allow no user namespaces", container.BWRAP.remedy
    many = f"as many are in use as user.max_user_namespaces allows, {around.max_user_namespaces} here and perhaps less outside"
    return many, _of_machine(MAX_NAMESPACES, around)


def _of_machine(remedy: str, around: Surroundings) -> str:
    """The line that changes a setting of the kernel, with where it has to be given."""
    return remedy if around.container is None else around.container.machine + remedy


def _forbidden(around: Surroundings) -> tuple[str, str]:
    if around.container is not None:
        return f"forbidden in {around.container.name}", around.container.remedy
    if around.seccomp:
        why = "forbidden by a seccomp filter that the server was started under"
        return why, "run the server outside of what confines it; of a unit of systemd that is RestrictNamespaces=no"
    modules = f" ({around.modules})" if around.modules else ""
    return f"forbidden by a security module{modules}", "run the server outside of what confines it"


def _uid_check(around: Surroundings) -> Check:
    if around.uids is None:
        detail = "the server's user namespace has one id, so sandboxes cannot have ids of their own"
        remedy = "run the server as an ordinary user, or its container with a range of ids (/etc/subuid)"
        if around.container is not None and around.container.ids_remedy:
            remedy = around.container.ids_remedy
        return Check(name="host uids", ok=False, detail=detail, remedy=remedy)
    if around.uids.step == 1:
        return Check(name="host uids", ok=True, detail=f"{len(around.uids)} ids, one for each sandbox: no other users inside")
    detail = f"{around.uids.step} ids of its own for each of {len(around.uids)} sandboxes"
    return Check(name="host uids", ok=True, detail=detail)


def _users_check(around: Surroundings) -> Check:
    if around.users > 1:
        detail = f"{around.users}, those of all sandboxes but root out of this user's subordinate ids"
        return Check(name="users inside", ok=True, detail=detail, required=False)
    detail = "sandboxes have root alone: chown to others, su and useradd do not work in them"
    return Check(name="users inside", ok=False, detail=detail, remedy=around.no_users, required=False)


def _counts_check(around: Surroundings) -> Check:
    detail = (
        "sandboxes share what the kernel counts for this user (epoll, descriptors on their way, pipes) with each other and with"
    )
    detail += " all of its programs; where the server has a range of ids each has an id, and counts, of its own"
    return Check(name="kernel's counts", ok=False, detail=detail, remedy=around.own_ids, required=False)


def _layers(trial: dict[str, Any], around: Surroundings) -> list[Check]:
    checks = []
    overlay = trial.get("overlay")
    if overlay is not None:
        where = f"on {around.file_system}"
        if overlay["ok"]:
            checks.append(Check(name="overlay", ok=True, detail=f"writable layers {where}", required=False))
        else:
            detail = f"no writable layer {where} ({_error(overlay)}): `dir:` images get theirs in memory"
            remedy = (around.container and around.container.state_remedy) or STATE_DIR
            if around.kernel < OVERLAY_KERNEL:
                remedy = "use Linux 5.11 or newer for `dir:` images"
            checks.append(Check(name="overlay", ok=False, detail=detail, remedy=remedy, required=False))
    idmapped = trial.get("idmapped")
    if idmapped is not None:
        detail = "`dir:` images are writable inside" if idmapped["ok"] else f"no `dir:` images as root ({_error(idmapped)})"
        remedy = "" if idmapped["ok"] else "use Linux 5.19 or newer, or images on ext4, xfs or btrfs"
        works = bool(idmapped["ok"])
        checks.append(Check(name="idmapped mounts", ok=works, detail=detail, remedy=remedy or None, required=False))
    return checks


def _limit_checks(around: Surroundings, tried: dict[str, Any] | None) -> list[Check]:
    grouped = [name for name, _ in around.facts.groups if name != groups.UNIFIED]
    used = f"used for {' and '.join(grouped)} of sandboxes that name memory or cpu" if grouped else "not used"
    used += ", and to share the processors out by sandbox" if "cpu" in grouped else ""
    if tried is not None and not tried["ok"]:
        used = f"not used ({_error(tried)})"
    elif around.cgroups == NOT_DELEGATED and not grouped:
        used = f"not used; to have them, start the server by: {DELEGATE}"
    checks = [Check(name="control groups", ok=True, detail=f"{around.cgroups}; {used}", required=False)]
    asked = "hard where it is named" if "cpu" in grouped else "refused with strict_limits=True"
    hard = "; memory is hard where it is named" if "memory" in grouped else ""
    how: dict[Strength, str] = {
        "hard": "by the kernel",
        "watched": f"looked at every 100 ms, what goes beyond is killed{hard}",
        "none": f"not kept; {asked}",
    }
    usual = limits_of({}, {}, around.facts)
    for strength, why in how.items():
        names = [_shown(name, limit) for name, limit in usual.items() if limit.strength == strength]
        if names:
            detail = f"{', '.join(names)} ({why})"
            checks.append(Check(name=f"limits: {strength}", ok=strength != "none", detail=detail, required=False))
    return checks


def _shown(name: str, limit: Limit) -> str:
    if limit.strength == "none" and name == "processes":
        return "processes: needs Linux 5.14"
    if limit.value is None:
        return name
    value = format_bytes(limit.value) if name in ("memory", "disk", "shm", "file_size") else f"{limit.value:.0f}"
    return f"{name} {value}"


def _interpreter_check(found: list[Interpreter]) -> Check:
    listed = ", ".join(f"{one.version} ({one.executable})" for one in found)
    remedy = None if found else "sudo apt install python3"
    return Check(name="interpreters", ok=bool(found), detail=listed or "no Python for sandboxes", remedy=remedy, required=False)


def _error(result: dict[str, Any]) -> str:
    name = errno.errorcode.get(result["errno"], str(result["errno"]))
    return f"{name} at {result['step']}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\0")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _cgroups() -> str:
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        try:
            own = Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::")[-1]
        except (OSError, IndexError):
            own = "/"
        delegated = os.access(f"/sys/fs/cgroup{own}/cgroup.subtree_control", os.W_OK)
        return "v2, delegated" if delegated else NOT_DELEGATED
    if os.path.isdir("/sys/fs/cgroup/memory"):
        return "v1, writable" if os.access("/sys/fs/cgroup/memory", os.W_OK) else "v1, not writable"
    return "none"
