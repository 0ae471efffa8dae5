"""Who is measured, and what each of them has to do."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCRIPTS = Path(__file__).resolve().parent / "scripts"


@dataclass(frozen=True)
class Work:
    """One row of work.

    Attributes:
        large: it takes seconds, so that it gets fewer rounds.
        unit: of what a round measures.
    """

    name: str
    title: str
    large: bool = False
    unit: str = "s"


WORKS = {
    work.name: work
    for work in (
        Work("create", "create + first exec of true"),
        Work("exec", "exec of true on a running sandbox"),
        Work("batch", "batch: a fresh sandbox each, python3 -I -c, collect, stop", large=True),
        Work("output", "stdout of one command", large=True),
        Work("write", "write a file of 1 MiB"),
        Work("read", "read a file of 1 MiB"),
        Work("image", "create + first exec of true, of one image"),
        Work("snapshot", "snapshot of 100 MiB in files, or as many as asked for", large=True),
        Work("fork", "fork of these files, to the first exec of true in each child", large=True),
        Work("memory", "memory that a live sandbox with a sleeping command adds", large=True, unit="B"),
    )
}

NOTHING_KEPT = "keeps nothing between commands"
OF_IMAGES = "image snapshot fork"
NO_IMAGE_NEEDED = "create exec batch output write read memory"
NO_IMAGES = "starts no images"
NOT_LOADED = "its script loads no image into it"


@dataclass(frozen=True)
class Peer:
    """One row of the tables.

    Attributes:
        kind: `aviato`; `peer`; `floor`, which is printed and not to be beaten.
        isolation: what stands between a command and the machine, in short.
        isolates: whether anything does.
        keeps: whether it keeps a sandbox for several commands: files, at least.
        mode: which of its modes this is, in its own words.
        requirements: from PyPI.
        lacks: works that it cannot do, and why.
        why_not: why it cannot be measured here, or None.
    """

    name: str
    script: str
    kind: str
    isolation: str
    keeps: bool
    mode: str = ""
    isolates: bool = True
    requirements: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    why_not: Callable[[], str | None] = lambda: None

    @property
    def path(self) -> Path:
        """Its script."""
        return SCRIPTS / f"{self.script}.py"

    @property
    def is_rival(self) -> bool:
        """Whether aviato has to be ahead of it on every row."""
        return self.kind == "peer" and self.isolates and self.keeps


def _fusion_server() -> str | None:
    if "SANDBOX_FUSION_ENDPOINT" in os.environ:
        return None
    return (
        "PyPI has its client only; the server is a source tree with conda and poetry, or an image. "
        "Start one and set SANDBOX_FUSION_ENDPOINT to measure it"
    )


def _runc() -> str | None:
    if shutil.which("runc") is None:
        return "runc is not installed (Debian: apt install runc)"
    return None if os.getuid() == 0 else "a bundle like this needs root"


def _podman() -> str | None:
    return None if shutil.which("podman") else "podman is not installed (Debian: apt install podman runc)"


def _no(names: str, why: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


_OURS = {"kind": "aviato", "isolation": "namespaces, seccomp, own /, limits", "keeps": True}

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("aviato, sync", "aviato_sync", mode="Session", **_OURS),
        Peer(
            "aviato, async",
            "aviato_async",
            mode="AsyncClient",
            **_OURS,
            lacks=_no("snapshot fork", "the same requests as of the blocking one"),
        ),
        Peer(
            "llm-sandbox",
            "llm_sandbox",
            "peer",
            "namespaces, seccomp, own directories",
            keeps=True,
            mode="bubblewrap backend (a bwrap for each command), skip_environment_setup",
            requirements=("llm-sandbox==0.3.46",),
            lacks=_no(OF_IMAGES, NO_IMAGES),
        ),
        Peer(
            "sandlock",
            "sandlock",
            "peer",
            "Landlock, seccomp; the machine's files",
            keeps=True,
            mode="Sandbox.run (a process confined by a supervisor, for each command)",
            requirements=("sandlock==0.9.0",),
            lacks={
                **_no("write read", "has no file operations: files are the machine's, as for a bare subprocess"),
                **_no(
                    "snapshot fork", "its checkpoints and forks are of processes: what is written in an image goes at the end"
                ),
            },
        ),
        Peer(
            "kern",
            "kern",
            "peer",
            "container: namespaces, seccomp, own /; no limits with cgroup v1",
            keeps=True,
            mode="its program: box -d, exec, commit",
            requirements=("kern-sandbox==0.2.49",),
            lacks=_no(NO_IMAGE_NEEDED, "begins with an image: see that work"),
        ),
        Peer(
            "podman",
            "podman",
            "peer",
            "container: namespaces, seccomp, own /, limits",
            keeps=True,
            mode="its program, run -d and exec, as whoever measures",
            lacks=_no(NO_IMAGE_NEEDED, "begins with an image: see that work"),
            why_not=_podman,
        ),
        Peer(
            "Docker",
            "docker",
            "peer",
            "container: namespaces, seccomp, own /, limits",
            keeps=True,
            mode="SDK, a container that sleeps and exec_run",
            requirements=("docker==7.1.0",),
            lacks={**_no("memory", "its processes are the engine's, not below the client"), **_no(OF_IMAGES, NOT_LOADED)},
        ),
        Peer(
            "SandboxFusion",
            "sandbox_fusion",
            "peer",
            "its server's: none, or namespaces and limits",
            keeps=False,
            mode="run_code with bash",
            requirements=("sandbox-fusion==0.3.7",),
            lacks={
                **_no("exec write read", NOTHING_KEPT),
                **_no(OF_IMAGES, NO_IMAGES),
                "memory": "its processes are the server's, not below the client",
            },
            why_not=_fusion_server,
        ),
        Peer(
            "SWE-ReX",
            "swe_rex",
            "peer",
            "none",
            keeps=True,
            isolates=False,
            mode="LocalDeployment, Runtime.execute",
            requirements=("swe-rex==1.4.0",),
            environment={"SWE_REX_LOG_STREAM_LEVEL": "ERROR"},
            lacks=_no(OF_IMAGES, NO_IMAGES),
        ),
        Peer(
            "bare runc",
            "runc",
            "floor",
            "container: namespaces but user, own /",
            keeps=True,
            mode="run -d, exec",
            lacks={**_no("write read", "has no file operations"), **_no(OF_IMAGES, NO_IMAGES)},
            why_not=_runc,
        ),
        Peer(
            "bare bwrap",
            "bwrap",
            "floor",
            "namespaces; the machine's files, read only",
            keeps=False,
            lacks={**_no("exec write read", NOTHING_KEPT), **_no(OF_IMAGES, NO_IMAGES)},
        ),
        Peer("bare subprocess", "bare", "floor", "none", keeps=True, isolates=False, lacks=_no(OF_IMAGES, NO_IMAGES)),
    )
}
