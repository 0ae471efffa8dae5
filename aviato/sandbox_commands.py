"""The commands of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from aviato.bridge.stream import StreamReader
    from aviato.core.lifecycle import SandboxHandle
    from aviato.process import Process
    from aviato.sandbox_state import SandboxState
    from aviato.terminal import TerminalSession


class SandboxCommands:
    """Running commands in a sandbox, and reading them."""

    _state: SandboxState

    if TYPE_CHECKING:

        def _state_in_use(self) -> SandboxState: ...

    def exec(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        stdin: bool | bytes | str = False,
        check: bool = False,
        timeout_seconds: float | None = None,
        max_output_bytes: int | None = None,
        detach: bool = False,
    ) -> Process:
        """Run a command; the first one starts the sandbox.

        Args:
            command: program and arguments, as a list of strings.
            cwd: absolute; where it runs.
            env: variables of this command, beside the sandbox's.
            user: None, `"root"` or 0.
            stdin: `True` for a writer, bytes or text to be sent whole, `False` for /dev/null.
            check: raise `SandboxExecutionError` from the result if the returncode is not 0.
            timeout_seconds: kills the whole process tree after so long, counted from its start; None is
                `exec_timeout_seconds` of the sandbox, or no limit with `detach`; `math.inf` is no limit.
            max_output_bytes: how much of each stream the result keeps (16 MiB), half head and half tail.
            detach: it lives on when the caller lets go of it, as long as its sandbox does, and has no time limit unless one is
                given. It waits for no reader: the server keeps the last 16 MiB of each stream, and its result until the
                sandbox ends (of the newest 1,000, with up to 256 MiB of output). `attach` reads it from any process.
                With `stdin=True` its input stays open when the caller goes.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant; nothing was started.
        """
        from aviato.process import Process, exec_request, output_limit

        request, given = exec_request(
            command,
            default_timeout_seconds=self._state.config.exec_timeout_seconds,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            detach=detach,
        )
        most = output_limit(max_output_bytes)
        return Process(self._state_in_use(), request, given=given, writer=stdin is True, check=check, max_bytes=most)

    def attach(self, exec_id: str, stdout_offset: int = 0, stderr_offset: int = 0) -> Process:
        """Read a command that was begun elsewhere, from these offsets to its end.

        Any number of processes can read a command begun with `detach=True` at once, also after its end. Any other command has
        one reader, the newest: whoever read it before gets `SandboxUnavailableError` (reason `replaced`). Its result is there
        until somebody has fetched it.

        What the result collects begins at the offsets; `stdout_bytes_total` counts all that the command wrote. A character cut
        in two by an offset is replaced. There is no `stdin`, and the command is counted in no metrics here.

        Args:
            exec_id: `Process.exec_id` of the command.
            stdout_offset: bytes of standard output to leave out.
            stderr_offset: bytes of standard error to leave out.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant.

        Raises (from the handle, and at the end of the streams):
            SandboxExecutionError: reason `exec_not_found`, there is no such command; or `output_gap`, bytes that were asked for
                are gone: so much came after them (`is_infrastructure` False), or the server's disk did not take them (True).
                The message names them and the offset to go on from.
        """
        from aviato.process import Process, attach_request

        request, offsets = attach_request(exec_id, stdout_offset, stderr_offset)
        return Process(self._state_in_use(), request, attach=offsets)

    def shell(
        self,
        command: Sequence[str] = ("/bin/bash",),
        width: int = 80,
        height: int = 24,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> TerminalSession:
        """Run a command on a terminal of its own: job control, signals by key, programs that draw. It has no time limit.

        Args:
            command: program and arguments, as a list of strings.
            width: of the terminal, in characters.
            height: of the terminal, in lines.
            cwd: absolute; where it runs.
            env: variables of this command, beside the sandbox's; `TERM` is `xterm-256color` unless one of them says otherwise.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant; nothing was started.
        """
        from aviato.terminal import TerminalSession, terminal_request

        request = terminal_request(command, width, height, cwd=cwd, env=env)
        return TerminalSession(self._state_in_use(), request)

    def stream_logs(self, *, follow: bool = False, tail_lines: int | None = None) -> StreamReader[str]:
        """Output of the main command, up to its last 16 MiB; with `follow` until it ends."""
        from aviato.transfer import LazyStream

        if tail_lines is not None and (isinstance(tail_lines, bool) or not isinstance(tail_lines, int) or tail_lines < 0):
            raise AviatoValidationError(f"tail_lines must be 0 or more, got {tail_lines!r}")
        return LazyStream(self._state_in_use(), "logs", _logs(follow, tail_lines), text=True)


def _logs(follow: bool, tail_lines: int | None) -> Callable[[SandboxHandle], AsyncIterator[bytes]]:
    def fetch(handle: SandboxHandle) -> AsyncIterator[bytes]:
        from aviato.core import files

        return files.logs(handle, follow=follow, tail_lines=tail_lines)

    return fetch
