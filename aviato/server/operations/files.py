"""Files in and out."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aviato.exceptions import AviatoValidationError
from aviato.server.operations.reply import OCTETS, Reply, answer, archived, chained, done, ending
from aviato.server.operations.table import Operation
from aviato.server.shared_memory import refused
from aviato.wire.base import RequestModel
from aviato.wire.files import ARCHIVE, FILE_MODE_HEADER, FILE_VERSION_HEADER, FileList, FilePart, FileStat
from aviato.wire.sandboxes import Text
from aviato.wire.shared_memory import BYTES_HEADER, MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.operations.call import Call
    from aviato.server.service import Service
    from aviato.server.shared_memory import Memory

Offset = Annotated[int, Field(ge=0, lt=2**63)]
Path = Annotated[Text, Field(min_length=1, max_length=4096)]
WHOLE_FILE_BYTES = 256 << 10
"""A file of up to so much is sent whole, so that an error in it gets a status of its own."""


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
    """How many bytes of it lie in memory that the client shares, as soon as its body has come; see `wire.shared_memory`."""

    mode: Annotated[str, Field(pattern=r"^[0-7]{1,4}$")] | None = None
    """Octal; None keeps the mode of a file that exists, and is 0644 for a new one."""


class TreeQuery(PathQuery):
    """Query of a directory as an archive."""

    exact: bool = False
    """With owners, all bits of modes and hard links; what is read may be one file."""


class RemoveQuery(PathQuery):
    """Query of a removal."""

    recursive: bool = False


async def read(call: Call) -> Reply:
    """Send a file."""
    query: ReadQuery = call.query
    async with AsyncExitStack() as stack:
        if (memory := await call.memory()) is not None:
            stack.enter_context(memory)
        stat, pieces = await stack.enter_async_context(
            call.service.files.read(
                call.variables["sandbox_id"], query.path, offset=query.offset, version=query.version, memory=memory
            )
        )
        headers = {FILE_MODE_HEADER: f"{stat['mode']:o}"}
        if "version" in stat:
            headers[FILE_VERSION_HEADER] = stat["version"]
        if "memory_bytes" in stat:
            return Reply(content_type=OCTETS, headers={**headers, BYTES_HEADER: str(stat["memory_bytes"])})
        # What `stat` says of its size is no promise: it may grow or shrink meanwhile.
        size, held, held_bytes = stat["size_bytes"] - query.offset, [], 0
        async for piece in pieces:
            held.append(piece)
            held_bytes += len(piece)
            if max(held_bytes, size) > WHOLE_FILE_BYTES:
                rest = ending(chained(held, pieces), size)
                return Reply(content_type=OCTETS, headers=headers, pieces=rest, stack=stack.pop_all())
        return Reply(b"".join(held), content_type=OCTETS, headers=headers)


async def write(call: Call) -> Reply:
    """Take a file."""
    query: WriteQuery = call.query
    sandbox_id, key, size_bytes = call.variables["sandbox_id"], call.key, query.memory_bytes
    if size_bytes is None:
        await _write_file(call.service, sandbox_id, query, key, call.chunks(), call.request.size_bytes)
        return done()
    call.caller.check_size(size_bytes)
    if (memory := await call.memory()) is None:
        raise refused()
    with memory:
        memory.ready = call.chunks()
        await _write_file(call.service, sandbox_id, query, key, memory.chunks(size_bytes), size_bytes, memory)
    return done()


async def _write_file(
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


async def read_tree(call: Call) -> Reply:
    """Send a directory."""
    async with AsyncExitStack() as stack:
        reading = call.service.files.read_tree(call.variables["sandbox_id"], call.query.path, call.query.exact)
        _, pieces = await stack.enter_async_context(reading)
        return await archived(pieces, stack)


async def write_tree(call: Call) -> Reply:
    """Take a directory."""
    query: TreeQuery = call.query
    await call.service.files.write_tree(call.variables["sandbox_id"], query.path, call.chunks(), call.key, query.exact)
    return done()


async def remove(call: Call) -> Reply:
    """Remove a file or a tree."""
    await call.service.files.remove(call.variables["sandbox_id"], call.query.path, call.query.recursive, call.key)
    return done()


async def stat(call: Call) -> Reply:
    """Describe a file."""
    return answer(await call.service.files.stat(call.variables["sandbox_id"], call.query.path))


async def list_all(call: Call) -> Reply:
    """List a directory."""
    return answer(await call.service.files.list(call.variables["sandbox_id"], call.query.path))


async def make_directory(call: Call) -> Reply:
    """Make a directory."""
    await call.service.files.make_directory(call.variables["sandbox_id"], call.query.path)
    return done()


FILES = "/v1/sandboxes/{sandbox_id}/files"
_ERRORS = (404, 409, 422)

OPERATIONS = (
    Operation(
        method="GET",
        path=FILES,
        handler=read,
        summary="Read a file",
        query=ReadQuery,
        answers={200: OCTETS},
        errors=_ERRORS,
    ),
    Operation(
        method="PUT",
        path=FILES,
        handler=write,
        summary="Write a file, whole or not at all",
        query=WriteQuery,
        body=OCTETS,
        answers={204: None},
        errors=_ERRORS,
    ),
    Operation(
        method="DELETE",
        path=FILES,
        handler=remove,
        summary="Remove a file, an empty directory, or a tree",
        query=RemoveQuery,
        answers={204: None},
        errors=_ERRORS,
    ),
    Operation(
        method="GET",
        path=f"{FILES}/tree",
        handler=read_tree,
        summary="Read a directory and all that is in it, as an archive",
        query=TreeQuery,
        answers={200: ARCHIVE},
        errors=_ERRORS,
    ),
    Operation(
        method="PUT",
        path=f"{FILES}/tree",
        handler=write_tree,
        summary="Write a directory from an archive: a new one, or merged into the one that is there",
        query=TreeQuery,
        body=ARCHIVE,
        answers={204: None},
        errors=_ERRORS,
    ),
    Operation(
        method="GET",
        path=f"{FILES}/stat",
        handler=stat,
        summary="Describe a file",
        query=PathQuery,
        answers={200: FileStat},
        errors=_ERRORS,
    ),
    Operation(
        method="GET",
        path=f"{FILES}/list",
        handler=list_all,
        summary="List a directory",
        query=PathQuery,
        answers={200: FileList},
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{FILES}/directory",
        handler=make_directory,
        summary="Make a directory and its parents",
        query=PathQuery,
        answers={204: None},
        errors=_ERRORS,
    ),
)
