"""What process 1 says first, and whether this server speaks its protocol."""

from __future__ import annotations

import json
from typing import Any

from aviato.exceptions import SandboxUnavailableError
from aviato.wire.frames import PROTOCOL, FrameError

_FIELDS: dict[str, type | tuple[type, ...]] = {"features": list, "execs": dict, "orphan_timeout_seconds": (int, float)}
"""Without these there is nothing to speak about; all others can be missing."""


def read(payload: bytes, sandbox_id: str) -> dict[str, Any]:
    """The fields of HELLO.

    The protocol is looked at before anything else: what the rest means depends on it.

    Raises:
        SandboxUnavailableError: reason `protocol_version`: it is of a version that this server does not speak.
        FrameError: it is no HELLO.
    """
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"its HELLO cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise FrameError("its HELLO is no object")
    _check_protocol(said.get("protocol"), sandbox_id)
    for name, kinds in _FIELDS.items():
        if not isinstance(said.get(name), kinds):
            raise FrameError(f"its HELLO has no {name!r} that can be read")
    return said


def _check_protocol(number: Any, sandbox_id: str) -> None:
    is_number = isinstance(number, int) and not isinstance(number, bool) and number > 0
    if is_number and PROTOCOL - 1 <= number <= PROTOCOL:
        return
    speaks = f"protocol {number}" if is_number else f"no protocol that has a number ({_short(number)})"
    own = f"{PROTOCOL - 1} and {PROTOCOL}" if PROTOCOL > 1 else f"{PROTOCOL}"
    if is_number and number > PROTOCOL:
        advice = "a newer aviato made it: start the server of that version again, or make a new sandbox with this one"
    else:
        advice = "another version of aviato made it, which this server does not follow upon: make a new sandbox"
    raise SandboxUnavailableError(
        f"process 1 of {sandbox_id} speaks {speaks}, this server speaks {own}; {advice}",
        sandbox_id=sandbox_id,
        reason="protocol_version",
        retryable=False,
    )


def _short(value: Any) -> str:
    text = "it names none" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
