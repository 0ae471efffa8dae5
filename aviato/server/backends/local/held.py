"""What the backend holds of its sandboxes, and how long their deaths take."""

from __future__ import annotations

import logging
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from aviato.server.backends.local.left import LeftPlace, Lent
    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.link.link import Process1Link

log = logging.getLogger(__name__)

DEATH_SECONDS = 15.0


@dataclass
class Held:
    """What the backend holds of one sandbox."""

    uid: int
    asked: asyncio.Future[tuple[int, int]] | None = None
    pidfd: int | None = None
    link: Process1Link | None = None
    killed: bool = False
    """Process 1 is on its way out, with all that is inside."""
    grouped: bool = True
    """It may have control groups."""
    place: LeftPlace | None = None
    """That it was to have."""
    lent: Lent | None = None
    processors: tuple[int, ...] = ()
    """That its commands run on, where not all."""
    cpu: float | None = None
    image: ResolvedImage | None = None
    """That it is made of; one of the store is kept for it there."""


def are_dead(killed: Iterable[Held], seconds: float = 0) -> bool:
    """Whether all of them are, with all that was inside, in that time."""
    for held in killed:
        death = select.poll()
        if held.pidfd is None:
            return False
        death.register(held.pidfd, select.POLLIN)
        if not death.poll(seconds * 1000):
            return False
    return True


def await_deaths(killed: Mapping[str, Held]) -> dict[str, Held]:
    """Those whose process 1 dies in time."""
    dead = {sandbox_id: held for sandbox_id, held in killed.items() if are_dead([held], DEATH_SECONDS)}
    for sandbox_id in killed.keys() - dead.keys():
        log.warning("the place of sandbox %s cannot be taken away yet: its process 1 does not die", sandbox_id)
    return dead
