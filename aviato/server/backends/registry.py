"""Backends by name; each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend

BACKENDS: dict[str, str] = {
    "local": "aviato.server.backends.local.backend:LocalBackend",
    "landlock": "aviato.server.backends.landlock.backend:LandlockBackend",
    "docker": "aviato.server.backends.docker.backend:DockerBackend",
    "kubernetes": "aviato.server.backends.kubernetes.backend:KubernetesBackend",
}
"""Module and class of each."""


def make_backend(name: str, **settings: Any) -> Backend:
    """A backend by its name.

    Args:
        name: one of `BACKENDS`.
        settings: its constructor's; `directory` and, for `local` and `landlock`, `uid_base`, `images`, `packages`,
            `private`, `allow_any_directory`, `shared`; for `docker`, `default_image` and `address`; for
            `kubernetes`, `default_image` and `options`.

    Raises:
        AviatoValidationError: there is no such backend; the message names those there are.
    """
    if name not in BACKENDS:
        known = ", ".join(repr(one) for one in sorted(BACKENDS))
        message = f"there is no backend {name!r}; there are {known}"
        raise AviatoValidationError(message, field_violations={"backend": message})
    module, _, kind = BACKENDS[name].partition(":")
    backend: Backend = getattr(importlib.import_module(module), kind)(**settings)
    return backend
