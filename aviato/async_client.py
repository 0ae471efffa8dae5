"""AsyncClient: sandboxes as plain coroutines on the caller's own loop, without a thread.

::

    async with AsyncClient() as client:
        sandbox = await client.sandbox(tags=["rollout"])
        result = await sandbox.exec(["python", "-c", "print(6 * 7)"])

        process = sandbox.spawn(["make", "test"])
        async for text in process.stdout:
            print(text, end="")
        result = await process

Calls are retried by the same policy as everywhere; no metrics are counted. A client and what it makes belong to the loop that
entered it. Leaving the `async with` ends its sandboxes, except the detached ones.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from aviato import defaults as checks
from aviato import sandbox_config
from aviato.exceptions import AviatoError, AviatoValidationError, OperationCancelledError, SandboxNotFoundError
from aviato.file_arguments import file_content, file_mode, file_path, link_choice, local_path
from aviato.log import logger
from aviato.parameters import Suggesting, check_names, suggests
from aviato.policy.retry import RetryPolicy
from aviato.process import ExecOptions, attach_request, exec_request, failure, feed, output_limit, process_result, streams
from aviato.representation import beginning, cut
from aviato.sandbox_state import begin, connect
from aviato.terminal import AsyncTerminal, terminal_request
from aviato.wire.ids import SANDBOX_ID, new_sandbox_id

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterable, AsyncIterator, Generator, Mapping, Sequence
    from types import TracebackType
    from typing import Literal, Unpack

    from aviato.core.execution import Execution
    from aviato.core.lease import Lease
    from aviato.core.lifecycle import SandboxHandle
    from aviato.defaults import SandboxDefaults
    from aviato.options import SandboxStatus
    from aviato.progress import Told
    from aviato.results import FileInfo, GradeResult, ProcessResult
    from aviato.sandbox_config import Connection, SandboxOptions
    from aviato.wire.sandboxes import SandboxInfo

LEAVE_SECONDS = 5.0
LEAVE_AGAIN_SECONDS = 1.0


class AsyncClient:
    """Makes and finds sandboxes on one server. Enter it with `async with`.

    Args:
        base_url: the server; None is that of the defaults, `AVIATO_BASE_URL`, or the embedded one.
        defaults: of its sandboxes.
    """

    @suggests
    def __init__(self, *, base_url: str | None = None, defaults: SandboxDefaults | None = None) -> None:
        self._connection: Connection = sandbox_config.connection(defaults, base_url)
        self._defaults = defaults
        self._here: Lease | None = None

    async def __aenter__(self) -> Self:
        from aviato.core.lease import Lease

        self._here = Lease(self._connection.base_url, RetryPolicy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here, self._here = self._lease(), None
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await here.end(again=True)  # The lease may be this process, which lives on.
        except BaseException as failed:
            begin(_leave_later(self._connection, here.lease_id), "end the sandboxes of a client")
            if not isinstance(failed, (AviatoError, TimeoutError)) or (error is None and isinstance(failed, AviatoError)):
                raise
            why = str(failed) or f"no answer within {LEAVE_SECONDS:g} s"
            logger.warning("the end of the client's sandboxes is asked for on, from the background: %s", why)

    async def sandbox(self, **options: Unpack[SandboxOptions]) -> AsyncSandbox:
        """Make a sandbox; it has been accepted by the server when this returns.

        Args:
            options: as the constructor of `Sandbox`.
        """
        options["defaults"] = options.get("defaults") or self._defaults
        options["base_url"] = options.get("base_url") or self._connection.base_url
        if options["base_url"] != self._connection.base_url:
            raise AviatoValidationError("an AsyncClient speaks to one server; make another one for another base_url")
        config = sandbox_config.config(options)
        made = AsyncSandbox(self._handle(new_sandbox_id(), config.connection, config.create), config.exec_timeout_seconds)
        await made.start()
        return made

    async def from_id(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox that exists; it is used, not owned.

        Raises:
            SandboxNotFoundError: the server does not know it.
        """
        if SANDBOX_ID.fullmatch(sandbox_id) is None:
            raise SandboxNotFoundError(f"{sandbox_id!r} is not the id of a sandbox", sandbox_id=sandbox_id)
        found = self._found(sandbox_id)
        await found.get_status()
        return found

    async def list(
        self, *, tags: Sequence[str] = (), status: Sequence[SandboxStatus | str] = (), include_stopped: bool = False
    ) -> list[AsyncSandbox]:
        """All sandboxes that match, oldest first; a terminal status implies `include_stopped`."""
        wanted = sandbox_config.statuses(status)
        client = self._client(self._connection)
        infos = await client.list_sandboxes(
            tags=checks.tags(tags),
            status=wanted,
            include_stopped=include_stopped or any(item.is_terminal for item in wanted),
        )
        return [self._found(info.sandbox_id, info) for info in infos]

    def __repr__(self) -> str:
        state = "not entered" if self._here is None else "open"
        return cut(f"<AsyncClient of {self._connection.server}: {state}>")

    def _found(self, sandbox_id: str, info: SandboxInfo | None = None) -> AsyncSandbox:
        handle = self._handle(sandbox_id, self._connection, None)
        handle.info = info
        return AsyncSandbox(handle, (self._defaults or sandbox_config.BUILT_IN).exec_timeout_seconds)

    def _handle(self, sandbox_id: str, connection: Connection, create: dict[str, Any] | None) -> SandboxHandle:
        from aviato.core.lifecycle import SandboxHandle

        return SandboxHandle(sandbox_id, self._client(connection), self._lease(), create)

    def _client(self, connection: Connection) -> Any:
        return self._lease().client(connection.request_timeout_seconds, connection.reconnect_timeout_seconds)

    def _lease(self) -> Lease:
        if self._here is None:
            raise AviatoValidationError("use an AsyncClient inside its `async with`")
        return self._here


async def _leave_later(connection: Connection, lease_id: str) -> None:
    """End a lease whose server was away. It is held by this process, which may live for days."""
    client, _ = connect(connection)
    while True:
        try:
            await client.end_lease(lease_id, again=True)
        except AviatoError as error:
            logger.debug("a lease could not be ended: %s", error)
            if not error.is_infrastructure:
                return
        else:
            return
        await asyncio.sleep(LEAVE_AGAIN_SECONDS)


class AsyncSandbox(Suggesting):
    """A sandbox of an `AsyncClient`. The methods mean what those of `Sandbox` mean."""

    def __init__(self, handle: SandboxHandle, exec_timeout_seconds: float) -> None:
        self._handle = handle
        self._exec_timeout_seconds = exec_timeout_seconds

    @property
    def sandbox_id(self) -> str:
        """Made by the client."""
        return self._handle.sandbox_id

    @property
    def info(self) -> SandboxInfo | None:
        """All that the server said last."""
        return self._handle.info

    async def start(self) -> None:
        """Return once the server has accepted it."""
        await self._handle.start()

    async def wait(self) -> None:
        """Return once it runs or has ended."""
        await self._handle.wait_running()

    async def wait_until_complete(self) -> int | None:
        """Return the main command's returncode once the sandbox has ended, however it did."""
        return (await self._handle.wait_ended()).returncode

    async def get_status(self) -> SandboxStatus:
        """Ask the server."""
        return (await self._handle.refresh()).status

    async def stop(self, graceful_shutdown_seconds: float = 10.0, *, missing_ok: bool = False) -> None:
        """End it."""
        await self._handle.stop(graceful_shutdown_seconds, missing_ok=missing_ok)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(missing_ok=True)

    async def wait_for_port(self, port: int, timeout_seconds: float = 30.0) -> str:
        """The URL of an exposed port, once something inside listens on it; `info.service_urls` has them all."""
        from aviato.core.ports import wait_for_port

        return await wait_for_port(self._handle, checks.port("port", port), checks.seconds("timeout_seconds", timeout_seconds))

    async def exec(self, command: Sequence[str | os.PathLike[str]], **options: Unpack[ExecOptions]) -> ProcessResult:
        """Run a command and return its result; cancelling kills its process tree. Options as `spawn`."""
        return await self._process(command, **options)._run()

    @suggests
    def spawn(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bool | bytes | str = False,
        check: bool = False,
        timeout_seconds: float | None = None,
        max_output_bytes: int | None = None,
        detach: bool = False,
        text: bool = True,
    ) -> AsyncProcess:
        """Begin a command. The arguments mean what those of `Sandbox.exec` mean; `text=False` makes its streams yield bytes."""
        arguments: Any = dict(locals())
        del arguments["self"]
        process = self._process(**arguments)
        process._begin()
        return process

    def _process(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        check: bool = False,
        max_output_bytes: int | None = None,
        text: bool = True,
        **options: Any,
    ) -> AsyncProcess:
        """A command that has not begun; the arguments as those of `spawn`."""
        check_names("exec()", options, (*ExecOptions.__optional_keys__, "command"))
        request, given = exec_request(command, default_timeout_seconds=self._exec_timeout_seconds, user=None, **options)
        return AsyncProcess(self._handle, request, given, check=check, max_bytes=output_limit(max_output_bytes), text=text)

    def attach(
        self,
        exec_id: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        max_output_bytes: int | None = None,
        text: bool = True,
    ) -> AsyncProcess:
        """Read a command that was begun elsewhere, from these offsets to its end; as `Sandbox.attach`."""
        request, offsets = attach_request(exec_id, stdout_offset, stderr_offset)
        most = output_limit(max_output_bytes)
        process = AsyncProcess(self._handle, request, None, check=False, max_bytes=most, text=text, attach=offsets)
        process._begin()
        return process

    @suggests
    def shell(
        self,
        command: Sequence[str | os.PathLike[str]] = ("/bin/bash",),
        width: int = 80,
        height: int = 24,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> AsyncTerminal:
        """Begin a command on a terminal of its own. The arguments mean what those of `Sandbox.shell` mean."""
        return AsyncTerminal(self._handle, terminal_request(command, width, height, cwd=cwd, env=env))

    async def grade(
        self,
        files: Mapping[str, bytes],
        command: Sequence[str | os.PathLike[str]],
        *,
        result_paths: Sequence[str] = (),
        result_changes: str | None = None,
        base_commit: str | None = None,
        base_files: Mapping[str, bytes] | None = None,
        mode: Literal["separate", "in_process"] = "separate",
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int | None = None,
        allow_startup_files: bool = False,
    ) -> GradeResult:
        """Grade what this sandbox holds, in new sandboxes of the same image; the arguments as those of `Sandbox.grade`."""
        from aviato.grading.arguments import grade_request
        from aviato.grading.run import grade

        request = grade_request(
            files,
            command,
            result_paths,
            mode,
            timeout_seconds,
            env,
            max_output_bytes,
            allow_startup_files,
            self._exec_timeout_seconds,
            result_changes,
            base_commit,
            base_files,
        )
        return await grade(self._handle, self._handle.create_fields, request)

    async def read_file(self, path: str) -> bytes:
        """A whole file of up to 256 MiB."""
        return await _files().read_file(self._handle, file_path(path))  # type: ignore[no-any-return]

    def read_file_streaming(self, path: str) -> AsyncIterator[bytes]:
        """A file of any size, in chunks."""
        return _files().read_chunks(self._handle, file_path(path))  # type: ignore[no-any-return]

    async def write_file(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Replace a file, atomically."""
        await _files().write_file(self._handle, file_path(path), file_content(content), mode=file_mode(mode))

    async def write_file_streaming(self, path: str, source: AsyncIterable[bytes], *, mode: int | None = None) -> None:
        """Replace a file by what a source yields."""
        await _files().write_chunks(self._handle, file_path(path), source, mode=file_mode(mode))

    async def upload(self, local: str | os.PathLike[str], remote: str, *, progress: Told = None) -> None:
        """Copy a local file or directory tree in; the disk is read in a worker thread of the loop."""
        checks.progress(progress)
        await _copies().upload(self._handle, local_path(local), file_path(remote), progress=progress)

    async def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        outside_links: Literal["refuse", "skip"] = "refuse",
        progress: Told = None,
    ) -> None:
        """Copy a file or directory tree out; the disk is written in a worker thread of the loop."""
        checks.progress(progress)
        path, links = local_path(local), link_choice(outside_links)
        await _copies().download(self._handle, file_path(remote), path, outside_links=links, progress=progress)

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        """The entries of a directory, by name."""
        return await _files().list_files(self._handle, file_path(path))  # type: ignore[no-any-return]

    async def stat(self, path: str) -> FileInfo:
        """What is known of a file."""
        return await _files().stat(self._handle, file_path(path))  # type: ignore[no-any-return]

    async def make_directory(self, path: str) -> None:
        """Make a directory, and those above it."""
        await _files().make_directory(self._handle, file_path(path))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory and all in it."""
        await _files().remove(self._handle, file_path(path), recursive=recursive)

    def stream_logs(self, *, follow: bool = False, tail_lines: int | None = None) -> AsyncIterator[bytes]:
        """Output of the main command."""
        return _files().logs(self._handle, follow=follow, tail_lines=tail_lines)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        info = self._handle.info
        return f"<AsyncSandbox {self.sandbox_id}{'' if info is None else f' {info.status}'}>"


class AsyncProcess(Suggesting):
    """A command under way: `await` it for its result, iterate `stdout` and `stderr` with `async for`.

    A cancelled `await` kills the command, but lets go of one begun with `detach=True` or attached to.
    """

    def __init__(
        self,
        handle: SandboxHandle,
        request: dict[str, Any],
        given: bytes | None,
        *,
        check: bool,
        max_bytes: int,
        text: bool,
        attach: tuple[int, int] | None = None,
    ) -> None:
        from aviato.core.execution import Execution

        self.exec_id: str = request["exec_id"]
        self.stdout, self.stderr = streams(text=text, max_bytes=max_bytes, offsets=attach or (0, 0), of=self.exec_id)
        self._command: tuple[str, ...] = tuple(request["command"])
        self._sandbox_id = handle.sandbox_id
        self._handle = handle
        self._request = request
        self._given = given
        self._check = check
        self._sent = 0
        self._execution: Execution = Execution(handle, request, self.stdout, self.stderr, attached=attach is not None)

    def _begin(self) -> None:
        """Run it in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._finish)

    def __await__(self) -> Generator[Any, None, ProcessResult]:
        self.stdout.detach_own()
        self.stderr.detach_own()
        return self._task.__await__()

    @property
    def command(self) -> tuple[str, ...]:
        """As given; of one that is attached to, as the server tells it, and empty before that."""
        return self._execution.command or self._command

    async def started(self) -> bool:
        """Wait until it runs; False if it came to an end without."""
        return await self._execution.is_running()

    def done(self) -> bool:
        """Whether it has ended, its clean-up included."""
        return self._task.done()

    def cancel(self) -> None:
        """Kill its process tree; `await` it to know that it is dead."""
        self._execution.outlives = False
        self._task.cancel()

    async def write_stdin(self, data: bytes) -> None:
        """Send input to a command begun with `stdin=True`; one write at a time."""
        await self._execution.write_stdin(data, self._sent)
        self._sent += len(data)

    async def close_stdin(self) -> None:
        """End its input."""
        await self._execution.end_stdin(self._sent)

    async def send_signal(self, signal: int) -> None:
        """Send a signal to its process group."""
        await self._execution.send_signal(signal)

    def __repr__(self) -> str:
        command = beginning(" ".join(self.command))
        return f"<AsyncProcess {self.exec_id} {command} in {self._sandbox_id}: {self._state_shown()}>"

    def _state_shown(self) -> str:
        if not self.done():
            return "running"
        if self._task.cancelled():
            return "cancelled"
        error = self._task.exception()
        return f"returncode {self._task.result().returncode}" if error is None else type(error).__name__

    async def _run(self) -> ProcessResult:
        """Run it in the task that calls: for one that nobody reads along."""
        given, self._given = self._given, None
        feeding = None if given is None else asyncio.get_running_loop().create_task(feed(self._execution, given))
        try:
            ended = await self._execution.run()
        finally:
            if feeding is not None:
                feeding.cancel()
        result = process_result(self.command, ended, self.stdout, self.stderr)
        error = failure(result, self._request, self._handle, check=self._check, cancelled=ended.cancelled)
        if error is not None:
            raise error
        return result

    def _finish(self, task: asyncio.Task[ProcessResult]) -> None:
        cancelled = OperationCancelledError(f"command {self.exec_id} was cancelled")
        error = cancelled if task.cancelled() else task.exception()
        self.stdout.finish(error)
        self.stderr.finish(error)


def _copies() -> Any:
    from aviato.core import transfer

    return transfer


def _files() -> Any:
    from aviato.core import files

    return files
