"""Backends by name; each is imported only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.backends.base import Backend


def _local(**settings: Any) -> Backend:
    from aviato.server.backends.local.backend import LocalBackend

    return LocalBackend(settings.pop("directory"), **settings)


def _landlock(**settings: Any) -> Backend:
    from aviato.server.backends.landlock.backend import LandlockBackend

    return LandlockBackend(settings.pop("directory"), **settings)


BACKENDS: dict[str, Callable[..., Backend]] = {"local": _local, "landlock": _landlock}


def make_backend(name: str, **settings: Any) -> Backend:
    """A backend by its name.

    Args:
        name: one of `BACKENDS`.
        settings: its constructor's; `directory` and, for `local` and `landlock`, `uid_base`, `images`, `packages`,
            `private`, `allow_any_directory`, `shared`.

    Raises:
        AviatoValidationError: there is no such backend; the message names those there are.
    """
    make = BACKENDS.get(name)
    if make is None:
        known = ", ".join(repr(one) for one in sorted(BACKENDS))
        message = f"there is no backend {name!r}; there are {known}"
        raise AviatoValidationError(message, field_violations={"backend": message})
    return make(**settings)
