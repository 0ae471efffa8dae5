"""Errors on the wire: a code looked up in one table, and fields. Never a class name to import."""

from __future__ import annotations

from typing import Any

from aviato import exceptions
from aviato.exceptions import AviatoError
from aviato.wire.base import ResponseModel


class ErrorBody(ResponseModel):
    """One error. The body of every response of 400 and above is `{"error": ErrorBody}`; frames of type ERROR carry it bare."""

    code: str
    message: str
    reason: str = "error"
    is_infrastructure: bool = False
    retryable: bool = False
    retry_delay_seconds: float | None = None
    sandbox_id: str | None = None
    filepath: str | None = None
    started: bool | None = None
    field_violations: dict[str, str] | None = None


class ErrorResponse(ResponseModel):
    """The body of every response of 400 and above."""

    error: ErrorBody


class RequestConflictError(exceptions.AviatoValidationError):
    """An id was used before with another body."""

    code = "REQUEST_ID_CONFLICT"
    default_reason = "request_id_conflict"


class ExecNotFoundError(exceptions.SandboxError):
    """The sandbox knows no command of this id."""

    code = "EXEC_NOT_FOUND"
    default_reason = "exec_not_found"


def _error_classes() -> list[type[AviatoError]]:
    found = [value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, AviatoError)]
    return [*found, RequestConflictError, ExecNotFoundError]


_BY_CODE = {cls.code: cls for cls in _error_classes()}

STATUS_BY_CODE: dict[str, int] = {
    "AUTHENTICATION": 401,
    "WANDB_AUTHENTICATION": 401,
    "VALIDATION": 400,
    "REQUEST_ID_CONFLICT": 409,
    "SANDBOX_NOT_FOUND": 404,
    "EXEC_NOT_FOUND": 404,
    "SANDBOX_NOT_RUNNING": 409,
    "SANDBOX_FAILED": 409,
    "SANDBOX_TERMINATED": 409,
    "EXECUTION": 409,
    "CANCELLED": 409,
    "FILE": 422,
    "IMAGE": 422,
    "SNAPSHOT": 422,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "REQUEST_TIMEOUT": 504,
}
"""HTTP status of each code that a server sends; any other is 500."""


def to_wire(error: AviatoError) -> ErrorBody:
    """The body that carries an error."""
    return ErrorBody(
        code=error.code,
        message=str(error),
        reason=error.reason,
        is_infrastructure=error.is_infrastructure,
        retryable=error.retryable,
        retry_delay_seconds=error.retry_delay_seconds,
        sandbox_id=getattr(error, "sandbox_id", None),
        filepath=getattr(error, "filepath", None),
        started=getattr(error, "started", None),
        field_violations=getattr(error, "field_violations", None),
    )


def from_wire(body: ErrorBody) -> AviatoError:
    """The error that a body carries; an unknown code gives the base class with code and message."""
    cls = _BY_CODE.get(body.code)
    message = body.message
    if cls is None:
        cls, message = AviatoError, f"{body.code}: {body.message}"
    fields: dict[str, Any] = {}
    if issubclass(cls, exceptions.SandboxError):
        fields.update(sandbox_id=body.sandbox_id, started=body.started)
    if issubclass(cls, exceptions.SandboxFileError):
        fields["filepath"] = body.filepath
    if issubclass(cls, exceptions.AviatoValidationError):
        fields["field_violations"] = body.field_violations
    return cls(
        message,
        reason=body.reason,
        retryable=body.retryable,
        retry_delay_seconds=body.retry_delay_seconds,
        is_infrastructure=body.is_infrastructure,
        **fields,
    )
