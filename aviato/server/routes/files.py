"""Files in and out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from aiohttp import web
from pydantic import Field

from aviato.exceptions import AviatoValidationError
from aviato.server.memory import lent, refused
from aviato.server.routes.streaming import stream_archive, stream_file
from aviato.server.routes.table import OCTETS, Call, Route, answer, done
from aviato.wire.base import RequestModel
from aviato.wire.files import ARCHIVE, FILE_MODE_HEADER, FILE_VERSION_HEADER, FileList, FilePart, FileStat
from aviato.wire.memory import BYTES_HEADER, MOST_BYTES
from aviato.wire.sandboxes import Text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.memory import Memory
    from aviato.server.service import Service

Offset = Annotated[int, Field(ge=0, lt=2**63)]
Path = Annotated[Text, Field(min_length=1, max_length=4096)]


class PathQuery(RequestModel):
    """Query of most file calls."""

    path: Path


class ReadQuery(PathQuery):
    """Query of a read."""

    offset: Offset = 0
    version: Annotated[str, Field(max_length=200)] | None = None
    """As an earlier answer had it; the file is refused if it has changed since."""


class WriteQuery(PathQuery):
    """Query of a write."""

    offset: Offset = 0
    """Where this part of the file begins; parts need an `Idempotency-Key`, the same for all of a file."""
    last: bool = True
    """Whether it is the last part: the file is put in its place."""

    memory_bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)] | None = None
    """How many bytes of it lie in memory that the request lends, as soon as its body has come; see `wire.memory`."""

    mode: Annotated[str, Field(pattern=r"^[0-7]{1,4}$")] | None = None
    """Octal; None keeps the mode of a file that exists, and is 0644 for a new one."""


class RemoveQuery(PathQuery):
    """Query of a removal."""

    recursive: bool = False


async def read(call: Call) -> web.StreamResponse:
    """Send a file."""
    query: ReadQuery = call.query
    memory = lent(call.request)
    with memory or nullcontext():
        reading = call.service.files.read(
            call.path("sandbox_id"), query.path, offset=query.offset, version=query.version, memory=memory
        )
        async with reading as (stat, pieces):
            headers = read_headers(stat)
            if "memory_bytes" in stat:
                return web.Response(headers={**headers, BYTES_HEADER: str(stat["memory_bytes"])}, content_type=OCTETS)
            return await stream_file(call.request, pieces, headers, stat["size_bytes"] - query.offset)


async def write(call: Call) -> web.Response:
    """Take a file."""
    query: WriteQuery = call.query
    sandbox_id, key, size_bytes = call.path("sandbox_id"), call.key, query.memory_bytes
    if size_bytes is None:
        await write_file(call.service, sandbox_id, query, key, call.chunks(), call.request.content_length)
        return done()
    call.caller.check_size(size_bytes)
    if (memory := lent(call.request)) is None:
        raise refused()
    with memory:
        memory.ready = call.chunks()
        await write_file(call.service, sandbox_id, query, key, memory.chunks(size_bytes), size_bytes, memory)
    return done()


def read_headers(stat: dict[str, Any]) -> dict[str, str]:
    """What the head of an answer says of a file that is read, from what process 1 says of it."""
    headers = {FILE_MODE_HEADER: f"{stat['mode']:o}"}
    if "version" in stat:
        headers[FILE_VERSION_HEADER] = stat["version"]
    return headers


async def write_file(
    service: Service,
    sandbox_id: str,
    query: WriteQuery,
    key: str | None,
    chunks: AsyncIterator[bytes],
    size_bytes: int | None,
    memory: Memory | None = None,
) -> None:
    """Write a file, or a part of it.

    Args:
        service: does it.
        sandbox_id: where.
        query: of the request.
        key: by which a repeat is known.
        chunks: its bytes.
        size_bytes: how many, where that is known.
        memory: where they lie, too.

    Raises:
        AviatoError: it was not written.
    """
    mode, part = None if query.mode is None else int(query.mode, 8), _part(query, key)
    await service.files.write(sandbox_id, query.path, chunks, mode=mode, size_bytes=size_bytes, part=part, memory=memory)


def _part(query: WriteQuery, key: str | None) -> FilePart | None:
    if key is not None:
        return FilePart(key, query.offset, query.last)
    if query.offset or not query.last:
        raise AviatoValidationError("parts of a file need an Idempotency-Key", field_violations={"offset": "without a key"})
    return None


async def read_tree(call: Call) -> web.StreamResponse:
    """Send a directory."""
    async with call.service.files.read_tree(call.path("sandbox_id"), call.query.path) as (_, pieces):
        return await stream_archive(call.request, pieces)


async def write_tree(call: Call) -> web.Response:
    """Take a directory."""
    await call.service.files.write_tree(call.path("sandbox_id"), call.query.path, call.chunks(), call.key)
    return done()


async def remove(call: Call) -> web.Response:
    """Remove a file or a tree."""
    await call.service.files.remove(call.path("sandbox_id"), call.query.path, call.query.recursive, call.key)
    return done()


async def stat(call: Call) -> web.Response:
    """Describe a file."""
    return answer(await call.service.files.stat(call.path("sandbox_id"), call.query.path))


async def list_all(call: Call) -> web.Response:
    """List a directory."""
    return answer(await call.service.files.list(call.path("sandbox_id"), call.query.path))


async def make_directory(call: Call) -> web.Response:
    """Make a directory."""
    await call.service.files.make_directory(call.path("sandbox_id"), call.query.path)
    return done()


_FILES = "/v1/sandboxes/{sandbox_id}/files"
_ERRORS = (404, 409, 422)

ROUTES = (
    Route(
        method="GET",
        path=_FILES,
        handler=read,
        summary="Read a file",
        query=ReadQuery,
        answers={200: OCTETS},
        errors=_ERRORS,
    ),
    Route(
        method="PUT",
        path=_FILES,
        handler=write,
        summary="Write a file, whole or not at all",
        query=WriteQuery,
        body=OCTETS,
        answers={204: None},
        errors=_ERRORS,
    ),
    Route(
        method="DELETE",
        path=_FILES,
        handler=remove,
        summary="Remove a file, an empty directory, or a tree",
        query=RemoveQuery,
        answers={204: None},
        errors=_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_FILES}/tree",
        handler=read_tree,
        summary="Read a directory and all that is in it, as an archive",
        query=PathQuery,
        answers={200: ARCHIVE},
        errors=_ERRORS,
    ),
    Route(
        method="PUT",
        path=f"{_FILES}/tree",
        handler=write_tree,
        summary="Write a directory from an archive: a new one, or merged into the one that is there",
        query=PathQuery,
        body=ARCHIVE,
        answers={204: None},
        errors=_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_FILES}/stat",
        handler=stat,
        summary="Describe a file",
        query=PathQuery,
        answers={200: FileStat},
        errors=_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_FILES}/list",
        handler=list_all,
        summary="List a directory",
        query=PathQuery,
        answers={200: FileList},
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path=f"{_FILES}/directory",
        handler=make_directory,
        summary="Make a directory and its parents",
        query=PathQuery,
        answers={204: None},
        errors=_ERRORS,
    ),
)
