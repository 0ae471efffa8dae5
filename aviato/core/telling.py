"""What the log is told of a sandbox's life, at INFO."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aviato.log import logger
from aviato.values.text import line

if TYPE_CHECKING:
    from aviato.wire.sandboxes import SandboxInfo


def tell_of_start(sandbox_id: str, info: SandboxInfo | None, startup_seconds: float | None, queued_seconds: float) -> None:
    """It runs; `queued_seconds` were spent in its session's queue before the server knew it."""
    if logger.isEnabledFor(logging.INFO):
        image = "" if info is None or info.image is None else f" ({line(info.image)})"
        waited = f", {queued_seconds:.3f} s in its session's queue before" if queued_seconds else ""
        logger.info("sandbox %s%s runs, after %.3f s%s", sandbox_id, image, startup_seconds or 0.0, waited)


def tell_of_end(info: SandboxInfo) -> None:
    """It has ended."""
    if logger.isEnabledFor(logging.INFO):
        lived = "without having run"
        if info.started_at is not None:
            lived = f"after {(info.ended_at or info.status_updated_at) - info.started_at:.3f} s"
        why = f" ({line(info.status_reason)})" if info.status_reason else ""
        code = "" if info.returncode is None else f", returncode {info.returncode}"
        logger.info("sandbox %s has ended %s: %s%s%s", info.sandbox_id, lived, info.status, why, code)
