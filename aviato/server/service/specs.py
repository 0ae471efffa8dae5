"""What a backend is asked for, from what a client asked for."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.service.egress import port_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.backends.base import ResolvedImage
    from aviato.wire.sandboxes import CreateSandbox


def spec_of(
    request: CreateSandbox,
    image: ResolvedImage,
    place_id: str,
    *,
    host_name: str | None = None,
    secrets: Mapping[str, str] | None = None,
    record: str | None = None,
    max_lifetime_seconds: float | None,
    orphan_timeout_seconds: float,
) -> SandboxSpec:
    """A place for a sandbox.

    Args:
        request: what is wanted.
        image: that it is made of.
        place_id: what the backend knows it by.
        host_name: what it calls itself; None: `place_id`.
        secrets: environment variables that go into no file.
        record: for other servers.
        max_lifetime_seconds: when it ends itself.
        orphan_timeout_seconds: how long it waits for a server.
    """
    return SandboxSpec(
        sandbox_id=place_id,
        host_name=host_name,
        image=image,
        environment=request.environment_variables,
        secrets=secrets or {},
        record=record,
        packages=request.packages,
        working_dir=request.working_dir,
        max_lifetime_seconds=max_lifetime_seconds,
        idle_timeout_seconds=request.idle_timeout_seconds,
        orphan_timeout_seconds=orphan_timeout_seconds,
        mounted_files=tuple(
            MountedFile(path=file.mount_path, content=b64decode(file.file_content)) for file in request.mounted_files
        ),
        exposes_ports=bool(request.ports),
        egress_port=port_of(request),
        requests=request.resources.requests.named(),
        limits=request.resources.limits.named(),
        network=request.egress_mode if isinstance(request.egress_mode, str) else "none",
        runway_ids=tuple(request.runway_ids),
        tower_ids=tuple(request.tower_ids),
        tags=tuple(dict.fromkeys(request.tags)),
    )
