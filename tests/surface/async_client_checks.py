"""AsyncClient: the core by itself, on the caller's loop."""

from __future__ import annotations

import aviato
from tests.surface.harness import Place, acheck


@acheck("AsyncClient.__aenter__", "AsyncClient.sandbox", "AsyncClient.from_id", "AsyncClient.list")
async def client(place: Place) -> None:
    async with aviato.AsyncClient() as core:
        box = await core.sandbox(tags=["core"])
        assert (await box.exec(["echo", "hi"])).stdout == "hi\n"
        assert (await (await core.from_id(box.sandbox_id)).exec(["true"])).returncode == 0
        assert box.sandbox_id in [one.sandbox_id for one in await core.list(tags=["core"])]
