"""Secrets that this process has itself: it sends them to its embedded server, which has no variables of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.options import SECRET_PREFIX
from aviato.wire.bounds import too_many_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def own_values(secrets: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Values of the secrets of store `env`, by their names, as they are now.

    Raises:
        AviatoValidationError: one is not set, or is no text; the message names its variable.
    """
    return {secret["name"]: _value(SECRET_PREFIX + secret["name"]) for secret in secrets if secret["store"] == "env"}


def _value(variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise _wrong(f"{variable} is not set in this process, whose embedded server has no secrets of its own")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Without what the codec says: it quotes the value.
        raise _wrong(f"{variable} holds bytes that are no UTF-8") from None
    if (why := too_many_variables({variable.removeprefix(SECRET_PREFIX): value})) is not None:
        raise _wrong(f"{why}; give it as a file, by mounted_files= or write_file()")
    return value


def _wrong(why: str) -> AviatoValidationError:
    return AviatoValidationError(f"secrets: {why}", field_violations={"secrets": why})
