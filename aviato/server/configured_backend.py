"""The backend that a server's settings name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.server.backends.capabilities import Capability
from aviato.server.backends.registry import make_backend

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend
    from aviato.server.backends.kubernetes.options import ClusterOptions
    from aviato.server.settings import ServerSettings
    from aviato.server.state_dir import StateDirectory


def configured_backend(settings: ServerSettings, folder: StateDirectory, *, embedded: bool = False) -> Backend:
    """The backend of a server, not opened yet.

    Args:
        settings: of the server.
        folder: where it keeps its places.
        embedded: the only callers are processes of the server's own user, so they may name any directory as an image.

    Raises:
        AviatoValidationError: there is no such backend, no directory of that name, or sandboxes would have ids of accounts.
    """
    for setting, table in (("image", settings.image), ("packages", settings.packages)):
        for name, directory in table.items():
            if not os.path.isdir(directory):
                message = f"{settings.source(setting)} {name}={directory}: there is no such directory"
                raise AviatoValidationError(message, field_violations={setting: "no directory"})
    options: dict[str, Any] = {"directory": Path(folder.path)}
    if settings.backend in ("local", "landlock"):
        options["images"] = {name: Path(directory) for name, directory in settings.image.items()}
        options["packages"] = settings.packages
        options["private"] = [os.path.dirname(folder.path), *([settings.secrets_dir] if settings.secrets_dir else [])]
        options["allow_any_directory"] = embedded
        options["registry_mirrors"] = settings.registry_mirror
        options["image_cache_bytes"] = settings.image_cache_bytes
        options["shared"] = Path(folder.state)
        if settings.sandbox_uid_base is not None:
            options["uid_base"] = _free(settings, settings.sandbox_uid_base)
    if settings.backend == "docker":
        options["default_image"] = settings.default_image
        options["address"] = settings.docker_host
    if settings.backend == "kubernetes":
        options["default_image"] = settings.default_image
        options["options"] = cluster_options(settings)
    backend = make_backend(settings.backend, **options)
    if settings.warm:
        backend.require(Capability.POOLS, settings.source("warm"))
    return backend


def cluster_options(settings: ServerSettings) -> ClusterOptions:
    """What settings say of a cluster.

    Raises:
        AviatoValidationError: two of them do not go together.
    """
    from aviato.server.backends.kubernetes.options import ClusterOptions

    if settings.kubernetes_warm_pool is not None and settings.kubernetes_objects != "agent-sandbox":
        message = f"{settings.source('kubernetes_warm_pool')} {settings.kubernetes_warm_pool}: pods have no such pools; "
        message += f"{settings.source('kubernetes_objects')} agent-sandbox has"
        raise AviatoValidationError(message, field_violations={"kubernetes_warm_pool": "needs agent-sandbox"})
    return ClusterOptions(
        context=settings.kubernetes_context,
        namespace=settings.kubernetes_namespace,
        claim=settings.kubernetes_claim,
        init_image=settings.kubernetes_init_image,
        reach=settings.kubernetes_reach,
        security=settings.kubernetes_security,
        runtime_class=settings.kubernetes_runtime_class,
        pull_secrets=settings.kubernetes_pull_secret,
        pool_label=settings.kubernetes_pool_label,
        start_seconds=settings.kubernetes_start,
        objects=settings.kubernetes_objects,
        warm_pool=settings.kubernetes_warm_pool,
    )


def _free(settings: ServerSettings, base: int) -> int:
    """The first id for sandboxes, unless accounts of the machine have some: who has the id of a process can signal it."""
    from aviato.server.backends.local import uids

    if os.geteuid():
        return base  # An ordinary user has no choice of ids.
    with open("/proc/self/uid_map") as file:
        held = uids.holders(base, file.read())
    if not held:
        return base
    names = sorted(held, key=lambda name: held[name])
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    have = "have" if len(names) > 1 else "has"
    message = f"{settings.source('sandbox_uid_base')} {base}: {shown} of this machine {have} ids from there on"
    message += f"; name a number above {max(held.values())}, or leave it out"
    raise AviatoValidationError(message, field_violations={"sandbox_uid_base": "ids of accounts"})
