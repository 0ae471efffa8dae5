"""What `aviato doctor` says of a container engine, and of this machine's part. Pure, but for what is handed in."""

from __future__ import annotations

import getpass
import os
import shlex
from typing import TYPE_CHECKING, Any

from aviato.server.backends.base import Check
from aviato.server.backends.docker.engine import SCHEME
from aviato.server.backends.docker.limits import Kept

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALL = "sudo apt install docker.io, or name another engine by DOCKER_HOST"
SAME_MACHINE = "run the server on the engine's machine: a container there has to see the server's files and sockets"


def library_check(remedy: str | None) -> Check:
    """Whether aiodocker is there."""
    detail = "installed" if remedy is None else "not installed"
    return Check(name="aiodocker", ok=remedy is None, detail=detail, remedy=remedy)


def unreachable(address: str, why: str) -> Check:
    """Nobody answers: what is to be done depends on whether there is a socket."""
    path = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME):
        remedy = SAME_MACHINE
    elif not os.path.exists(path):
        remedy = INSTALL
    elif not os.access(path, os.R_OK | os.W_OK):
        group = f"sudo usermod -aG docker {shlex.quote(getpass.getuser())}"
        remedy = f"dockerd-rootless-setuptool.sh install; or {group}, which makes that user as good as root"
    else:
        remedy = f"start what listens at {path}: sudo systemctl start docker"
    return Check(name="engine", ok=False, detail=f"{address} does not answer: {why}", remedy=remedy)


def is_podman(version: Mapping[str, Any]) -> bool:
    """Whether it is podman, which reads profiles from files."""
    return any("podman" in str(one.get("Name", "")).lower() for one in version.get("Components") or [])


def kept_limits(info: Mapping[str, Any]) -> Kept:
    """Which limits it keeps. An ordinary user's podman has none with control groups of version 1, whatever it says."""
    if info.get("Rootless") and str(info.get("CgroupVersion")) == "1":
        return Kept(memory=False, cpu=False, processes=False)
    return Kept(
        memory=bool(info.get("MemoryLimit")),
        cpu=bool(info.get("CpuCfsQuota", info.get("CPUCfsQuota"))),
        processes=bool(info.get("PidsLimit")),
    )


def explain(address: str, version: Mapping[str, Any], info: Mapping[str, Any], kernel: str) -> list[Check]:
    """The lines on an engine that answers.

    Args:
        address: of it.
        version: as it says it.
        info: the same of its machine.
        kernel: of this machine.
    """
    kind = "podman" if is_podman(version) else "Docker"
    checks = [Check(name="engine", ok=True, detail=f"{kind} {version.get('Version')} at {address}")]
    theirs = str(info.get("KernelVersion", ""))
    here = address.startswith(SCHEME) and theirs == kernel
    where = "this machine" if here else f"{info.get('OperatingSystem')} with the kernel {theirs}, and here is {kernel}"
    checks.append(Check(name="engine's machine", ok=here, detail=where, remedy=None if here else SAME_MACHINE))
    options = [str(option) for option in info.get("SecurityOptions") or []]
    has_filters = any("seccomp" in option for option in options)
    seccomp = "profiles of system calls" if has_filters else "the engine takes no profiles of system calls"
    checks.append(Check(name="seccomp", ok=has_filters, detail=seccomp, remedy="use an engine that is built with seccomp"))
    rootless = bool(info.get("Rootless")) or any("rootless" in option for option in options)
    users = "an ordinary user's" if rootless else "subordinate ids" if any("userns" in one for one in options) else "root's"
    checks.append(Check(name="engine's user", ok=True, detail=users, required=False))
    return [*checks, _limits(info)]


def _limits(info: Mapping[str, Any]) -> Check:
    kept = kept_limits(info)
    missing = [name for name, there in vars(kept).items() if not there]
    groups = f"control groups of version {info.get('CgroupVersion', '?')} by {info.get('CgroupDriver', '?')}"
    if not missing:
        return Check(name="limits", ok=True, detail=f"memory, cpu and processes; {groups}", required=False)
    remedy = "with control groups of version 2, delegate them to the engine's user (systemd: Delegate=cpu memory pids)"
    return Check(name="limits", ok=False, detail=f"not kept: {', '.join(missing)}; {groups}", remedy=remedy, required=False)


def default_image(reference: str, is_here: bool) -> Check:
    """The image of sandboxes that name none."""
    detail = f"{reference} is here" if is_here else f"{reference} is pulled for the first sandbox that names none"
    remedy = None if is_here else f"docker pull {shlex.quote(reference)}"
    return Check(name="default image", ok=is_here, detail=detail, remedy=remedy, required=False)
