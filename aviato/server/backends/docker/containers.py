"""What an engine is asked for to make one sandbox. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aviato.server.backends.docker.plan import COMMAND, ENGINE_CAPABILITIES, PLACE, PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.server.backends.base import MountedFile

CLAIM, SANDBOX, TAG, TAGS = "aviato.server", "aviato.sandbox", "aviato.tag.", "aviato.tags"
LONGEST_HOST_NAME = 63
MOUNTED = "mounted"
"""A folder of a sandbox's place: the caller's files, each by its number."""
CLOSED = ("/proc", "/sys", "/dev", PLACE, PROGRAM)


def name_of(sandbox_id: str) -> str:
    """What the container of a sandbox is called."""
    return f"aviato-{sandbox_id}"


def labels(claim: str, sandbox_id: str, tags: Iterable[str]) -> dict[str, str]:
    """By which a container is found: by its server, by its sandbox, and by each tag.

    A tag `run=7` is the label `aviato.tag.run` with the value `7`, and `eval` is `aviato.tag.eval` without one, so that
    `docker ps --filter label=aviato.tag.run=7` finds it as it is written. Of tags that have the same name
    the first is the label's. All of them stand exactly in `aviato.tags`.
    """
    given = list(tags)
    found = {CLAIM: claim, SANDBOX: sandbox_id}
    for tag in given:
        name, _, value = tag.partition("=")
        found.setdefault(f"{TAG}{name}", value)
    return {**found, TAGS: json.dumps(given)} if given else found


def unmountable(path: str) -> str | None:
    """Why a file cannot be mounted at a path; None if it can."""
    for closed in CLOSED:
        if path == closed or path.startswith(f"{closed}/"):
            return f"{closed} is the container's own"
    return "the path has a comma in it, at which podman takes mounts apart" if "," in path else None


def container(
    *,
    image_id: str,
    labels: Mapping[str, str],
    host_name: str,
    place: str,
    program: str,
    security: Iterable[str],
    mounted: Iterable[MountedFile],
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of a create.

    Args:
        image_id: of the engine.
        labels: see `labels`.
        host_name: what it calls itself.
        place: the sandbox's directory on the machine.
        program: the path of aviato-init there.
        security: options.
        mounted: files, which are in the place.
        limits: see `limits.host_config`.
    """
    files = [_bind(f"{place}/{MOUNTED}/{number}", file.path) for number, file in enumerate(mounted)]
    return {
        "Image": image_id,
        "Entrypoint": [PROGRAM],
        "Cmd": COMMAND,
        # Whatever the image says: its user and directory are its commands', whom process 1 starts.
        "User": "0:0",
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",  # Of what would not hear another one, an engine that ends waits for ten seconds.
        "Hostname": host_name[:LONGEST_HOST_NAME],
        "Labels": dict(labels),
        "HostConfig": {
            "Mounts": [_bind(program, PROGRAM), _bind(place, PLACE, read_only=False), *files],
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "CapAdd": list(ENGINE_CAPABILITIES),
            "SecurityOpt": ["no-new-privileges", *security],
            "IpcMode": "private",
            "Init": False,
            "AutoRemove": False,  # How it ended is read first.
            "RestartPolicy": {"Name": "no"},
            **limits,
        },
    }


def _bind(source: str, target: str, *, read_only: bool = True) -> dict[str, Any]:
    """A mount of what has to be there already: an engine that does not see it says so, and makes nothing in its place."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
