"""What a route is, and how a request becomes a call."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_origin

from aiohttp import web
from pydantic import BaseModel, ValidationError

from aviato.exceptions import AviatoValidationError
from aviato.server.callers import CALLER
from aviato.server.routes.bodies import BODIES, LARGEST_BODY_BYTES, SMALL_BODY_BYTES
from aviato.server.service import Service
from aviato.wire.version import KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aviato.server.callers import Caller

SERVICE = web.AppKey("service", Service)
OCTETS = "application/octet-stream"
JSON = "application/json"
_KEY = re.compile("[0-9A-Za-z]{1,64}")


@dataclass(kw_only=True, slots=True)
class Call:
    """A request whose parts have been checked."""

    request: web.Request
    service: Service
    query: Any = None
    body: Any = None

    def path(self, name: str) -> str:
        """A variable of the path."""
        return self.request.match_info[name]

    @property
    def caller(self) -> Caller:
        """Who asks."""
        return CALLER.get()

    @property
    def key(self) -> str | None:
        """By which a repeat of this very call is known.

        Raises:
            AviatoValidationError: it is none.
        """
        key = self.request.headers.get(KEY_HEADER)
        if key is not None and not _KEY.fullmatch(key):
            raise AviatoValidationError(f"{KEY_HEADER}: 1 to 64 letters and digits", field_violations={KEY_HEADER: "no key"})
        return key

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, whatever its head says of its size.

        Raises (while it comes):
            BodyTooLargeError: it is more than the caller may send.
        """
        return self.request.content.iter_any() if self.caller.max_body_bytes is None else self._counted()

    async def _counted(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self.request.content.iter_any():
            size += len(chunk)
            self.caller.check_size(size)
            yield chunk

    async def read(self) -> bytes:
        """All of the body, where it is not large.

        Raises:
            BodyTooLargeError: it is more than the caller may send.
            SlowBodyError: it does not come in time.
        """
        content = self.request.content
        if content.is_eof() and (self.request.content_length or 0) <= SMALL_BODY_BYTES:
            data = content.read_nowait()  # It came with its head, as most do.
            self.caller.check_size(len(data))
            return data
        async with self.request.app[BODIES].room(self.request, self.caller):
            # Not the request's own read(): it would keep the body for as long as its connection is idle.
            pieces: list[bytes] = []
            size = 0
            async for chunk in self.chunks():
                size += len(chunk)
                if size > LARGEST_BODY_BYTES:
                    raise web.HTTPRequestEntityTooLarge(max_size=LARGEST_BODY_BYTES, actual_size=size)
                pieces.append(chunk)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route.

    Attributes:
        method, path: as in HTTP; `{name}` is a variable of the path.
        handler: answers a checked call.
        summary: one line for the description.
        answers: status → model of a JSON body, content type of another body, or None for an empty one.
        errors: statuses that it can fail with, beside those that every route has.
        query: model of the query; None: there is none.
        body: model of a JSON body, or a content type; None: there is none.
        waits: whether the service must be ready first.
        foreign_text: half characters (lone surrogates), as a model's text can have, become U+FFFD; else they are refused.
    """

    method: str
    path: str
    handler: Callable[[Call], Awaitable[web.StreamResponse]]
    summary: str
    answers: dict[int, type[BaseModel] | str | None]
    errors: tuple[int, ...] = ()
    query: type[BaseModel] | None = None
    body: type[BaseModel] | str | None = None
    waits: bool = True
    foreign_text: bool = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Check the parts of a request and answer it."""
        service = request.app[SERVICE]
        query = parse_query(self.query, request) if self.query is not None or request.query_string else None
        call = Call(request=request, service=service, query=query)
        if isinstance(self.body, type):
            call.body = parse_body(self.body, await call.read(), foreign_text=self.foreign_text)
        if self.waits:
            await service.ready()
        if (sandbox_id := request.match_info.get("sandbox_id")) is not None:
            service.registry.check(CALLER.get(), sandbox_id)
        return await self.handler(call)


def parse_body(model: type[BaseModel], data: bytes, *, foreign_text: bool = False) -> BaseModel:
    """A JSON body.

    Raises:
        AviatoValidationError: it is not what the model says; each field that is wrong is named.
    """
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        if foreign_text and b"\\ud" in data.lower() and error.errors(include_input=False)[0]["type"] == "json_invalid":
            return _parse_foreign(model, data)
        raise _wrong("body", error) from None


def _parse_foreign(model: type[BaseModel], data: bytes) -> BaseModel:
    try:
        return model.model_validate(_whole(json.loads(data)), strict=True)
    except ValidationError as error:
        raise _wrong("body", error) from None
    except (ValueError, RecursionError) as error:
        raise AviatoValidationError(f"body: {error}", field_violations={"body": "not JSON"}) from None


def _whole(value: Any) -> Any:
    """Without half characters."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(item) for name, item in value.items()}
    return value


def parse_query(model: type[BaseModel] | None, request: web.Request) -> BaseModel | None:
    """The query; a list field may be given several times, any other once.

    Raises:
        AviatoValidationError: it is not what the model says, or there should be none.
    """
    fields = model.model_fields if model is not None else {}
    values: dict[str, Any] = {}
    for name in request.query:
        found = request.query.getall(name)
        field = fields.get(name)
        if field is not None and get_origin(field.annotation) is list:
            values[name] = found
        elif len(found) > 1:
            raise AviatoValidationError(f"query: {name} is given {len(found)} times", field_violations={name: "given twice"})
        else:
            values[name] = found[0]
    if model is None:
        names = ", ".join(sorted(values))
        raise AviatoValidationError(
            f"query: there is none here, got {names}", field_violations=dict.fromkeys(values, "unknown")
        )
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _wrong("query", error) from None


def answer(model: BaseModel, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=model.model_dump_json().encode(), status=status, content_type=JSON)


def done() -> web.Response:
    """An empty answer."""
    return web.Response(status=204)


def _wrong(what: str, error: ValidationError) -> AviatoValidationError:
    violations = {".".join(map(str, item["loc"])) or what: item["msg"] for item in error.errors(include_input=False)[:20]}
    text = "; ".join(f"{name}: {message}" for name, message in violations.items())
    return AviatoValidationError(f"{what}: {text}", field_violations=violations)
