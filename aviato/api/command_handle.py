"""What handles on commands have in common, on a terminal or not: input on the loop thread, and whose fault a long wait is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from aviato.bridge.operation import OperationRef
from aviato.exceptions import SandboxExecutionError

if TYPE_CHECKING:
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.execution import Execution

T = TypeVar("T")


class CommandHandle(OperationRef[T], Generic[T]):
    """A handle on one command.

    Attributes:
        exec_id: made by the client; the server runs an id at most once.
    """

    exec_id: str
    _kind = "command"
    _state: SandboxState
    _execution: Execution | None = None
    """Once it has begun on the loop thread."""

    async def _write(self, data: bytes, offset: int) -> None:
        await self._executing().write_stdin(data, offset)

    async def _write_eof(self, offset: int) -> None:
        await self._executing().end_stdin(offset)

    def _executing(self) -> Execution:
        if self._execution is None:
            raise SandboxExecutionError(f"{self._kind} {self.exec_id} did not start", reason="stdin_closed")
        return self._execution

    @property
    def has_begun(self) -> bool:
        """Whether it runs or has run: before that nothing inside can be to blame for the wait."""
        return self._execution is not None and self._execution.started

    @property
    def _asked_state(self) -> SandboxState | None:
        return None if self.has_begun else self._state
