"""Files of a sandbox: contents as octets, the rest as JSON.

Each call waits until the sandbox runs before it is sent: time in a queue is no silence of the server's.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aviato.core.client import decode
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError, SandboxUnavailableError
from aviato.results import FileInfo
from aviato.wire.files import ARCHIVE, FILE_MODE_HEADER, FileList, FileStat

MAX_PATH_BYTES = 4095

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.http import Response

READ_FILE_BYTES = 256 << 20
"""What `read_file` takes into memory; more has to be streamed."""

_OCTETS = "application/octet-stream"


async def read_file(handle: SandboxHandle, path: str) -> bytes:
    """A whole file.

    Raises:
        SandboxFileError: it cannot be read, or is too large for memory.
    """

    async def attempt() -> bytes:
        response = await handle.client.transport.open("GET", _url(handle, "", path=path))
        try:
            if response.length is not None and response.length > READ_FILE_BYTES:
                raise _too_large(handle, path)
            if response.length is not None:
                return await response.read()
            # Its value is not copied out of it, and new memory is what reading a large file costs most.
            content = io.BytesIO()
            async for chunk in response.chunks():
                content.write(chunk)
                if content.tell() > READ_FILE_BYTES:
                    raise _too_large(handle, path)
            return content.getvalue()
        finally:
            if not response.finished:
                response.close()

    await handle.wait_running()
    return await handle.client.repeat(attempt, f"read {path!r}")


async def read_chunks(handle: SandboxHandle, path: str, on_mode: Callable[[int], None] | None = None) -> AsyncIterator[bytes]:
    """A file as it arrives. Only its beginning is repeated: bytes that were handed out cannot be taken back.

    `on_mode` is told the file's permission bits before the first of them.
    """

    def look(response: Response) -> None:
        if on_mode is not None:
            on_mode(int(response.headers.get(FILE_MODE_HEADER, "644"), 8) & 0o777)

    await handle.wait_running()
    async for chunk in _stream(handle, _url(handle, "", path=path), f"read {path!r}", look=look):
        yield chunk


async def read_tree(handle: SandboxHandle, path: str) -> AsyncIterator[bytes]:
    """The archive of a directory as it arrives."""
    await handle.wait_running()
    async for chunk in _stream(handle, _url(handle, "/tree", path=path), f"read {path!r}"):
        yield chunk


async def logs(handle: SandboxHandle, *, follow: bool, tail_lines: int | None) -> AsyncIterator[bytes]:
    """Output of the main command."""
    await handle.start()
    query: dict[str, Any] = {"follow": int(follow)}
    if tail_lines is not None:
        query["tail_lines"] = tail_lines
    async for chunk in _stream(handle, f"{handle.path}/logs?{urlencode(query)}", "logs", endless=follow):
        yield chunk


async def write_file(handle: SandboxHandle, path: str, *content: bytes, mode: int | None) -> None:
    """Replace a file, atomically, by one or more pieces."""

    async def attempt() -> None:
        response = await handle.client.transport.open(
            "PUT",
            _url(handle, "", path=path, mode=mode),
            _pieces(content),
            content_type=_OCTETS,
            length=sum(map(len, content)),
        )
        await response.read()

    await handle.wait_running()
    await handle.client.repeat(attempt, f"write {path!r}")


async def write_chunks(
    handle: SandboxHandle, path: str, chunks: AsyncIterable[bytes], *, mode: int | None, length: int | None = None
) -> None:
    """Replace a file by what a source yields; not repeated, since the source cannot be read twice."""
    await _send(handle, _url(handle, "", path=path, mode=mode), chunks, _OCTETS, length)


async def write_tree(handle: SandboxHandle, path: str, archive: AsyncIterable[bytes]) -> None:
    """Put a directory there, or merge it into the one that is there."""
    await _send(handle, _url(handle, "/tree", path=path), archive, ARCHIVE, None)


async def _send(handle: SandboxHandle, url: str, chunks: AsyncIterable[bytes], content_type: str, length: int | None) -> None:
    failed: list[BaseException] = []

    async def watched() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        except Exception as error:
            failed.append(error)
            raise

    await handle.wait_running()
    try:
        response = await handle.client.transport.open("PUT", url, watched(), content_type=content_type, length=length)
    except AviatoError:
        if failed:
            raise failed[0] from None
        raise
    await response.read()


async def stat(handle: SandboxHandle, path: str) -> FileInfo:
    """What is known of a file."""
    await handle.wait_running()
    body = await handle.client.call(f"stat {path!r}", "GET", _url(handle, "/stat", path=path))
    return _info(decode(FileStat, body))


async def list_files(handle: SandboxHandle, path: str) -> list[FileInfo]:
    """The entries of a directory, by name."""
    await handle.wait_running()
    body = await handle.client.call(f"list {path!r}", "GET", _url(handle, "/list", path=path))
    return [_info(item) for item in decode(FileList, body).files]


async def make_directory(handle: SandboxHandle, path: str) -> None:
    """Make a directory and those above it."""
    await handle.wait_running()
    await handle.client.call(f"make directory {path!r}", "POST", _url(handle, "/directory", path=path))


async def remove(handle: SandboxHandle, path: str, *, recursive: bool) -> None:
    """Remove a file, or a directory."""
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        try:
            await handle.client.transport.request("DELETE", _url(handle, "", path=path, recursive=int(recursive)))
        except SandboxFileError as error:
            # An earlier attempt of this very call, whose answer was lost, may have done the work.
            if attempts == 1 or error.reason != "no_such_file":
                raise

    await handle.wait_running()
    await handle.client.repeat(attempt, f"remove {path!r}")


async def _stream(
    handle: SandboxHandle,
    url: str,
    operation: str,
    *,
    endless: bool = False,
    look: Callable[[Response], None] = lambda _: None,
) -> AsyncIterator[bytes]:
    transport = handle.client.transport
    silence = float("inf") if endless else None
    response = await handle.client.repeat(lambda: transport.open("GET", url, silence_seconds=silence), operation)
    try:
        look(response)
        async for chunk in response.chunks():
            yield chunk
    except SandboxUnavailableError:
        # A sandbox that ends cuts its streams: any call says how it ended. Where that says nothing, the server is to blame.
        await transport.request("GET", _url(handle, "/stat", path="/"))
        raise
    finally:
        if not response.finished:
            response.close()


async def _pieces(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


def _url(handle: SandboxHandle, kind: str, *, path: str, mode: int | None = None, recursive: int | None = None) -> str:
    _check(handle, path)
    query: dict[str, Any] = {"path": path}
    if mode is not None:
        query["mode"] = f"{mode:o}"
    if recursive is not None:
        query["recursive"] = recursive
    return f"{handle.path}/files{kind}?{urlencode(query)}"


def _check(handle: SandboxHandle, path: str) -> None:
    """Refuse what can be no path here: a longer request than servers read would look like the server's failure."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        message = f"path {path[:60]!r} holds text that is not Unicode"
        raise AviatoValidationError(message, field_violations={"path": "not Unicode"}) from None
    if size > MAX_PATH_BYTES:
        message = f"path {path[:60] + '…'!r} has {size} bytes; the kernel takes at most {MAX_PATH_BYTES}"
        raise SandboxFileError(message, filepath=path, sandbox_id=handle.sandbox_id)


def _info(item: FileStat) -> FileInfo:
    return FileInfo(**item.model_dump())


def _too_large(handle: SandboxHandle, path: str) -> SandboxFileError:
    return SandboxFileError(
        f"{path!r} is larger than {READ_FILE_BYTES >> 20} MiB; read it with read_file_streaming() or download()",
        filepath=path,
        sandbox_id=handle.sandbox_id,
        reason="too_large",
    )
