"""Every error that aviato raises, and the question a reward asks of each: was it the policy's code, or us?

::

    AviatoError
    ├─ AviatoAuthenticationError ─ WandbAuthError
    ├─ AviatoValidationError (ValueError)
    ├─ OperationTimeoutError (TimeoutError)
    ├─ SandboxError
    │  ├─ SandboxNotRunningError
    │  ├─ SandboxTimeoutError (TimeoutError)
    │  │  ├─ SandboxRequestTimeoutError
    │  │  └─ SandboxCommandTimeoutError
    │  ├─ SandboxExecutionError
    │  ├─ SandboxFileError
    │  ├─ SandboxNotFoundError
    │  ├─ SandboxFailedError
    │  ├─ SandboxTerminatedError
    │  ├─ SandboxUnavailableError
    │  ├─ SandboxResourceExhaustedError
    │  ├─ SandboxImageError
    │  └─ SandboxSnapshotError
    ├─ OperationCancelledError (concurrent.futures.CancelledError)
    └─ FunctionError ─ AsyncFunctionError, FunctionSerializationError
    AsyncUsageWarning (Warning)

`is_infrastructure` is True exactly when nothing that runs inside a sandbox could have brought the failure about. Each class
has a default for it, and the server states it where a class alone does not tell (a sandbox can fail by its own main command
or because its host died).
"""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any, ClassVar

from aviato.values.representation import beginning
from aviato.values.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.results import ProcessResult

MOST_SHOWN = 240
"""Characters of a message in the repr of an error; `str` has all of them."""


class AviatoError(Exception):
    """Base of every aviato error.

    Its message may quote what code inside a sandbox has written; in it all but printable characters, line ends and tabs are
    escaped, so that it can be shown as it is.

    Attributes:
        reason: a stable code in lower case for programs, such as `"lifetime"` or `"no_such_file"`.
        retryable: whether the same call may succeed later without a change.
        retry_delay_seconds: how long the server asks to wait before that, or None.
        is_infrastructure: True when nothing that runs inside a sandbox could have caused it; such a failure
            must never become a reward.
    """

    code: ClassVar[str] = "ERROR"
    default_reason: ClassVar[str] = "error"
    default_retryable: ClassVar[bool] = False
    default_is_infrastructure: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        retryable: bool | None = None,
        retry_delay_seconds: float | None = None,
        is_infrastructure: bool | None = None,
    ) -> None:
        super().__init__(printable(message))
        self.reason = reason if reason is not None else self.default_reason
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_delay_seconds = retry_delay_seconds
        self.is_infrastructure = self.default_is_infrastructure if is_infrastructure is None else is_infrastructure

    def __repr__(self) -> str:
        return f"{type(self).__name__}({beginning(str(self), MOST_SHOWN)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message and attributes, so that keyword-only fields survive a process pool."""
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(cls: type[AviatoError], args: tuple[Any, ...], state: Mapping[str, Any]) -> AviatoError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class AviatoAuthenticationError(AviatoError):
    """The server refused the caller's credentials, or there are none. Set `AVIATO_API_KEY`."""

    code = "AUTHENTICATION"
    default_reason = "authentication"
    default_is_infrastructure = True


class WandbAuthError(AviatoAuthenticationError):
    """The server asks for W&B credentials and they are missing or incomplete."""

    code = "WANDB_AUTHENTICATION"


class AviatoValidationError(AviatoError, ValueError):
    """The call itself is wrong; nothing was started.

    Attributes:
        field_violations: parameter name → what is wrong with it.
    """

    code = "VALIDATION"
    default_reason = "invalid"

    def __init__(self, message: str = "", *, field_violations: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.field_violations = dict(field_violations or {})


class OperationTimeoutError(AviatoError, TimeoutError):
    """`.result(timeout)` ran out. The work goes on: ask again later, or `.cancel()` it.

    It is infrastructure where the command, or for other calls the sandbox, had not begun to run.

    Attributes:
        status_reason: of the sandbox, asked of the server then, where that was still pending and said why, such as `pulling`
            or `queued: place 3 in the server's queue`; else None.
    """

    code = "OPERATION_TIMEOUT"
    default_reason = "result_timeout"
    default_retryable = True

    def __init__(self, message: str = "", *, status_reason: str | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.status_reason = status_reason


class OperationCancelledError(AviatoError, concurrent.futures.CancelledError):
    """The operation was cancelled, by this caller or another one that shares it."""

    code = "CANCELLED"
    default_reason = "cancelled"


class SandboxError(AviatoError):
    """Base of the errors about one sandbox.

    Attributes:
        sandbox_id: the sandbox, where one is known.
        started: for a command, whether it had begun to run; None where that is not the question.
    """

    code = "SANDBOX_ERROR"

    def __init__(self, message: str = "", *, sandbox_id: str | None = None, started: bool | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.sandbox_id = sandbox_id
        self.started = started


class SandboxNotRunningError(SandboxError):
    """The sandbox ended by the caller's own `stop()` or because its main command exited 0."""

    code = "SANDBOX_NOT_RUNNING"
    default_reason = "not_running"


class SandboxTimeoutError(SandboxError, TimeoutError):
    """Something took too long; the two subclasses say what."""

    code = "SANDBOX_TIMEOUT"
    default_reason = "timeout"


class SandboxRequestTimeoutError(SandboxTimeoutError):
    """The server did not answer in time. Infrastructure: raise `request_timeout_seconds` or look at the server."""

    code = "REQUEST_TIMEOUT"
    default_reason = "request_timeout"
    default_retryable = True
    default_is_infrastructure = True


class SandboxCommandTimeoutError(SandboxTimeoutError):
    """The command ran longer than its `timeout_seconds` and was killed with its whole process tree.

    Attributes:
        exec_result: all output up to then, with `timed_out=True`, `returncode` 137 and `signal` 9.
    """

    code = "COMMAND_TIMEOUT"
    default_reason = "command_timeout"

    def __init__(self, message: str = "", *, exec_result: ProcessResult | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.exec_result = exec_result


class SandboxExecutionError(SandboxError):
    """The command failed: `check=True` and a returncode other than 0, a remote exception, or a write to closed stdin.

    Attributes:
        exec_result: the result, if the command ended.
        exception_type, exception_message: of the remote exception, for functions.
    """

    code = "EXECUTION"
    default_reason = "execution"

    def __init__(
        self,
        message: str = "",
        *,
        exec_result: ProcessResult | None = None,
        exception_type: str | None = None,
        exception_message: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(message, **kwargs)
        self.exec_result = exec_result
        self.exception_type = None if exception_type is None else printable(exception_type)
        self.exception_message = None if exception_message is None else printable(exception_message)


class SandboxFileError(SandboxError):
    """A file operation failed by what is inside the sandbox; a matter of the task.

    Attributes:
        filepath: the path as given.
        reason: `no_such_file`, `is_a_directory`, `not_a_directory`, `not_a_regular_file`, `permission_denied`, `file_exists`,
            `directory_not_empty`, `too_large`, `disk_full`, `host_disk_full` (the machine's: infrastructure), `read_only`,
            `timeout`, `changed` (while it was read, and the connection was cut), `hostile_archive`, `owner` (the sandbox
            cannot have that user; of builds alone) or `file`.
    """

    code = "FILE"
    default_reason = "file"

    def __init__(self, message: str = "", *, filepath: str | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.filepath = filepath


class SandboxNotFoundError(SandboxError):
    """The server does not know this sandbox (or it belongs to someone else)."""

    code = "SANDBOX_NOT_FOUND"
    default_reason = "sandbox_not_found"


class SandboxFailedError(SandboxError):
    """The sandbox failed: its main command exited with an error, its start failed, or its backend lost it."""

    code = "SANDBOX_FAILED"
    default_reason = "failed"


class SandboxTerminatedError(SandboxError):
    """The sandbox was ended by a limit or by the server: `reason` is `lease_expired`, `lifetime`, `idle`, `shutdown`,
    `orphaned` or `released`.
    """

    code = "SANDBOX_TERMINATED"
    default_reason = "terminated"


class SandboxUnavailableError(SandboxError):
    """No server, or the connection to it was lost for good. The message lists what was tried."""

    code = "UNAVAILABLE"
    default_reason = "unavailable"
    default_retryable = True
    default_is_infrastructure = True


class SandboxResourceExhaustedError(SandboxError):
    """There is no capacity now; `retry_delay_seconds` says when to try again."""

    code = "RESOURCE_EXHAUSTED"
    default_reason = "resource_exhausted"
    default_retryable = True
    default_is_infrastructure = True


class SandboxImageError(SandboxError):
    """The image is unknown or cannot be had; the message names what is there instead."""

    code = "IMAGE"
    default_reason = "image"
    default_is_infrastructure = True


class SandboxSnapshotError(SandboxError):
    """A snapshot could not be taken or restored."""

    code = "SNAPSHOT"
    default_reason = "snapshot"
    default_is_infrastructure = True


class FunctionError(AviatoError):
    """A remote function cannot be used as it is."""

    code = "FUNCTION"
    default_reason = "function"


class AsyncFunctionError(FunctionError):
    """An `async def` cannot be a remote function."""

    code = "ASYNC_FUNCTION"


class FunctionSerializationError(FunctionError):
    """A function, an argument or a result cannot be serialized."""

    code = "FUNCTION_SERIALIZATION"


class AsyncUsageWarning(Warning):
    """A blocking call was made on a thread whose own event loop is running; use `await`."""
