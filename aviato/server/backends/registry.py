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


def is_known(name: str) -> bool:
    """Whether this may be a backend: one of `BACKENDS`, or `MODULE:CLASS` of anybody's."""
    module, colon, kind = name.partition(":")
    return name in BACKENDS or bool(colon and kind.isidentifier() and all(map(str.isidentifier, module.split("."))))


def make_backend(name: str, **settings: Any) -> Backend:
    """A backend by its name.

    Args:
        name: one of `BACKENDS`, or `MODULE:CLASS` of a class of `Backend`.
        settings: its constructor's; `directory` and, for `local` and `landlock`, `uid_base`, `images`, `packages`,
            `private`, `allow_any_directory`, `shared`; for `docker`, `default_image` and `address`; for
            `kubernetes`, `default_image` and `options`.

    Raises:
        AviatoValidationError: there is no such backend; the message names those there are.
    """
    if not is_known(name):
        raise _unknown(name, f"there are {', '.join(map(repr, sorted(BACKENDS)))}, or MODULE:CLASS")
    module, _, kind = BACKENDS.get(name, name).partition(":")
    try:
        made: type[Backend] = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise _unknown(name, str(error)) from error
    if not (isinstance(made, type) and hasattr(made, "capabilities")):
        raise _unknown(name, "that is no class of Backend")
    return made(**settings)


def _unknown(name: str, why: str) -> AviatoValidationError:
    message = f"there is no backend {name!r}; {why}"
    return AviatoValidationError(message, field_violations={"backend": message})
