"""Servers of a claim in this process: one that dies when a test wants it, and one that soon looks for what others have left."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.kubernetes import backend as backend_module
from aviato.server.backends.kubernetes import left_behind
from aviato.server.backends.kubernetes.backend import KubernetesBackend
from aviato.server.backends.kubernetes.options import ClusterOptions
from aviato.wire.ids import new_place_id
from tests.kubernetes.pods.conftest import Namespace

SWEEP_SECONDS, ABANDONED_SECONDS, START_SECONDS = 0.2, 1.0, 1.0
"""In place of minutes."""


@asynccontextmanager
async def opened(namespace: Namespace, claim: str, **options: Any) -> AsyncIterator[KubernetesBackend]:
    """The backend of a server, with a name of its own.

    Args:
        namespace: where its pods are.
        claim: of its servers.
        options: see `ClusterOptions`.
    """
    own = {"namespace": namespace.name, "claim": claim, "init_image": namespace.init_image, **options}
    with tempfile.TemporaryDirectory(prefix="aviato-server-") as folder:
        made = KubernetesBackend(Path(folder), default_image=namespace.image, options=ClusterOptions(**own))
        await made.open()
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def looking(namespace: Namespace, claim: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[None]:
    """A server that has waited long enough for others after seconds."""
    monkeypatch.setattr(backend_module, "SWEEP_SECONDS", SWEEP_SECONDS)
    monkeypatch.setattr(left_behind, "ABANDONED_SECONDS", ABANDONED_SECONDS)
    async with opened(namespace, claim, start_seconds=START_SECONDS, **options):
        yield


async def die_unproved(
    namespace: Namespace, claim: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[str, dict[str, Any]]:
    """Have a server make a sandbox, and die once its pod runs and has its labels, before it has proved the key.

    Returns:
        The id of the place, and the pod.
    """

    async def nobody(*_: object) -> Any:
        await asyncio.Event().wait()

    async with opened(namespace, claim, **options) as server:
        with monkeypatch.context() as patched:
            patched.setattr(backend_module, "reach", nobody)
            spec = SandboxSpec(sandbox_id=new_place_id(), image=server.resolve_image(None))
            making = asyncio.create_task(server.create(spec))
            selector = f"aviato.dev/place={spec.sandbox_id}"
            async with asyncio.timeout(60):
                while not (found := await asyncio.to_thread(namespace.all, "pods", selector)) or not runs(found[0]):
                    assert not making.done(), making.exception()
                    await asyncio.sleep(0.1)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
    return spec.sandbox_id, found[0]


def runs(pod: dict[str, Any]) -> bool:
    """Whether its process 1 does."""
    return bool(pod["status"]["phase"] == "Running")


async def until_gone(namespace: Namespace, *kinds: str, seconds: float = 30) -> None:
    """Until none of these has a place."""

    def left() -> list[str]:
        return [one["metadata"]["name"] for kind in kinds for one in namespace.all(kind, "aviato.dev/place")]

    async with asyncio.timeout(seconds):
        while await asyncio.to_thread(left):
            await asyncio.sleep(0.2)
