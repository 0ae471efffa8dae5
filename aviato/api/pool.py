"""Pool: sandboxes that are ready before they are asked for."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.api.closing import Closing
from aviato.calls import pooling
from aviato.calls.sandbox_state import begin, call
from aviato.wire.ids import new_pool_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from aviato.api.sandbox import Sandbox
    from aviato.bridge.operation import OperationRef
    from aviato.calls.recipe import BuildCounts
    from aviato.calls.sandbox_config import SandboxConfig, SandboxOptions
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.core.pools import PoolKeeper


class Pool(Closing):
    """Sandboxes of one kind that a server keeps ready. `Session.pool` makes one; use it with `with` or `async with`.

    Where none is ready, `sandbox()` gives one that starts as any other. The warm-up commands have run in either. A forked child
    that leaves the block leaves the pool to its parent.
    """

    def __init__(
        self,
        size: int,
        fields: dict[str, Any],
        options: SandboxOptions,
        config_of: Callable[[SandboxOptions], SandboxConfig],
        make: Callable[[SandboxConfig], Sandbox],
        counts: BuildCounts,
    ) -> None:
        self._pid = os.getpid()
        self._pool_id = new_pool_id()
        self._size = size
        self._fields = {**fields, "pool_id": self._pool_id}
        self._options = options
        self._config_of = config_of
        self._make = make
        self._counts = counts
        self._config = self._made_with(options)
        self._keeper: PoolKeeper | None = None
        self._closing: OperationRef[None] | None = None
        here = weakref.ref(self)
        begin(call(self._config.connection, lambda client, lease: _begin(here, client, lease)), "begin a pool", shared=True)

    @property
    def size(self) -> int:
        """How many are kept ready."""
        return self._size

    def sandbox(self, **overrides: Unpack[SandboxOptions]) -> Sandbox:
        """A sandbox of the pool, or one like it if none is ready.

        Args:
            overrides: as the constructor of `Sandbox`: environment variables, annotations and tags are added to the pool's,
                others take their place. With another image, other resources, files, ports, packages or another network it
                is not one of those that are ready.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant, or the session is closed.
        """
        # Those that are made with the same fields, as the same object, have them checked and encoded once.
        return self._make(self._made_with(pooling.merged(self._options, overrides)) if overrides else self._config)

    def ready(self) -> OperationRef[int]:
        """How many are ready now."""

        async def work(client: Client, _: Lease) -> int:
            return 0 if self._keeper is None or not self._keeper.is_told else (await self._keeper.told(client)).ready

        return begin(call(self._config.connection, work), "look at a pool")

    def close(self) -> OperationRef[None]:
        """Keep none ready any more. What was handed out goes on."""
        if self._closing is None:

            async def work(client: Client, _: Lease) -> None:
                if self._keeper is not None:
                    self._keeper.close()
                await client.remove_pool(self._pool_id)

            self._closing = begin(call(self._config.connection, work), "close a pool", shared=True)
        return self._closing

    @property
    def _ends_here(self) -> bool:
        return self._pid == os.getpid()

    def _made_with(self, options: SandboxOptions) -> SandboxConfig:
        config = self._config_of(options)
        pooling.check(config)
        return replace(config, create={**(config.create or {}), **self._fields})

    def __repr__(self) -> str:
        return f"<Pool of {self._size} sandboxes{', closed' if self._closing is not None else ''}>"


async def _begin(here: weakref.ref[Pool], client: Client, lease: Lease) -> None:
    """Keep a pool for as long as somebody has its object and has not closed it."""
    from aviato.calls.recipe import Building
    from aviato.core.background import background
    from aviato.core.pools import PoolKeeper

    pool = here()
    if pool is None or pool._closing is not None:
        return
    create = pool._config.create or {}
    recipe = pool._config.recipe
    beginning = None if recipe is None else Building(recipe, client, lease, create, pool._counts)
    pool._keeper = PoolKeeper(pool._pool_id, pool._size, create, lambda: here() is not None)
    background(pool._keeper.keep(client, beginning))
