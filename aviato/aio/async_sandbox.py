"""AsyncSandbox: a sandbox of an `AsyncClient`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from aviato import defaults as checks
from aviato.aio.async_process import AsyncProcess
from aviato.aio.async_terminal import AsyncTerminal
from aviato.calls import forking
from aviato.calls.exec_call import (
    ExecOptions,
    attach_request,
    exec_request,
    output_limit,
)
from aviato.calls.file_arguments import file_content, file_mode, file_path, link_choice, local_path
from aviato.calls.pending import wait_running
from aviato.calls.terminal_call import terminal_request
from aviato.values.parameters import Suggesting, check_names, suggests
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Literal, Unpack

    from aviato.calls.forking import ForkOptions
    from aviato.core.lifecycle import SandboxHandle
    from aviato.options import SandboxStatus
    from aviato.progress import Told
    from aviato.results import FileInfo, GradeResult, ProcessResult, Snapshot
    from aviato.wire.sandboxes import SandboxInfo


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

    async def wait(self, timeout: float | None = None) -> None:
        """Return once it runs or has ended; after `timeout` seconds fail as `Sandbox.wait` does, while the start goes on."""
        await wait_running(self._handle, timeout)

    async def wait_until_complete(self) -> int | None:
        """Return the main command's returncode once the sandbox has ended, however it did."""
        return (await self._handle.wait_ended()).returncode

    async def get_status(self) -> SandboxStatus:
        """Ask the server."""
        return await self._handle.ask_status()

    async def stop(
        self, graceful_shutdown_seconds: float = 10.0, *, missing_ok: bool = False, snapshot_on_stop: bool = False
    ) -> Snapshot | None:
        """End it; with `snapshot_on_stop` make a snapshot first, and return that."""
        taken = await self.snapshot() if snapshot_on_stop else None
        await self._handle.stop(graceful_shutdown_seconds, missing_ok=missing_ok)
        return taken

    async def snapshot(self, name: str | None = None, expires_after_seconds: float | None = None) -> Snapshot:
        """Make an image of what it has written."""
        from aviato.core import snapshots

        seconds = None if expires_after_seconds is None else checks.seconds("expires_after_seconds", expires_after_seconds)
        return await snapshots.take(self._handle, forking.name(name), seconds)

    async def reset(self, to: str | Snapshot | None = None) -> None:
        """Let it begin anew, as just after its start or as a snapshot has it; returns when it runs again."""
        from aviato.core import resets

        await resets.reset(self._handle, forking.snapshot_meant(to, "to"))

    async def fork(self, n: int = 1, **overrides: Unpack[ForkOptions]) -> list[AsyncSandbox]:
        """Sandboxes that begin with what this one has written; each was asked for when this returns, and fails by itself."""
        from aviato.core.lifecycle import SandboxHandle
        from aviato.core.snapshots import Fork

        own = self._handle
        fork = Fork(lambda: own, forking.count(n))
        create = forking.fields(own.create_fields, fork.image, overrides)
        handles = [SandboxHandle(new_sandbox_id(), own.client, own.lease, dict(create), beginning=fork) for _ in range(n)]
        try:
            await fork.taken()
            await asyncio.gather(*(handle.start() for handle in handles), return_exceptions=True)
        except BaseException:
            for handle in handles:
                handle.give_up()
            raise
        return [AsyncSandbox(handle, self._exec_timeout_seconds) for handle in handles]

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
        user: str | int | None = None,
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
        request, given = exec_request(command, default_timeout_seconds=self._exec_timeout_seconds, **options)
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
        user: str | int | None = None,
    ) -> AsyncTerminal:
        """Begin a command on a terminal of its own. The arguments mean what those of `Sandbox.shell` mean."""
        return AsyncTerminal(self._handle, terminal_request(command, width, height, cwd=cwd, env=env, user=user))

    async def grade(
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
            base_snapshot,
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


def _copies() -> Any:
    from aviato.core import transfer

    return transfer


def _files() -> Any:
    from aviato.core import files

    return files
