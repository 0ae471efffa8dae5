"""Which limits a sandbox may ask for: those that its backend keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.backends.base import Limit
    from aviato.wire.sandboxes import CreateSandbox


def check_limits(request: CreateSandbox, limits: Mapping[str, Limit]) -> None:
    """Refuse what would be accepted and not kept.

    Args:
        request: the create.
        limits: what the backend will keep.

    Raises:
        AviatoValidationError: a resource that was asked for has no limit here; it is named.
    """
    asked = request.resources.requests.named() | request.resources.limits.named()
    for name in asked:
        limit = limits.get(name)
        if limit is not None and limit.strength != "none":
            continue
        if name == "gpu":
            why = "'gpu': this server has none for sandboxes"
        elif name != "cpu":
            why = f"{name!r}: this server cannot keep such a limit; `aviato doctor` says which it can"
        elif request.strict_limits:
            why = "'cpu': this server cannot keep such a limit; without strict_limits= it is accepted and not enforced"
        else:
            continue
        raise AviatoValidationError(f"resources: {why}", field_violations={"resources": why})
