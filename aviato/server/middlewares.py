"""What stands before every route: who asks, which wire they speak, and errors as JSON."""

from __future__ import annotations

import logging
import os
import sqlite3
from typing import TYPE_CHECKING

from aiohttp import web

from aviato.exceptions import AviatoAuthenticationError, AviatoError, AviatoValidationError, SandboxUnavailableError
from aviato.server.callers import CALLER, BodyTooLargeError
from aviato.server.routes.bodies import SlowBodyError
from aviato.wire.errors import STATUS_BY_CODE, ErrorResponse, to_wire
from aviato.wire.version import OLDEST_WIRE_VERSION, PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.connection_limit import ConnectionLimit
    from aviato.server.guard import Guard

log = logging.getLogger(__name__)


def check_version(request: web.Request) -> None:
    """Hold the versions of the wire together; a request that names none is taken for a current one.

    Raises:
        SandboxUnavailableError: this server does not serve that version.
    """
    said = request.headers.get(WIRE_HEADER)
    if said is None or said == _CURRENT:
        return
    if not said.isascii() or not said.isdigit() or not OLDEST_WIRE_VERSION <= int(said[:9]) <= WIRE_VERSION:
        raise SandboxUnavailableError(
            f"the client speaks wire version {said[:20]!r}, this server (pid {os.getpid()}) speaks {_CURRENT}; "
            f"use the same version of aviato for both, or end the server by `kill {os.getpid()}`",
            reason="wire_version",
            retryable=False,
        )


_CURRENT = str(WIRE_VERSION)


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
        try:
            check_version(request)
            caller = await guard.check(request)
            CALLER.set(caller)
            caller.check_size(request.content_length or 0)
            check_encoding(request)
            connection_limit.begin(request, caller)
            return await handler(request)
        except SlowBodyError as error:
            return error_response(error, 408)
        except _EncodingError as error:
            return error_response(error, 415)
        except BodyTooLargeError as error:
            return error_response(error, 413)
        except AviatoAuthenticationError as error:
            response = error_response(error)
            response.headers["WWW-Authenticate"] = guard.challenge
            return response
        except AviatoError as error:
            return error_response(error)
        except web.HTTPRequestEntityTooLarge as error:
            return error_response(AviatoValidationError(f"the body is too large: {error.text}", reason="too_large"), 413)
        except web.HTTPException as error:
            return _from_http(error, request)
        except ConnectionError:
            raise
        except sqlite3.Error as error:
            log.error("%s %s: the store fails: %s", request.method, request.path, error)
            return error_response(SandboxUnavailableError(f"the server's store cannot be used now: {error}", reason="store"))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return error_response(AviatoError("the server failed; its log says why", reason="internal", is_infrastructure=True))
        finally:
            connection_limit.end(request.protocol)

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Say on every answer which wire is spoken and by whom."""
    response.headers[WIRE_HEADER] = _CURRENT
    response.headers[PID_HEADER] = str(os.getpid())


def error_response(error: AviatoError, status: int | None = None) -> web.Response:
    """An error as JSON, with the status of its code."""
    if status is None:
        status = 426 if error.reason == "wire_version" else STATUS_BY_CODE.get(error.code, 500)
    response = web.Response(
        body=ErrorResponse(error=to_wire(error)).model_dump_json(exclude_none=True).encode(),
        status=status,
        content_type="application/json",
    )
    if error.retry_delay_seconds is not None and status in (429, 503):
        response.headers["Retry-After"] = str(max(1, round(error.retry_delay_seconds)))
    return response


def _from_http(error: web.HTTPException, request: web.Request) -> web.Response:
    """An error of aiohttp's own: no such route, wrong method."""
    if error.status < 400:
        raise error
    text = f"{request.method} {request.path}: {error.reason}"
    response = error_response(AviatoValidationError(text, reason="http"), error.status)
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
