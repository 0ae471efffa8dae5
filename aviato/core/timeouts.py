"""The error of who waits no longer for work that goes on."""

from __future__ import annotations

from aviato.exceptions import OperationTimeoutError


def not_ended(what: str, seconds: float, status_reason: str | None, *, has_begun: bool) -> OperationTimeoutError:
    """Of one operation.

    Args:
        what: it does.
        seconds: for which it was waited for.
        status_reason: of its sandbox, where that does not run yet and says why.
        has_begun: what runs inside may be to blame for the wait.
    """
    pending = "" if status_reason is None else f" (pending: {status_reason})"
    message = f"{what} has not ended after {seconds:g} s and goes on{pending}; ask again later, or cancel() it"
    return OperationTimeoutError(message, status_reason=status_reason, is_infrastructure=not has_begun)


def not_all_ended(
    left: int, count: int, seconds: float, status_reason: str | None, *, has_begun: bool
) -> OperationTimeoutError:
    """Of several.

    Args:
        left: that have not ended.
        count: in all.
        seconds: for which they were waited for.
        status_reason: of the sandbox of the first that has not.
        has_begun: what runs inside may be to blame for the wait for one of them.
    """
    pending = "" if status_reason is None else f" (the first is pending: {status_reason})"
    message = f"{left} of {count} operations have not ended after {seconds:g} s and go on{pending}; "
    message += "ask again later, or cancel() them"
    return OperationTimeoutError(message, status_reason=status_reason, is_infrastructure=not has_begun)
