"""What stands before every route: who asks, which wire they speak, and errors as JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import os
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from aiohttp import web

from aviato.exceptions import AviatoAuthenticationError, AviatoError, AviatoValidationError, SandboxUnavailableError
from aviato.server.peers import peer_uid
from aviato.wire.errors import STATUS_BY_CODE, ErrorResponse, to_wire
from aviato.wire.version import OLDEST_WIRE_VERSION, PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable

log = logging.getLogger(__name__)


def hash_key(key: str) -> str:
    """What is stored of an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Guard:
    """Lets in whom the server knows.

    Over a Unix socket that is the server's own uid and root; over TCP whoever has a key, under a host name that is ours.

    Args:
        key_hashes: of the API keys; one that is for some routes only has their paths behind it.
        hosts: names under which the server may be asked for, beside `localhost`, the machine's name and IP addresses.
    """

    def __init__(self, key_hashes: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._key_hashes = {key_hash: set(routes) for key_hash, *routes in map(str.split, key_hashes)}
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}
        self._known: WeakSet[asyncio.BaseTransport] = WeakSet()

    def check(self, request: web.Request) -> None:
        """See whether a request may come in.

        Raises:
            AviatoAuthenticationError: it may not.
        """
        transport = request.transport
        if transport is None or transport in self._known:
            return
        uid = peer_uid(transport)
        if uid is None:
            self._check_tcp(request)
        elif uid in (0, os.getuid()):
            self._known.add(transport)
        else:
            raise AviatoAuthenticationError(f"this socket is for uid {os.getuid()} only, the caller is {uid}")

    def _check_tcp(self, request: web.Request) -> None:
        host = _name_of(f"//{request.headers.get('Host', '')}")
        if not self._is_ours(host):
            raise AviatoAuthenticationError(f"the Host header names {host!r}, which is not this server", reason="host")
        origin = request.headers.get("Origin")
        if origin is not None and _name_of(origin) != host:
            raise AviatoAuthenticationError(f"requests from pages of {origin!r} are refused", reason="origin")
        key = _key_of(request.headers.get("Authorization", ""))
        if key is None:
            wandb = " W&B keys are not accepted here." if "X-Wandb-Api-Key" in request.headers else ""
            raise AviatoAuthenticationError(f"an API key is needed: set AVIATO_API_KEY.{wandb}")
        given = hash_key(key)
        found = [routes for known, routes in self._key_hashes.items() if hmac.compare_digest(given, known)]
        if not found:
            raise AviatoAuthenticationError("the API key is not known to this server")
        if found[0] and _route_of(request) not in found[0]:
            allowed = ", ".join(sorted(found[0]))
            raise AviatoAuthenticationError(f"this API key is for {allowed} only, not for {request.path}", reason="route")

    def _is_ours(self, host: str | None) -> bool:
        if host is None or host in self._hosts:
            return host is not None
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


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


def make_middleware(guard: Guard) -> Callable[..., Awaitable[web.StreamResponse]]:
    """The one middleware: checks, then the route, and any error as JSON."""

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            check_version(request)
            guard.check(request)
            return await handler(request)
        except AviatoError as error:
            return error_response(error)
        except web.HTTPRequestEntityTooLarge as error:
            return error_response(AviatoValidationError(f"the body is too large: {error.text}", reason="too_large"), 413)
        except web.HTTPException as error:
            return _from_http(error, request)
        except ConnectionError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return error_response(AviatoError("the server failed; its log says why", reason="internal", is_infrastructure=True))

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
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer, Basic realm="aviato"'
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


def _route_of(request: web.Request) -> str | None:
    """The path of the route as the description has it."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def _name_of(url: str) -> str | None:
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return None
    return name.lower() if name else None


def _key_of(header: str) -> str | None:
    """The key of an Authorization header: as bearer, or as the password of Basic for clients that know only that."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        return password or None
    return None
