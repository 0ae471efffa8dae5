"""What is answered where an operation fails, whatever carries it."""

from __future__ import annotations

import logging
import sqlite3

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.callers import BodyTooLargeError
from aviato.server.operations.bodies import SlowBodyError
from aviato.server.operations.reply import JSON, Reply
from aviato.server.operations.routes import NoSuchMethodError, NoSuchRouteError
from aviato.wire.errors import STATUS_BY_CODE, ErrorResponse, to_wire

log = logging.getLogger(__name__)

_STATUSES = {SlowBodyError: 408, BodyTooLargeError: 413, NoSuchRouteError: 404, NoSuchMethodError: 405}
"""Of errors that have one of their own, whatever their code's is."""


def failed(error: Exception, what: str) -> Reply:
    """The answer to a call that raised this.

    Args:
        error: of ours, or of what a server is made of.
        what: was asked for, for the log.
    """
    if isinstance(error, AviatoError):
        return failure(error, _STATUSES.get(type(error)))
    if isinstance(error, sqlite3.Error):
        log.error("%s: the store fails: %s", what, error)
        return failure(SandboxUnavailableError(f"the server's store cannot be used now: {error}", reason="store"))
    log.error("%s failed", what, exc_info=error)
    return failure(AviatoError("the server failed; its log says why", reason="internal", is_infrastructure=True))


def failure(error: AviatoError, status: int | None = None) -> Reply:
    """An error as JSON, with the status of its code."""
    if status is None:
        status = 426 if error.reason == "wire_version" else STATUS_BY_CODE.get(error.code, 500)
    headers = {}
    if error.retry_delay_seconds is not None and status in (429, 503):
        headers["Retry-After"] = str(max(1, round(error.retry_delay_seconds)))
    body = ErrorResponse(error=to_wire(error)).model_dump_json(exclude_none=True).encode()
    return Reply(body, status=status, content_type=JSON, headers=headers)
