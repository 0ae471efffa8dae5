"""Answers that are short: what `server.door` says by itself, of the routes that are asked for most.

Each does what its route does, and says None where that is not done in a moment, is not small, or is for aiohttp to tell.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from aviato.exceptions import AviatoError
from aviato.server.callers import OPERATOR
from aviato.server.memory import lent_by
from aviato.server.peers import Asker
from aviato.server.routes.files import ReadQuery, WriteQuery, read_headers, write_file
from aviato.server.routes.sandboxes import accept, end
from aviato.server.routes.streaming import WHOLE_FILE_BYTES
from aviato.server.routes.table import JSON, OCTETS, parse_body
from aviato.wire.base import RequestModel
from aviato.wire.execution import ExecRequest
from aviato.wire.ids import SANDBOX_ID
from aviato.wire.memory import BYTES_HEADER, MEMORY_HEADER, READY
from aviato.wire.sandboxes import CreateSandbox, StopSandbox
from aviato.wire.version import KEY_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Coroutine

    from aviato.server.service import Service
    from aviato.server.service.feed import ExecFeed
    from aviato.server.service.left_feed import LeftFeed

EXEC, READ, WRITE = "POST execs", "GET files", "PUT files"
CREATE, STOP = "POST sandboxes", "POST stop"
_QUERY = r"[0-9A-Za-z_.~%+&=-]*"
_HEAD = re.compile(
    rf"(?:(?P<post>POST) /v1/sandboxes(?:/(?P<post_to>{SANDBOX_ID.pattern})/(?P<part>execs|stop))?|"
    rf"(?P<file>GET|PUT) /v1/sandboxes/(?P<file_in>{SANDBOX_ID.pattern})/files\?(?P<query>{_QUERY})) HTTP/1\.1\r\n"
    rf"Host: localhost\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
    rf"(?:{KEY_HEADER}: (?P<key>[0-9A-Za-z]{{1,64}})\r\n)?"
    rf"(?:{MEMORY_HEADER}: (?P<memory>[0-9a-f.]{{1,64}})\r\n)?"
    r"(?:Content-Type: (?P<type>[a-z/-]{1,40})\r\nContent-Length: (?P<size>[0-9]{1,6})\r\n)?".encode()
)
QUERIES = 256
"""So many are remembered: heads of files have a key of their own each, or the name of memory, but a file comes again."""
_TYPES = {EXEC: JSON, READ: None, WRITE: OCTETS, CREATE: JSON, STOP: JSON}
_PARTS = {None: CREATE, "execs": EXEC, "stop": STOP}
LONGEST_GRACE_SECONDS = 60.0
"""A stop that may take longer is aiohttp's."""
_Model = TypeVar("_Model", bound=RequestModel)


class Head(NamedTuple):
    """What the head of a request says.

    Attributes:
        kind: `EXEC`, `READ`, `WRITE`, `CREATE` or `STOP`.
        sandbox_id: of its path; empty where that names none.
        query: of a file's path.
        key: by which a repeat is known.
        memory: the name of what is lent.
        size_bytes: of its body.
    """

    kind: str
    sandbox_id: str
    query: ReadQuery | WriteQuery | None
    key: str | None
    memory: str | None
    size_bytes: int

    @property
    def comes_again(self) -> bool:
        """Whether another request may well have the same one."""
        return self.key is None and self.kind != STOP

    @property
    def is_followed(self) -> bool:
        """Whether its body comes behind it, when all is in the memory."""
        return self.kind == WRITE and self.memory is not None and self.size_bytes == len(READY)


class Answer(NamedTuple):
    """What is said to a request; without a body, if that is None."""

    status: str
    headers: str
    body: bytes | None


def read_head(head: bytes) -> Head | None:
    """The head of a request, as our own client says it; None for whatever else."""
    found = _HEAD.fullmatch(head)
    if found is None:
        return None
    said = {name: None if value is None else value.decode() for name, value in found.groupdict().items()}
    kind = _PARTS[said["part"]] if said["post"] else READ if said["file"] == "GET" else WRITE
    if said["type"] != _TYPES[kind] or (said["post"] and (said["key"] or said["memory"])):
        return None
    query: ReadQuery | WriteQuery | None = None
    if said["file"]:
        text = said["query"] or ""
        query = _query(ReadQuery, text) if kind == READ else _query(WriteQuery, text)
        if query is None:
            return None
    sandbox_id = said["post_to"] or said["file_in"] or ""
    return Head(kind, sandbox_id, query, said["key"], said["memory"], int(said["size"] or 0))


def start_exec(service: Service, head: Head, body: bytes) -> ExecFeed | LeftFeed | None:
    """Begin a command."""
    request = _parsed(ExecRequest, body)
    try:
        return None if request is None else service.execs.start(head.sandbox_id, request)
    except AviatoError:
        return None


def create(service: Service, body: bytes, transport: asyncio.Transport) -> Coroutine[None, None, Answer | None] | None:
    """Accept a sandbox."""
    request = _parsed(CreateSandbox, body)
    return None if request is None else _created(service, request, Asker(transport))


async def _created(service: Service, request: CreateSandbox, asker: Asker) -> Answer | None:
    status, info = await accept(service, request, asker, OPERATOR)
    return _json("201 Created" if status == 201 else "200 OK", info)


def stop(service: Service, head: Head, body: bytes) -> Coroutine[None, None, Answer | None] | None:
    """End a sandbox."""
    request = _parsed(StopSandbox, body)
    if request is None or request.graceful_shutdown_seconds > LONGEST_GRACE_SECONDS:
        return None
    return _stopped(service, head.sandbox_id, request)


async def _stopped(service: Service, sandbox_id: str, request: StopSandbox) -> Answer | None:
    return _json("200 OK", await end(service, sandbox_id, request, OPERATOR))


async def read(service: Service, head: Head, pid: int | None) -> Answer | None:
    """Read a file that is small, or has its place in the memory that the process of this id lends."""
    query = cast("ReadQuery", head.query)
    memory = None if head.memory is None else lent_by(head.memory, pid)
    with memory or nullcontext():
        reading = service.files.read(head.sandbox_id, query.path, offset=query.offset, version=query.version, memory=memory)
        async with reading as (stat, pieces):
            headers = "".join(f"{name}: {value}\r\n" for name, value in read_headers(stat).items())
            if "memory_bytes" in stat:
                return _octets(f"{headers}{BYTES_HEADER}: {stat['memory_bytes']}\r\n", b"")
            content, most = b"", WHOLE_FILE_BYTES
            if stat["size_bytes"] - query.offset > most:
                return None
            async for piece in pieces:
                content += piece
                if len(content) > most:
                    return None
            return _octets(headers, content)


async def write(service: Service, head: Head, pid: int | None, body: bytes | AsyncIterator[bytes]) -> Answer | None:
    """Write a file whose bytes came with the request, or lie in the memory that the process of this id lends."""
    query = cast("WriteQuery", head.query)
    if query.memory_bytes is None:
        if not isinstance(body, bytes):
            return None
        await write_file(service, head.sandbox_id, query, head.key, _one(body), head.size_bytes)
        return Answer("204 No Content", "", None)
    memory = None if head.memory is None else lent_by(head.memory, pid)
    if memory is None:
        return None
    with memory:
        memory.ready = _one(body) if isinstance(body, bytes) else body
        await write_file(
            service, head.sandbox_id, query, head.key, memory.chunks(query.memory_bytes), query.memory_bytes, memory
        )
    return Answer("204 No Content", "", None)


def _parsed(model: type[_Model], body: bytes) -> _Model | None:
    try:
        return cast("_Model", parse_body(model, body))
    except AviatoError:
        return None


def _json(status: str, model: BaseModel) -> Answer:
    return Answer(status, f"Content-Type: {JSON}\r\n", model.model_dump_json().encode())


def _octets(headers: str, body: bytes) -> Answer:
    return Answer("200 OK", f"Content-Type: {OCTETS}\r\n{headers}", body)


@lru_cache(QUERIES)
def _query(model: type[_Model], text: str) -> _Model | None:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
        values: dict[str, Any] = dict(pairs)
        return model.model_validate(values) if len(values) == len(pairs) else None
    except (ValueError, ValidationError):
        return None


async def _one(piece: bytes) -> AsyncIterator[bytes]:
    yield piece
