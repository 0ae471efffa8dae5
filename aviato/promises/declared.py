"""What a check is about: capabilities that it needs, and promises that a backend may have said not to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aviato.server.backends.capabilities import Capability

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the backend of a server says of itself.

    Attributes:
        backend: its name.
        capabilities: what it can do.
        unkept: names of promises that it does not keep here.
        strengths: of each limit, for a sandbox that named `cpu` alone.
    """

    backend: str
    capabilities: frozenset[str]
    unkept: frozenset[str]
    strengths: dict[str, str]

    def lacking(self, check: Any) -> str | None:
        """Why a check is not for this backend; None: it is."""
        for capability in getattr(check, "needs", ()):
            if capability not in self.capabilities:
                return f"{self.backend!r} declares no {capability.value!r}"
        for promise in getattr(check, "keeps", ()):
            if promise in self.unkept:
                return f"{self.backend!r} declares that it does not keep {promise!r}"
        for limit in getattr(check, "limits", ()):
            if self.strengths.get(limit, "none") == "none":
                return f"{self.backend!r} declares no strength of the limit {limit!r}"
        return None


def needs(*capabilities: Capability) -> Callable[[F], F]:
    """The check is for backends that have declared these. Those without are asked by `refusals` for what they say then."""
    return _with("needs", capabilities)


def keeps(*promises: str) -> Callable[[F], F]:
    """The check is for backends that do not have these in `unkept_promises`."""
    return _with("keeps", promises)


def limits(*names: str) -> Callable[[F], F]:
    """The check is for backends that hold these limits."""
    return _with("limits", names)


def _with(name: str, values: tuple[Any, ...]) -> Callable[[F], F]:
    def mark(check: F) -> F:
        setattr(check, name, (*getattr(check, name, ()), *values))
        return check

    return mark
