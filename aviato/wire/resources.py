"""What a sandbox may use, on the wire: plain numbers, in cores, bytes or by count."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aviato.wire.base import RequestModel

LARGEST = 1 << 60

Count = Annotated[int, Field(ge=1, le=LARGEST)]


class Amounts(RequestModel):
    """An amount of each resource that is named; None: none was."""

    cpu: Annotated[float, Field(ge=0.001, le=1 << 20, allow_inf_nan=False)] | None = None
    memory: Annotated[int, Field(ge=4 << 20, le=LARGEST)] | None = None
    shm: Annotated[int, Field(ge=1 << 20, le=LARGEST)] | None = None
    processes: Count | None = None
    disk: Annotated[int, Field(ge=1 << 20, le=LARGEST)] | None = None
    inodes: Annotated[int, Field(ge=64, le=LARGEST)] | None = None
    gpu: Count | None = None

    def named(self) -> dict[str, float]:
        """Those that are named."""
        return {name: value for name, value in self.__dict__.items() if value is not None}


class Resources(RequestModel):
    """What a sandbox wants to be sure of, and what it may not go beyond."""

    requests: Amounts = Amounts()
    limits: Amounts = Amounts()


NO_RESOURCES = Resources()
"""Nothing is named."""
