"""What follows from the machine and from what is asked for, kept because it is the same for most sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aviato.server.backends.base import Limit
    from aviato.server.backends.local import requests
    from aviato.server.backends.local.host_tree import BaseRoot
    from aviato.server.backends.local.plan import HostFacts
    from aviato.server.link.link import Configuration

T = TypeVar("T")
MOST = 64
"""A request with its plan has 18 kB."""


class Known(Generic[T]):
    """Values by what they follow from; the oldest go first."""

    def __init__(self) -> None:
        self._values: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not known."""
        if key not in self._values:
            if len(self._values) >= MOST:
                del self._values[next(iter(self._values))]
            self._values[key] = make()
        return self._values[key]


class Remembered:
    """What is known of one machine.

    Args:
        facts: of it.
        compiled: the filter of system calls.
    """

    def __init__(self, facts: HostFacts, compiled: bytes) -> None:
        self._facts = facts
        self._compiled = compiled
        self.limits: Known[dict[str, Limit]] = Known()
        self.base_roots: Known[BaseRoot] = Known()
        self.requests: Known[requests.Request] = Known()
        self.configurations: Known[Configuration] = Known()

    def is_of(self, facts: HostFacts, compiled: bytes) -> bool:
        """Whether it is still that machine."""
        return facts is self._facts and compiled is self._compiled
