"""Pools of sandboxes that are ready, on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aviato.wire.base import RequestModel, ResponseModel
from aviato.wire.sandboxes import CreateSandbox

MOST_READY = 1000


class MakePool(RequestModel):
    """Body of `PUT /v1/pools/{pool_id}`. A client repeats it as long as it needs the pool, which else goes after 90 s."""

    size: Annotated[int, Field(ge=1, le=MOST_READY)]
    """How many are kept ready."""
    sandbox: CreateSandbox
    """What they are made with, and warmed up by; its ids mean nothing."""


class PoolInfo(ResponseModel):
    """A pool."""

    pool_id: str
    size: int
    """How many are kept ready."""
    ready: int
    """How many are."""
    message: str | None
    """Why none can be made, if that is so; for people."""
