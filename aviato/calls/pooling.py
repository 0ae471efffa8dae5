"""The arguments of pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aviato import defaults as checks
from aviato.exceptions import AviatoValidationError
from aviato.wire.pools import MOST_READY
from aviato.wire.sandboxes import MOST_WARMUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.calls.sandbox_config import SandboxConfig, SandboxOptions


def size(given: int) -> int:
    """How many are kept ready.

    Raises:
        TypeError, AviatoValidationError: not so many.
    """
    checks.count("size", given)
    if given > MOST_READY:
        raise AviatoValidationError(f"size must be 1 to {MOST_READY}, got {given}", field_violations={"size": "out of range"})
    return given


def warmup(given: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Commands as a server takes them.

    Raises:
        TypeError, AviatoValidationError: something is none.
    """
    if isinstance(given, str):
        raise TypeError(f"warmup must be several commands, such as [{given!r}], not str")
    commands = [
        ["sh", "-c", checks.text("warmup", one)] if isinstance(one, str) else [*checks.texts("warmup", one)] for one in given
    ]
    if len(commands) > MOST_WARMUP or not all(commands):
        message = f"warmup is at most {MOST_WARMUP} commands of a word or more"
        raise AviatoValidationError(message, field_violations={"warmup": "not so"})
    return commands


def check(config: SandboxConfig) -> None:
    """See whether a pool can have such sandboxes.

    Raises:
        AviatoValidationError: not so.
    """
    if (config.create or {}).get("command") is not None:
        message = "sandboxes of a pool have no main command; begin it by exec(), or as a warm-up"
        raise AviatoValidationError(message, field_violations={"command": "none in a pool"})


def merged(pool: SandboxOptions, overrides: SandboxOptions) -> SandboxOptions:
    """The options of one sandbox of a pool: tags add up, environment variables and annotations merge, others replace."""
    options: dict[str, Any] = {**pool, **overrides}
    for name in ("environment_variables", "annotations"):
        if overrides.get(name) is not None and pool.get(name) is not None:
            options[name] = {**cast("Any", pool)[name], **cast("Any", overrides)[name]}
    if overrides.get("tags") is not None and pool.get("tags") is not None:
        options["tags"] = [*cast("Any", pool)["tags"], *cast("Any", overrides)["tags"]]
    return cast("SandboxOptions", options)
