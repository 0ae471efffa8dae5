"""Pulls from a real registry by way of the proxy: each ends with the whole image or says why not, and the next goes on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images.patience import Patience
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacking import Unpacking
from tests.images.layouts import Image, tar_of
from tests.images.real_registry import real_registry
from tests.images.test_real_registry import fill
from tests.matrices import deep

QUICK = Patience(connect_seconds=2, stall_seconds=1, attempts=3, backoff_seconds=0.02, most_wait_seconds=1)
REASONS = {
    *("registry_failed", "registry_unreachable", "interrupted", "stalled", "not_a_registry", "unknown_name", "unknown_tag"),
    *("wrong_digest", "truncated_layer", "oversized_layer", "bad_manifest", "too_many_requests"),
}
"""What may be said of a registry that answers with garbage."""


@pytest.mark.usefixtures("_private_environment")
@pytest.mark.parametrize("seed", [1, *deep(range(2, 12))])
def test_whatever_happens_on_the_way(make_proxy: Any, tmp_path: Path, seed: int) -> None:
    layers = [{f"d{number}/x": os.urandom(700_000)} for number in range(4)]
    image = Image(*map(tar_of, layers))
    with real_registry(tmp_path) as host:
        fill(tmp_path, host, image)
        proxy = make_proxy(host, seed=seed, every=0.05, listen="127.0.0.1:0")
        reference = f"{proxy.address}/some/image:v1"
        store = ImageStore(tmp_path / "store", Unpacking(binary.found, owners=False), patience=QUICK)
        failed: list[str | None] = []

        async def pulls() -> None:
            deadline = time.monotonic() + 40
            whole = 0
            while whole < 5 and time.monotonic() < deadline:
                try:
                    found = await store.pull(reference)
                except SandboxImageError as error:
                    failed.append(error.reason)
                    assert error.is_infrastructure and error.reason in REASONS, (error.reason, error)
                    assert store.find(reference) is None and store.list() == []
                    continue
                whole += 1
                assert found.image_id == image.image_id
                for root, files in zip(reversed(found.layers), layers, strict=True):
                    assert {name: Path(root, name).read_bytes() for name in files} == files
                await store.remove(reference)
                await store.prune()
            proxy.calm(True)
            assert (await store.pull(reference)).image_id == image.image_id

        asyncio.run(pulls())
        assert proxy.faults, failed
