"""Files and directory trees between a sandbox and the local disk. What blocks runs in a worker thread of the loop."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from aviato.core import files
from aviato.core.client import new_key
from aviato.exceptions import AviatoValidationError, SandboxFileError
from aviato.log import logger
from aviato.progress import Progress
from aviato.system.threads import in_thread, until_done
from aviato.trees.errors import SenderFailed, TreeError, shown
from aviato.trees.pack import gathered, pack
from aviato.trees.unpack import Arrival
from aviato.values.representation import beginning
from aviato.wire.errors import ErrorBody, from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from aviato.core.lifecycle import SandboxHandle
    from aviato.progress import Told
    from aviato.trees.unpack import OutsideLinks

_T = TypeVar("_T")

CHUNK_BYTES = 1 << 20
"""So much at a time is worth a hop to another thread."""
ENTRIES_A_CHUNK = 2_000
_MOST_PIECES = 1_000
"""The kernel takes 1,024 in one call."""
_NAME_CHARACTERS = 40
"""Of what is copied, beside the bar."""
_NAMED = 5
"""How many of the entries that were left out a warning names."""


async def upload(handle: SandboxHandle, local: str, remote: str, *, progress: Told = None) -> None:
    """Copy a local file or directory in.

    Args:
        handle: of the sandbox.
        local: what is copied.
        remote: the name of the copy.
        progress: see `Progress`; of bytes, and of a tree's archive without a total.

    Raises:
        OSError: the local side cannot be read.
        AviatoValidationError: it is neither a file nor a directory.
        SandboxFileError: what is wrong inside.
    """
    info = await in_thread(os.stat, local)
    if stat.S_ISDIR(info.st_mode):
        with _progress("upload", local, None, progress) as shown:
            await _upload_tree(handle, local, remote, shown)
    elif stat.S_ISREG(info.st_mode):
        with _progress("upload", local, info.st_size, progress) as shown:
            await _upload_file(handle, local, remote, shown)
    else:
        message = f"{local!r} is neither a file nor a directory; open it and pass it to write_file_streaming()"
        raise AviatoValidationError(message, field_violations={"local": "neither a file nor a directory"})


async def upload_archive(handle: SandboxHandle, parts: Callable[[], Iterator[bytes]], remote: str, what: str) -> None:
    """Put what an archive has into a directory that is there: with its owners, all bits of modes and hard links.

    Args:
        handle: of the sandbox.
        parts: gives the archive from its beginning, again for each attempt; it is read in threads.
        remote: the directory.
        what: of messages.

    Raises:
        OSError, TreeError: of the archive.
        SandboxFileError: what is wrong inside.
    """
    key = new_key()
    with _progress("upload", what, None, None) as shown:

        async def send() -> None:
            shown.restart()
            source = _Source(gathered(parts(), CHUNK_BYTES, ENTRIES_A_CHUNK), lambda: None, shown)
            try:
                await files.write_tree(handle, remote, source.chunks(), key=key, exact=True)
            finally:
                await in_thread(source.close)

        await handle.client.repeat(send, f"upload {what!r}")


async def download(
    handle: SandboxHandle,
    remote: str,
    local: str,
    *,
    outside_links: OutsideLinks = "refuse",
    progress: Told = None,
    umask: int | None = None,
) -> None:
    """Copy a file or directory out; what is there locally changes only once all of it has come.

    Args:
        handle: of the sandbox.
        remote: what is copied.
        local: the path of the copy.
        outside_links: as of `Sandbox.download`.
        progress: see `Progress`; of bytes, without a total.
        umask: bits that no file and no directory gets; None: this process's.

    Raises:
        OSError: the local side cannot be written.
        SandboxFileError: what is wrong inside, or with what came out.
    """
    with _progress("download", remote, None, progress) as shown:
        try:
            await _download_file(handle, remote, local, shown, umask)
        except SandboxFileError as error:
            if error.reason != "is_a_directory":
                raise
            fetch = lambda: _download_tree(handle, remote, local, outside_links, shown, umask)  # noqa: E731
            await handle.client.repeat(fetch, f"download {remote!r}")


def _progress(verb: str, path: str, total: int | None, told: Told) -> Progress:
    name = os.path.basename(path.rstrip("/")) or path
    return Progress(f"{verb} {beginning(name, _NAME_CHARACTERS)}", total, told, unit="bytes")


async def _upload_file(handle: SandboxHandle, local: str, remote: str, shown: Progress) -> None:
    file = await in_thread(open, local, "rb", buffering=0)
    source = _Source(iter(lambda: file.read(CHUNK_BYTES), b""), file.close, shown)
    try:
        info = os.fstat(file.fileno())
        mode = stat.S_IMODE(info.st_mode) & 0o777
        await files.write_chunks(handle, remote, source.chunks(), mode=mode)
    finally:
        await in_thread(source.close)


async def _upload_tree(handle: SandboxHandle, local: str, remote: str, shown: Progress) -> None:
    key = new_key()
    await handle.client.repeat(lambda: _send_tree(handle, local, remote, key, shown), f"upload {local!r}")


async def _send_tree(handle: SandboxHandle, local: str, remote: str, key: str, shown: Progress) -> None:
    shown.restart()
    skipped: list[bytes] = []
    top = await _made(lambda: os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), os.close)
    packing = pack(top, skipped)

    def close() -> None:
        packing.close()  # type: ignore[attr-defined]
        os.close(top)

    source = _Source(gathered(packing, CHUNK_BYTES, ENTRIES_A_CHUNK), close, shown)
    try:
        await files.write_tree(handle, remote, source.chunks(), key=key)
    except TreeError as error:
        raise AviatoValidationError(f"{local!r}: {error}", field_violations={"local": str(error)}) from None
    except OSError as error:
        if isinstance(error.filename, bytes):
            error.filename = os.path.join(local, os.fsdecode(error.filename))
        raise
    finally:
        await in_thread(source.close)
    _tell(skipped, f"upload of {local!r}")


async def _download_file(handle: SandboxHandle, remote: str, local: str, shown: Progress, umask: int | None) -> None:
    mode = 0o644

    def set_mode(found: int) -> None:
        nonlocal mode
        mode = found

    def begin() -> Any:
        if os.path.isdir(local):
            raise IsADirectoryError(errno.EISDIR, "a directory; name the file to write", local)
        folder = os.path.dirname(os.path.abspath(local))
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory to write to", folder)
        return tempfile.NamedTemporaryFile(dir=folder, prefix=".aviato-", delete=False, buffering=0)

    def discard(file: Any) -> None:
        file.close()
        with suppress(FileNotFoundError):
            os.unlink(file.name)

    def commit() -> None:
        os.ftruncate(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR))
        os.fchmod(file.fileno(), mode & ~(process_umask() if umask is None else umask))
        file.close()
        os.replace(file.name, local)

    batches = files.gathered_chunks(files.read_chunks(handle, remote, set_mode), CHUNK_BYTES)
    # The first part comes before anything is made here: it may turn out that there is no such file.
    first: list[bytes] = await anext(batches, [])
    shown.advance(count=sum(map(len, first)))
    file = await _made(begin, discard)
    writing = asyncio.ensure_future(in_thread(write_all, file.fileno(), first))
    try:
        # The next part arrives while one is written.
        async for batch in batches:
            await writing
            writing = asyncio.ensure_future(in_thread(write_all, file.fileno(), batch))
            shown.advance(count=sum(map(len, batch)))
        await writing
        await in_thread(commit)
    except BaseException:
        try:
            await until_done(writing)
        finally:
            discard(file)
        raise
    finally:
        await batches.aclose()


def write_all(fd: int, pieces: list[bytes]) -> None:
    """Zeros become a hole: a file full of them takes no place inside, and must not fill the disk here."""
    if all(piece[0] == piece[-1] == 0 and piece.count(0) == len(piece) for piece in pieces if piece):
        os.lseek(fd, sum(map(len, pieces)), os.SEEK_CUR)
        return
    rest: list[bytes | memoryview] = list(pieces)
    while rest:
        written = os.writev(fd, rest[:_MOST_PIECES])
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = memoryview(rest[0])[written:]


async def _download_tree(
    handle: SandboxHandle, remote: str, local: str, outside_links: OutsideLinks, shown: Progress, umask: int | None
) -> None:
    shown.restart()
    bits = process_umask() if umask is None else umask
    arrival = await _made(lambda: Arrival(local, outside_links=outside_links, umask=bits), lambda made: _run(made.abort()))
    batches = files.gathered_chunks(files.read_tree(handle, remote), CHUNK_BYTES)
    try:
        async for batch in batches:
            await in_thread(_run, arrival.feed(b"".join(batch)))
            shown.advance(count=sum(map(len, batch)))
        await in_thread(_run, arrival.finish())
    except SenderFailed as failed:
        raise from_wire(ErrorBody.model_validate_json(failed.body)) from None
    except TreeError as error:
        message = f"{remote!r}: {error}"
        raise SandboxFileError(message, filepath=remote, reason=error.reason, sandbox_id=handle.sandbox_id) from None
    except OSError as error:
        if isinstance(error.filename, bytes):
            error.filename = os.path.join(local, os.fsdecode(error.filename))
        raise
    finally:
        try:
            await in_thread(_run, arrival.abort())
        finally:
            await batches.aclose()
    _tell(arrival.skipped, f"download of {remote!r}")


def _run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


class _Source:
    """What is sent, read in threads, and closed once no thread reads it any more.

    The request's body is read by a task of the HTTP library's. It may still read when the request has been given up.
    """

    def __init__(self, parts: Iterator[bytes], close: Callable[[], object], shown: Progress) -> None:
        self._parts = parts
        self._shown = shown
        self._close = close
        self._closed = False
        self._reading = threading.Lock()

    async def chunks(self) -> AsyncIterator[bytes]:
        while chunk := await in_thread(self._next):
            yield chunk
            self._shown.advance(count=len(chunk))

    def close(self) -> None:
        with self._reading:
            self._closed = True
            self._close()

    def _next(self) -> bytes:
        with self._reading:
            if self._closed:
                raise ValueError("the request that this was read for has ended")
            return next(self._parts, b"")


async def _made(make: Callable[[], _T], undo: Callable[[_T], object]) -> _T:
    """What is made in a thread. A caller that is cancelled meanwhile would never know of it, so it is undone."""
    made: list[_T] = []

    def run() -> _T:
        made.append(make())
        return made[0]

    try:
        return await in_thread(run)
    except asyncio.CancelledError:
        for one in made:
            await in_thread(undo, one)
        raise


def process_umask() -> int:
    """Of this process: not by `os.umask`, which would change it for all threads meanwhile."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _tell(skipped: list[bytes], what: str) -> None:
    if skipped:
        names = ", ".join(shown(name) for name in skipped[:_NAMED]) + (" …" if len(skipped) > _NAMED else "")
        logger.warning("%s left out what is neither file, directory nor a link that stays inside: %s", what, names)
