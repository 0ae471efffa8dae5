"""Terminals: a command on a screen and a keyboard of its own, as a handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.api.command_handle import CommandHandle
from aviato.bridge.operation import OperationRef
from aviato.bridge.stream import StreamReader
from aviato.bridge.writer import StreamWriter
from aviato.calls.terminal_call import terminal_execution, terminal_result, terminal_size
from aviato.results import TerminalResult

if TYPE_CHECKING:
    from aviato.calls.sandbox_state import SandboxState


class TerminalSession(CommandHandle[TerminalResult]):
    r"""A command on a terminal of its own: a handle on its result, what its screen is sent, and its keyboard.

    `result()` and `await` give the `TerminalResult`; a returncode other than 0 is a result. Terminals have no time limit:
    `cancel()` kills the whole process tree. They are no executions in a session's metrics: the exit code of a shell says
    nothing about what was done in it.

    Attributes:
        exec_id: made by the client; the server runs an id at most once.
        command: as given.
        output: bytes as they arrive, escape sequences included.
        stdin: types. Control characters are keys: `b"\x03"` is Ctrl-C. `close()` types Ctrl-D.
    """

    _kind = "terminal"

    def __init__(self, state: SandboxState, request: dict[str, Any]) -> None:
        self.exec_id: str = request["exec_id"]
        self.command: tuple[str, ...] = tuple(request["command"])
        self.output: StreamReader[bytes] = StreamReader(name="output", text=False, of=self.exec_id)
        self.stdin: StreamWriter = StreamWriter(self._write, self._write_eof, name="stdin", of=self.exec_id)
        self._streams = (self.output,)
        self._state = state
        state.used = True
        self._start(self._run(request), name=f"terminal {self.exec_id} in {state.sandbox_id}")

    def resize(self, width: int, height: int) -> OperationRef[None]:
        """Give the terminal another size in characters, once it runs; of one that has ended a no-op.

        Raises:
            TypeError, AviatoValidationError: not whole numbers from 1 to 65535.
        """
        size = terminal_size(width, height)
        return OperationRef.start(self._resize(**size), name=f"resize {self.exec_id}")

    def _state_shown(self) -> str:
        ended = self._outcome.is_set and self._outcome.error is None
        return f"returncode {self._outcome.value.returncode}" if ended else super()._state_shown()

    # -- on the loop thread

    async def _run(self, request: dict[str, Any]) -> TerminalResult:
        self._execution = terminal_execution(self._state.handle(), request, self.output)
        return await terminal_result(self._execution)

    def _settle(self, error: BaseException | None) -> None:
        self.output.finish(error)
        self.stdin.mark_closed("the command has ended")

    async def _resize(self, width: int, height: int) -> None:
        if not self.done():
            await self._executing().resize(width, height)
