"""The commands of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.values.parameters import suggests

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Literal

    from aviato.api.process import Process
    from aviato.api.terminal import TerminalSession
    from aviato.bridge.operation import OperationRef
    from aviato.bridge.stream import StreamReader
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.lifecycle import SandboxHandle
    from aviato.results import GradeResult, Snapshot


class SandboxCommands:
    """Running commands in a sandbox, and reading them."""

    _state: SandboxState

    if TYPE_CHECKING:

        def _state_in_use(self) -> SandboxState: ...

    @suggests
    def exec(
        self,
        command: Sequence[str | os.PathLike[str]],
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
            command: program and arguments, as a list of strings or paths.
            cwd: absolute; where it runs.
            env: variables of this command, beside the sandbox's.
            user: who it is: a name or number of the sandbox's `/etc/passwd`, or two with a colon, the second of a group
                (`"bob"`, `1000`, `"bob:staff"`); None is the image's user, or root. Where the server can give no other ids,
                only `"root"` and 0 can be had (`aviato doctor` says what it takes).
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
        from aviato.api.process import Process
        from aviato.calls.exec_call import DEFAULT_MAX_OUTPUT_BYTES, exec_request, output_limit

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
        most = DEFAULT_MAX_OUTPUT_BYTES if max_output_bytes is None else output_limit(max_output_bytes)
        return Process(self._state, request, given=given, writer=stdin is True, check=check, max_bytes=most)

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
        from aviato.api.process import Process
        from aviato.calls.exec_call import attach_request

        request, offsets = attach_request(exec_id, stdout_offset, stderr_offset)
        return Process(self._state, request, attach=offsets)

    @suggests
    def shell(
        self,
        command: Sequence[str | os.PathLike[str]] = ("/bin/bash",),
        width: int = 80,
        height: int = 24,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
    ) -> TerminalSession:
        """Run a command on a terminal of its own: job control, signals by key, programs that draw. It has no time limit.

        Args:
            command: program and arguments, as a list of strings.
            width: of the terminal, in characters.
            height: of the terminal, in lines.
            cwd: absolute; where it runs.
            env: variables of this command, beside the sandbox's; `TERM` is `xterm-256color` unless one of them says otherwise.
            user: as of `exec`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant; nothing was started.
        """
        from aviato.api.terminal import TerminalSession
        from aviato.calls.terminal_call import terminal_request

        request = terminal_request(command, width, height, cwd=cwd, env=env, user=user)
        return TerminalSession(self._state, request)

    @suggests
    def grade(
        self,
        files: Mapping[str, bytes],
        command: Sequence[str | os.PathLike[str]],
        *,
        result_paths: Sequence[str] = (),
        result_changes: str | None = None,
        base_commit: str | None = None,
        base_files: Mapping[str, bytes] | None = None,
        base_snapshot: str | Snapshot | None = None,
        mode: Literal["separate", "in_process"] = "separate",
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        allow_startup_files: bool = False,
    ) -> OperationRef[GradeResult]:
        """Grade what this sandbox holds, in new sandboxes of the same image that the policy never was in.

        Of a child of a fork that is what the fork was made of: fork before the policy comes, or name a `base_snapshot`.

        All commands of this sandbox but the main one are killed first, with what they left behind. Then the results are copied
        out, and the grader's command runs beside the grader's files. A command of the form `pytest …`, `python -m pytest …` or
        `python -m unittest …` has a case for each test.

        Args:
            files: of the grader, path → content: this sandbox never sees them.
            command: of the grader, as a list of strings.
            result_paths: regular files to copy, up to 256 MiB and 10,000 together: paths, patterns (`src/**/*.py`, where `*`,
                `?` and `**` match hidden names too), and directories (`src/`, all that is in them). The paths mean the same
                in the new sandboxes. Links are not followed, and refused where they are named or found.
            result_changes: a directory, as a rule a repository, of which all is copied that the policy changed, added or
                deleted; what it was before is what a new sandbox of the image has there. `.git` is not part of it.
            base_commit: of that repository: git checks it out in the new sandboxes, and what it ignores is no change. The image
                has git, and the repository unless `base_files` does. None is the directory as the image has it.
            base_files: path → content that you had put into this sandbox beside its image, before the policy came.
            base_snapshot: what the new sandboxes begin with, taken before the policy came: an id, a name or what `snapshot()`
                gave. None is what this sandbox began with, or was reset to.
            mode: `"separate"`: the policy's code stays in a sandbox of its own. What the grader imports from `.py` files
                are names whose calls run there; arguments and values cross as data (None, bool, numbers, str, bytes, list,
                tuple, set, frozenset, dict). Results that are data lie in the grader's sandbox, and cannot be executed.
                `from aviato_solution import run` gives it `run(command, stdin="", timeout_seconds=None)`, which runs a program
                beside the results: `(returncode, stdout, stderr)`. The policy passes only with right answers.
                `"in_process"`: all lies in one sandbox, and the tests share their process with the policy's code; an early
                end, a missing record or fewer tests is a failure, and no more is promised.
            timeout_seconds: of the command; None is `exec_timeout_seconds` of this sandbox.
            env: variables of the command. Of this sandbox's own, `PATH`, `PYTHON*` and `LD_*` are not taken over.
            max_output_bytes: how much of each output stream is kept; at most 2 MiB where tests are told apart.
            allow_startup_files: take results that a grader's tools load by themselves: `conftest.py`, `sitecustomize.py`,
                `*.pth`, `pytest.ini`, `pyproject.toml`, names of the standard library and the like. Otherwise such a path is
                refused, and what a pattern, a directory or `result_changes` finds of them stays as it was and is listed in
                `left_out`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant, or a grader that mode `separate` cannot judge,
                with the reason; nothing was started.

        Raises (from the handle):
            SandboxFileError: a result is missing, too large, a link or a directory; a matter of the task.
            AviatoValidationError: mode `separate` cannot judge what the patterns or changes turned out to be.
            SandboxExecutionError: the grader cannot run, whatever the policy made: `reason` is `grader_failed`, infrastructure.
            AviatoError: the infrastructure failed, as `is_infrastructure` says: no verdict.
        """
        from aviato.grading.arguments import grade_request
        from aviato.grading.run import grade

        config = self._state.config
        request = grade_request(
            files,
            command,
            result_paths,
            mode,
            timeout_seconds,
            env,
            max_output_bytes,
            allow_startup_files,
            config.exec_timeout_seconds,
            result_changes,
            base_commit,
            base_files,
            base_snapshot,
        )

        async def work(handle: SandboxHandle) -> GradeResult:
            await handle.start()  # What its image is may be known only then.
            return await grade(handle, handle.create_fields or config.create, request)

        return self._state_in_use().begin(work, f"grade {self._state.sandbox_id}")

    def stream_logs(self, *, follow: bool = False, tail_lines: int | None = None) -> StreamReader[str]:
        """Output of the main command, up to its last 16 MiB; with `follow` until it ends."""
        from aviato.calls.transfer import LazyStream

        if tail_lines is not None and (isinstance(tail_lines, bool) or not isinstance(tail_lines, int) or tail_lines < 0):
            raise AviatoValidationError(f"tail_lines must be 0 or more, got {tail_lines!r}")
        return LazyStream(self._state_in_use(), "logs", _logs(follow, tail_lines), text=True)


def _logs(follow: bool, tail_lines: int | None) -> Callable[[SandboxHandle], AsyncIterator[bytes]]:
    def fetch(handle: SandboxHandle) -> AsyncIterator[bytes]:
        from aviato.core import files

        return files.logs(handle, follow=follow, tail_lines=tail_lines)

    return fetch
