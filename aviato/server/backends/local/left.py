"""Places that sandboxes have left as they were made, for others to have them: see `layers.c`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aviato.server.backends.local.control import TemplateControl

KEPT_SECONDS = 4.0
"""Less than the template keeps what belongs to them."""
REST_SECONDS = 0.05
"""What was on its way in a socket is closed by a worker of the kernel's, some turns of its clock after the socket has gone."""
MOST = 32


class LeftPlace(NamedTuple):
    """A place whose sandbox is gone.

    Attributes:
        sandbox_id: which it was; its directory has that name, among those that are left.
        uid: host id to which all of it belongs, so that the next sandbox has the same.
        template, number: who has the rest of it, and as the request of which number.
        lower: the directory below its layers.
        since: when it was left, by the loop's clock.
    """

    sandbox_id: str
    uid: int
    template: TemplateControl
    number: int
    lower: str
    since: float


class LeftPlaces:
    """A bounded number of them, none for long."""

    def __init__(self) -> None:
        self._places: dict[str, LeftPlace] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: LeftPlace) -> None:
        """Another one."""
        self._places[place.sandbox_id] = place

    def take(self, lower: str, template: TemplateControl, now: float) -> LeftPlace | None:
        """The first that was left with this below it, once the kernel has had the time to close what its sandbox had open."""
        for place in self._places.values():
            if now - place.since < REST_SECONDS:
                break
            if place.lower == lower and place.template is template:
                return self._places.pop(place.sandbox_id)
        return None

    def surplus(self, now: float) -> list[LeftPlace]:
        """Those that are too old, or too many; they are none of these any more."""
        places = list(self._places.values())
        gone = [one for one in places if now - one.since >= KEPT_SECONDS]
        gone += places[len(gone) : len(places) - MOST]
        return [self._places.pop(one.sandbox_id) for one in gone]
