"""Files of a sandbox: contents as octets, the rest as JSON.

Each call waits until the sandbox runs before it is sent: time in a queue is no silence of the server's.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aviato.core import shared_memory
from aviato.core.client import decode, new_key
from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    SandboxFileError,
    SandboxRequestTimeoutError,
    SandboxUnavailableError,
)
from aviato.results import FileInfo
from aviato.wire.files import ARCHIVE, FILE_MODE_HEADER, FILE_VERSION_HEADER, LOG_OFFSET_HEADER, FileList, FileStat
from aviato.wire.shared_memory import BYTES_HEADER, LEAST_BYTES, MOST_BYTES, READY, SIZE_FIELD

MAX_PATH_BYTES = 4095

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sequence

    from aviato.core.lifecycle import SandboxHandle
    from aviato.transport.http import Response
    from aviato.transport.shared_memory import Memory

PART_BYTES = 4 << 20
"""Of a file that a source yields, so much is held to be sent again."""
READ_FILE_BYTES = 256 << 20
"""What `read_file` takes into memory; more has to be streamed."""

_OCTETS = "application/octet-stream"


async def read_file(handle: SandboxHandle, path: str) -> bytes:
    """A whole file.

    Raises:
        SandboxFileError: it cannot be read, or is too large for memory.
    """
    url = _url(handle, "", path=path)

    async def attempt(memory: Memory | None = None) -> bytes:
        response = await handle.client.transport.open("GET", url, memory=None if memory is None else memory.name)
        try:
            if memory is not None and (size := response.headers.get(BYTES_HEADER)) is not None:
                await response.read()
                return memory.get(int(size))
            if response.length is not None and response.length > READ_FILE_BYTES:
                raise _too_large(handle, path)
            # Its value is not copied out of it, and new memory is what reading a large file costs most.
            content = io.BytesIO()

            def take(data: bytes | memoryview) -> None:
                content.write(data)
                if content.tell() > READ_FILE_BYTES:
                    raise _too_large(handle, path)

            await response.pour(take)
            return content.getvalue()
        finally:
            if not response.finished:
                response.close()

    await handle.wait_running()
    if (content := await shared_memory.attempt(handle, attempt)) is None:
        content = await handle.client.repeat(attempt, f"read {path!r}")
    shared_memory.note(handle, len(content))
    return content


async def read_chunks(handle: SandboxHandle, path: str, on_mode: Callable[[int], None] | None = None) -> AsyncIterator[bytes]:
    """A file as it arrives. What was cut off goes on where it was, if the file is still the same.

    `on_mode` is told the file's permission bits before the first bytes.
    """
    version: str | None = None

    def look(response: Response) -> None:
        nonlocal version
        if on_mode is not None and version is None:
            on_mode(int(response.headers.get(FILE_MODE_HEADER, "644"), 8) & 0o777)
        version = response.headers.get(FILE_VERSION_HEADER)

    def rest(seen: int) -> str | None:
        return None if version is None else f"{url}&{urlencode({'offset': seen, 'version': version})}"

    await handle.wait_running()
    url = _url(handle, "", path=path)
    async for chunk in _stream(handle, url, f"read {path!r}", look=look, rest=rest):
        yield chunk


async def read_tree(handle: SandboxHandle, path: str, *, exact: bool = False) -> AsyncIterator[bytes]:
    """The archive of a directory as it arrives; of a directory or a file if it is to be exact."""
    await handle.wait_running()
    async for chunk in _stream(handle, _url(handle, "/tree", path=path, exact=exact), f"read {path!r}"):
        yield chunk


async def logs(handle: SandboxHandle, *, follow: bool, tail_lines: int | None) -> AsyncIterator[bytes]:
    """Output of the main command. What was cut off goes on where it was."""
    await handle.start()
    query: dict[str, Any] = {"follow": int(follow)}
    begin: int | None = None

    def look(response: Response) -> None:
        nonlocal begin
        if begin is None and (said := response.headers.get(LOG_OFFSET_HEADER)) is not None:
            begin = int(said)

    def rest(seen: int) -> str | None:
        return None if begin is None else f"{handle.path}/logs?{urlencode({**query, 'offset': begin + seen})}"

    tail = {} if tail_lines is None else {"tail_lines": tail_lines}
    url = f"{handle.path}/logs?{urlencode({**query, **tail})}"
    async for chunk in _stream(handle, url, "logs", endless=follow, look=look, rest=rest):
        yield chunk


async def write_file(handle: SandboxHandle, path: str, *content: bytes, mode: int | None) -> None:
    """Replace a file, atomically and once, by one or more pieces."""
    await handle.wait_running()
    url, key = _url(handle, "", path=path, mode=mode), new_key()
    size = sum(map(len, content))

    async def attempt(memory: Memory) -> bool:
        response = await handle.client.transport.open(
            "PUT",
            f"{url}&{SIZE_FIELD}={size}",
            READY,
            content_type=_OCTETS,
            key=key,
            memory=memory.name,
            meanwhile=lambda: memory.put(content),
        )
        await response.read()
        memory.used = True
        return True

    if not (LEAST_BYTES <= size <= MOST_BYTES and await shared_memory.attempt(handle, attempt)):
        await _put(handle, url, content, f"write {path!r}", key)
    shared_memory.note(handle, size)


async def _put(handle: SandboxHandle, url: str, content: Sequence[bytes], operation: str, key: str) -> None:
    async def attempt() -> None:
        response = await handle.client.transport.open("PUT", url, tuple(content), content_type=_OCTETS, key=key)
        await response.read()

    await handle.client.repeat(attempt, operation)


async def write_chunks(handle: SandboxHandle, path: str, chunks: AsyncIterable[bytes], *, mode: int | None) -> None:
    """Replace a file by what a source yields, in parts: the source cannot be read twice, and each part can be sent again."""
    await handle.wait_running()
    url, key, offset = _url(handle, "", path=path, mode=mode), new_key(), 0
    parts = gathered_chunks(chunks, PART_BYTES)
    part: list[bytes] = await anext(parts, [])
    while True:
        following = await anext(parts, None)
        size = sum(map(len, part))
        place = "" if following is None and not offset else f"&offset={offset}&last={int(following is None)}"
        try:
            await _put(handle, url + place, part, f"write {path!r}", key)
        except AviatoValidationError as error:
            if offset or "offset" not in error.field_violations:
                raise
            # A server or a sandbox of an earlier version takes no parts.
            await _send(handle, url, _chain([part, following or []], parts), _OCTETS, None)
            return
        if following is None:
            return
        part, offset = following, offset + size


async def gathered_chunks(chunks: AsyncIterable[bytes], size_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """The same bytes, so many at a time, or what is left."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= size_bytes:
            yield held
            held, size = [], 0
    if held:
        yield held


async def _chain(first: Iterable[Iterable[bytes]], rest: AsyncIterable[Iterable[bytes]]) -> AsyncIterator[bytes]:
    for part in first:
        for chunk in part:
            yield chunk
    async for part in rest:
        for chunk in part:
            yield chunk


async def write_tree(
    handle: SandboxHandle, path: str, archive: AsyncIterable[bytes], *, key: str | None = None, exact: bool = False
) -> None:
    """Put a directory there, or merge it into the one that is there; of several with the same key one has an effect."""
    await _send(handle, _url(handle, "/tree", path=path, exact=exact), archive, ARCHIVE, None, key)


async def _send(
    handle: SandboxHandle,
    url: str,
    chunks: AsyncIterable[bytes],
    content_type: str,
    length: int | None,
    key: str | None = None,
) -> None:
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
        response = await handle.client.transport.open("PUT", url, watched(), content_type=content_type, length=length, key=key)
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
    key = new_key()

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        try:
            await handle.client.transport.request("DELETE", _url(handle, "", path=path, recursive=int(recursive)), key=key)
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
    rest: Callable[[int], str | None] = lambda _: None,
) -> AsyncIterator[bytes]:
    """A body as it arrives. `look` is told each answer, `rest` gives the URL of what comes after so many bytes, if there is."""
    transport = handle.client.transport
    silence = float("inf") if endless else None
    seen = 0

    async def attempt() -> tuple[Response, AsyncIterator[bytes], bytes]:
        # With its first bytes: a connection that is cut before any of them has not got any further.
        response = await transport.open("GET", url, silence_seconds=silence)
        try:
            look(response)
            chunks = response.chunks()
            return response, chunks, await anext(chunks, b"")
        except BaseException:
            response.close()
            raise

    while True:
        response, chunks, chunk = await handle.client.repeat(attempt, operation)
        try:
            while chunk:
                seen += len(chunk)
                yield chunk
                chunk = await anext(chunks, b"")
            return
        except (SandboxUnavailableError, SandboxRequestTimeoutError) as error:
            following = rest(seen)
            if following is None or not error.retryable:
                # A sandbox that ends cuts its streams: any call says how it ended. Else the server is to blame.
                await transport.request("GET", _url(handle, "/stat", path="/"))
                raise
            url = following
        finally:
            if not response.finished:
                response.close()


def _url(
    handle: SandboxHandle,
    kind: str,
    *,
    path: str,
    mode: int | None = None,
    recursive: int | None = None,
    exact: bool = False,
) -> str:
    _check(handle, path)
    return f"{handle.path}/files{kind}?{_query(path, mode, recursive)}{'&exact=1' if exact else ''}"


@lru_cache(256)
def _query(path: str, mode: int | None, recursive: int | None) -> str:
    """What is asked of a file comes again, and takes as long to write as all the rest of its request's head."""
    query: dict[str, Any] = {"path": path}
    if mode is not None:
        query["mode"] = f"{mode:o}"
    if recursive is not None:
        query["recursive"] = recursive
    return urlencode(query)


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
