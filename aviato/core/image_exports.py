"""Images that leave a server: into a file or a directory here, and into a registry."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import aclosing, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from aviato.core import files
from aviato.core.client import EXPORT_SECONDS, LONG_POLL_SECONDS, new_key
from aviato.core.images import BETWEEN_PROGRESS_SECONDS
from aviato.core.transfer import CHUNK_BYTES, process_umask
from aviato.exceptions import AviatoValidationError, SandboxImageError
from aviato.results import PushInfo
from aviato.system.threads import in_thread, opened_in_thread
from aviato.trees.errors import SenderFailed, TreeError
from aviato.trees.tar import Reader
from aviato.trees.unpack import Arrival
from aviato.wire.errors import ErrorBody, from_wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from typing import Literal

    from aviato.core.client import Client

    Form = Literal["layout", "archive"]

ARCHIVE = ".tar"
_SHOWN = {field.name for field in fields(PushInfo)}
_COMPRESSED = (".tgz", ".gz", ".zst", ".bz2", ".xz")


async def export(client: Client, reference: str, path: str) -> None:
    """Write an image to a new directory, or to a file, which takes the place of one that is there.

    Raises:
        AviatoValidationError: nothing can be written there.
        SandboxImageError: the image is not there, or cannot be exported.
        OSError: the disk fails.
    """
    form: Form = "archive" if path.endswith(ARCHIVE) else "layout"
    await in_thread(_check, path, form)
    async with aclosing(_batches(client, reference, form)) as batches:
        # The first part comes before anything is made here: it may turn out that there is no such image.
        first = await anext(batches, b"")
        place = await opened_in_thread(_File if form == "archive" else _Folder, path)
        assert place is not None
        try:
            await in_thread(place.feed, first)
            async for batch in batches:
                await in_thread(place.feed, batch)
            await in_thread(place.finish)
        except SenderFailed as failed:
            raise from_wire(ErrorBody.model_validate_json(failed.body)) from None
        except TreeError as error:
            text = f"image {reference!r}: what the server sent is no archive of an image: {error}"
            raise SandboxImageError(text, reason="damaged_layout") from None
        finally:
            await in_thread(place.close)


async def push(
    client: Client,
    reference: str,
    destination: str | None,
    *,
    on_progress: Callable[[PushInfo], object] | None = None,
) -> str:
    """Put an image into a registry.

    Args:
        client: of the server that has it.
        reference: of it.
        destination: what it is called there; None: `reference`.
        on_progress: told how far it is, twice a second and at the end.

    Returns:
        What is there from then on, by digest.

    Raises:
        SandboxImageError: it is not there; its `reason` says why.
    """
    key = new_key()
    seconds = LONG_POLL_SECONDS if on_progress is None else BETWEEN_PROGRESS_SECONDS
    while True:
        info = await client.push_image(reference, destination, timeout_seconds=seconds, key=key)
        if on_progress is not None and info.status != "failed":
            on_progress(PushInfo(**info.model_dump(include=_SHOWN)))
        if info.status == "failed":
            message = info.message or f"image {reference!r} cannot be pushed"
            raise SandboxImageError(message, reason=info.reason, retryable=info.retryable)
        if info.status == "done":
            return f"{info.reference.rpartition(':')[0]}@{info.digest}"


async def _batches(client: Client, reference: str, form: Form) -> AsyncGenerator[bytes, None]:
    response = await client.repeat(
        lambda: client.transport.open("GET", client.export_path(reference, form), silence_seconds=EXPORT_SECONDS),
        f"export image {reference}",
    )
    try:
        async for batch in files.gathered_chunks(response.chunks(), CHUNK_BYTES):
            yield b"".join(batch)
    finally:
        if not response.finished:
            response.close()


def _check(path: str, form: Form) -> None:
    if "\0" in path:
        raise AviatoValidationError(f"{path!r} is no path: it has a zero byte in it", field_violations={"path": "a zero byte"})
    if path.endswith(_COMPRESSED):
        why = f"{path!r}: what is written is a directory or, where the name ends with {ARCHIVE}, a file that is not compressed"
        raise AviatoValidationError(why, field_violations={"path": "compressed"})
    if form == "archive" and os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "a directory; name the file to write", path)
    if form == "layout" and os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise FileExistsError(errno.EEXIST, "there is something already; name a new directory", path)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no such directory to write to", folder)


class _Place(Protocol):
    """Where an archive goes; it is there whole, or not at all. Blocks; for worker threads."""

    def feed(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class _File(_Place):
    """A file, which is put in its place at the end."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader = Reader()
        folder = os.path.dirname(os.path.abspath(path))
        self._fd, self._name = tempfile.mkstemp(dir=folder, prefix=".aviato-")

    def feed(self, data: bytes) -> None:
        _exhaust(self._reader.feed(data))
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        self._reader.finish()
        os.fchmod(self._fd, 0o666 & ~process_umask())
        os.replace(self._name, self._path)

    def close(self) -> None:
        os.close(self._fd)
        with suppress(FileNotFoundError):
            os.unlink(self._name)


class _Folder(_Place):
    """A directory, which is put in its place at the end."""

    def __init__(self, path: str) -> None:
        holder, last = os.path.split(os.path.abspath(path))
        fd = os.open(holder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._arrival = Arrival((fd, os.fsencode(last)), outside_links="refuse", umask=process_umask())

    def feed(self, data: bytes) -> None:
        _exhaust(self._arrival.feed(data))

    def finish(self) -> None:
        _exhaust(self._arrival.finish())

    def close(self) -> None:
        _exhaust(self._arrival.abort())


def _exhaust(steps: Iterator[object]) -> None:
    for _ in steps:
        pass
