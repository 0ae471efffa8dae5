"""What stands before every route: who asks, and errors as JSON."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiohttp import web

from aviato.exceptions import AviatoAuthenticationError, AviatoError, AviatoValidationError
from aviato.server.callers import CALLER
from aviato.server.http.adapter import response_of
from aviato.server.operations.failures import failed, failure
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.connections.connection_limit import ConnectionLimit
    from aviato.server.connections.guard import Guard


class _EncodingError(AviatoValidationError):
    """A body that is compressed."""

    default_reason = "encoding"


def check_encoding(request: web.Request) -> None:
    """Refuse what is compressed: its size would say nothing of what it becomes.

    Raises:
        AviatoValidationError: it is.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise _EncodingError("the body is compressed; send it as it is")


def make_middleware(guard: Guard, connection_limit: ConnectionLimit) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The one middleware: checks, then the route, and any error as JSON."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        transport = request.transport
        try:
            caller = await guard.check(transport, request.headers, _route_of(request), request.path)
            CALLER.set(caller)
            caller.check_size(request.content_length or 0)
            check_encoding(request)
            if transport is not None:
                connection_limit.begin(transport, request.method, request.path, caller)
            return await handler(request)
        except _EncodingError as error:
            return error_response(error, 415)
        except AviatoAuthenticationError as error:
            response = error_response(error)
            response.headers["WWW-Authenticate"] = guard.challenge
            return response
        except web.HTTPException as error:
            return _from_http(error, request)
        except ConnectionError:
            raise
        except Exception as error:
            return response_of(failed(error, f"{request.method} {request.path}"))
        finally:
            if transport is not None:
                connection_limit.end(transport)

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say on every answer which wire is spoken and by whom."""
    response.headers[WIRE_HEADER] = str(WIRE_VERSION)
    response.headers[PID_HEADER] = str(os.getpid())


def error_response(error: AviatoError, status: int | None = None) -> web.Response:
    """See `operations.failures.failure`."""
    return response_of(failure(error, status))


def _route_of(request: web.Request) -> str | None:
    """The path of the route as the description has it."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def _from_http(error: web.HTTPException, request: web.Request) -> web.Response:
    """An error of aiohttp's own: no such route, wrong method."""
    if error.status < 400:
        raise error
    text = f"{request.method} {request.path}: {error.reason}"
    response = error_response(AviatoValidationError(text, reason="http"), error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
