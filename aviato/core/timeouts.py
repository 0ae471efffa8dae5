"""The error of who waits no longer for work that goes on."""

from __future__ import annotations

from aviato.exceptions import OperationTimeoutError


def not_ended(what: str, seconds: float, status_reason: str | None = None) -> OperationTimeoutError:
    """Of one operation.

    Args:
        what: it does.
        seconds: for which it was waited for.
        status_reason: of its sandbox, where that does not run yet and says why.
    """
    pending = "" if status_reason is None else f" (pending: {status_reason})"
    message = f"{what} has not ended after {seconds:g} s and goes on{pending}; ask again later, or cancel() it"
    return OperationTimeoutError(message, status_reason=status_reason)


def not_all_ended(left: int, count: int, seconds: float, status_reason: str | None = None) -> OperationTimeoutError:
    """Of several.

    Args:
        left: that have not ended.
        count: in all.
        seconds: for which they were waited for.
        status_reason: of the sandbox of the first that has not.
    """
    pending = "" if status_reason is None else f" (the first is pending: {status_reason})"
    message = f"{left} of {count} operations have not ended after {seconds:g} s and go on{pending}; "
    return OperationTimeoutError(message + "ask again later, or cancel() them", status_reason=status_reason)
