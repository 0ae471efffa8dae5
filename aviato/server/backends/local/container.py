"""What this process runs in, as far as it can be seen from inside: it says who could allow what is forbidden here, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ELSEWHERE = "nothing that runs in it can change that; run the server on another machine, and set AVIATO_BASE_URL here"
_OPTIONS = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"


@dataclass(frozen=True, kw_only=True)
class Container:
    """A kind of container.

    Attributes:
        name: as a sentence has it.
        remedy: the line that allows user namespaces in it, or the words that nothing does.
        proc_remedy: the same for a /proc of which parts are masked; empty is `remedy`.
        ids_remedy: the same for root of a user namespace that has one id; empty is the usual one.
        state_remedy: how it gets a directory for sandboxes on a disk; empty is the usual line.
        machine: where the settings of its kernel can be changed; empty is in it.
    """

    name: str
    remedy: str
    proc_remedy: str = ""
    ids_remedy: str = ""
    state_remedy: str = ""
    machine: str = ""


KUBERNETES = Container(
    name="a Kubernetes pod",
    # Only newer clusters may be asked for a whole /proc (procMount: Unmasked): start-server of our image mounts one.
    remedy=(
        "in its container: {command: [start-server], securityContext: {runAsUser: 0, "
        "capabilities: {drop: [ALL], add: [CHOWN, DAC_OVERRIDE, SETFCAP, SETGID, SETPCAP, SETUID, SYS_ADMIN]}, "
        "seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}}, "
        "as deploy/kubernetes/overlays/dense has it; docs/guides/kubernetes.md has other ways"
    ),
    state_remedy=(
        "in the pod: {volumes: [{name: state, emptyDir: {}}]}, in its container: {volumeMounts: [{name: state, "
        "mountPath: /var/lib/aviato}], env: [{name: AVIATO_STATE_DIR, value: /var/lib/aviato/state}]}"
    ),
    machine="on its node: ",
)
DOCKER = Container(name="a Docker container", remedy=f"docker run {_OPTIONS} …")
_PODMAN_LINE = "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL --security-opt label=disable …"
PODMAN = Container(name="a Podman container", remedy=_PODMAN_LINE)
ROOTLESS_PODMAN = Container(
    name="a rootless Podman container",
    remedy=_PODMAN_LINE,
    ids_remedy="sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER && podman system migrate",
)
TOOLBOX = Container(
    name="a toolbox",
    remedy="a toolbox forbids it only where its machine does; run `flatpak-spawn --host aviato doctor`: it says what to repair",
)
DISTROBOX = Container(
    name="a distrobox",
    remedy="a distrobox forbids it where its machine does; run `distrobox-host-exec aviato doctor`: it says what to repair",
)
CODESPACES = Container(
    name="a GitHub codespace",
    remedy=(
        'put "securityOpt": ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"] into '
        ".devcontainer/devcontainer.json and rebuild the container: gh codespace rebuild"
    ),
)
KAGGLE = Container(name="a Kaggle notebook", remedy=ELSEWHERE)
COLAB = Container(name="a Colab notebook", remedy=ELSEWHERE)
FLATPAK = Container(name="a Flatpak application", remedy="run the server outside of it: flatpak-spawn --host aviato serve")
BWRAP = Container(
    name="bubblewrap",
    remedy="bwrap … without --disable-userns",
    proc_remedy="bwrap … --bind /proc /proc, in place of --proc /proc, and without --unshare-pid and --unshare-all",
    ids_remedy="bwrap … --unshare-user --uid 1000 --gid 1000, so that the server is no root, and --bind /proc /proc",
)
CHROOT = Container(
    name="a chroot, in which the kernel makes no user namespace",
    remedy="enter the directory by `sudo bwrap --dev-bind DIRECTORY / …` (package bubblewrap) in place of chroot",
)


def find(environment: Mapping[str, str] = os.environ, root: str = "/") -> Container | None:
    """The innermost kind of container that can be told, or None.

    Args:
        environment: of this process.
        root: where files are looked for, and the `proc` of this machine.
    """

    def there(path: str) -> bool:
        return os.path.exists(os.path.join(root, path))

    # Some are made with Docker or Podman, and have the marks of these too.
    if "KAGGLE_KERNEL_RUN_TYPE" in environment:
        return KAGGLE
    if "COLAB_RELEASE_TAG" in environment:
        return COLAB
    if there(".flatpak-info"):
        return FLATPAK
    if _below_bwrap(os.path.join(root, "proc")):
        return BWRAP
    if environment.get("CODESPACES") == "true":
        return CODESPACES
    if there("run/.toolboxenv"):
        return TOOLBOX
    if "DISTROBOX_ENTER_PATH" in environment:
        return DISTROBOX
    if "KUBERNETES_SERVICE_HOST" in environment or there("var/run/secrets/kubernetes.io"):
        return KUBERNETES
    if there("run/.containerenv"):
        return PODMAN if _has_all_ids(os.path.join(root, "proc/self/uid_map")) else ROOTLESS_PODMAN
    return DOCKER if there(".dockerenv") else None


def is_chroot(proc: str = "/proc") -> bool:
    """Whether the mounts show that this process' root is not that of its mount namespace.

    The kernel lists those below a process' root. In a chroot none of them is at its root, or the one there is another's in the
    list of process 1, if that is in the same namespace.
    """
    own = root_mount(proc)
    first = _mounts(f"{proc}/1/mountinfo")
    return (own is None and bool(_mounts(f"{proc}/self/mountinfo"))) or (own in first and first[str(own)] != "/")


def root_mount(proc: str = "/proc") -> str | None:
    """The id of the mount at this process' root; None where no mount is there."""
    return next((mount for mount, point in reversed(_mounts(f"{proc}/self/mountinfo").items()) if point == "/"), None)


def _mounts(path: str) -> dict[str, str]:
    """Mount id → where it is mounted."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines]
    return {words[0]: words[4] for words in fields if len(words) > 4}


def _below_bwrap(proc: str) -> bool:
    """Whether an ancestor of this process, or process 1, is bubblewrap."""
    pid = "self"
    for _ in range(64):
        try:
            text = Path(f"{proc}/{pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        name, _, rest = text.partition("(")[2].rpartition(")")
        if name == "bwrap":
            return True
        pid = rest.split()[1]
        if pid == "0":
            return False
    return False


def _has_all_ids(path: str) -> bool:
    try:
        return Path(path).read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return True
