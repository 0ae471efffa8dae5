"""What went wrong below HTTP, in our words: the one place where aiohttp and OS errors become typed errors."""

from __future__ import annotations

import errno
import json
import os
import ssl
import sys
from typing import TYPE_CHECKING, NoReturn

import pydantic

from aviato.exceptions import (
    AviatoAuthenticationError,
    AviatoError,
    AviatoValidationError,
    SandboxRequestTimeoutError,
    SandboxResourceExhaustedError,
    SandboxUnavailableError,
)
from aviato.wire.errors import ErrorResponse, from_wire
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECT = "connect"
"""Reason: no connection could be made, so the server has not seen the request."""
CONNECTION_LOST = "connection_lost"
"""Reason: the connection ended before its answer was whole; the server may have done the work."""

_UNKNOWN_FIELD = "Extra inputs are not permitted"
"""Pydantic's words for a field that a server does not know. What callers give is checked before it is sent."""
TOO_BUSY = frozenset({429, 502, 503, 504})
"""What a proxy in front of a server answers while that is away or full."""


def raise_typed(error: Exception, where: str, seconds: float) -> NoReturn:
    """Raise what aiohttp or the OS has raised as an error of aviato's own, and any other error as it is."""
    typed = None if isinstance(error, AviatoError) else _typed(error, where, seconds)
    if typed is None:
        raise error
    raise typed from error


def _typed(error: Exception, where: str, seconds: float) -> AviatoError | None:
    """The typed error for what aiohttp or the OS raised, most specific first; None for anything else."""
    if _is_aiohttps(error, "InvalidURL"):
        return AviatoValidationError(f"base_url {where!r} cannot be used: {error}", field_violations={"base_url": str(error)})
    if _is_aiohttps(error, "ConnectionTimeoutError"):
        return SandboxUnavailableError(f"{where}: no connection within {seconds:g} s", reason=CONNECT)
    if isinstance(error, TimeoutError):
        return SandboxRequestTimeoutError(f"{where}: no answer within {seconds:g} s")
    if isinstance(error, ssl.SSLError) or _is_aiohttps(error, "ClientSSLError"):
        return SandboxUnavailableError(f"{where}: TLS failed: {error}", reason="tls", retryable=False)
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        message = f"{where}: this process has no file descriptor left ({error.strerror}); raise `ulimit -n`"
        return SandboxUnavailableError(message, reason="descriptors")
    if _is_aiohttps(error, "ClientConnectorError"):
        return SandboxUnavailableError(f"{where}: {_os_text(getattr(error, 'os_error', None))}", reason=CONNECT)
    if isinstance(error, ConnectionRefusedError):
        return SandboxUnavailableError(f"{where}: {_os_text(error)}", reason=CONNECT)
    if isinstance(error, ConnectionError) or _is_aiohttps(error, "ClientConnectionError", "ClientPayloadError"):
        return SandboxUnavailableError(f"{where}: connection lost ({_text(error)})", reason=CONNECTION_LOST)
    if _is_aiohttps(error, "ClientError"):
        return SandboxUnavailableError(f"{where}: not an answer that can be read ({_text(error)})", reason="protocol")
    if isinstance(error, OSError):
        return SandboxUnavailableError(f"{where}: {_os_text(error)}", reason=CONNECT)
    return None


def _is_aiohttps(error: BaseException, *names: str) -> bool:
    """Whether it is of one of these classes of aiohttp's, which is loaded where it has raised something."""
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(error, tuple(getattr(aiohttp, name) for name in names))


def from_response(where: str, status: int, headers: Mapping[str, str], body: bytes, *, reached: bool = False) -> AviatoError:
    """The error that a response of 400 and above means; `reached` as in `check_wire_version`."""
    try:
        error = from_wire(ErrorResponse.model_validate_json(body).error)
    except pydantic.ValidationError:
        error = _foreign(where, status, headers, body, reached)
    if isinstance(error, AviatoValidationError) and _UNKNOWN_FIELD in error.field_violations.values():
        unknown = ", ".join(name for name, why in error.field_violations.items() if why == _UNKNOWN_FIELD)
        pid = headers.get(PID_HEADER, "unknown")
        message = f"{where}: the server is older than this client and does not know {unknown}; end the server (pid {pid})"
        return SandboxUnavailableError(message, reason="wire_version", retryable=False)
    if error.retry_delay_seconds is None and (delay := headers.get("Retry-After")) is not None:
        try:
            error.retry_delay_seconds = max(0.0, float(delay))
        except ValueError:
            pass
    return error


def _foreign(where: str, status: int, headers: Mapping[str, str], body: bytes, reached: bool) -> AviatoError:
    """An error without our body: from a proxy in between, or from a server that is not aviato's."""
    text = body[:200].decode(errors="replace").strip()
    said = f"{where}: HTTP {status}" + (f", {json.dumps(text, ensure_ascii=False)}" if text else "")
    if status in (401, 403):
        return AviatoAuthenticationError(f"{said}; set AVIATO_API_KEY")
    if status == 429:
        return SandboxResourceExhaustedError(said)
    if status == 504:
        return SandboxRequestTimeoutError(said)
    if status in (502, 503):
        return SandboxUnavailableError(said)
    if status == 413:
        return AviatoValidationError(f"{said}; the request is too large")
    if WIRE_HEADER not in headers:
        return SandboxUnavailableError(f"{said}; this is no aviato server", reason="protocol", retryable=reached)
    return SandboxUnavailableError(said, reason="protocol", retryable=False)


def check_wire_version(where: str, headers: Mapping[str, str], *, reached: bool = False) -> None:
    """Refuse an answer in a wire version that this client does not speak.

    Args:
        where: the server.
        headers: of the answer.
        reached: there was an aviato server before, or there may be one, so an answer of somebody else (a proxy in between) is
            worth another try.

    Raises:
        SandboxUnavailableError: naming both versions and the process to end.
    """
    version = headers.get(WIRE_HEADER)
    if version is None:
        raise SandboxUnavailableError(f"{where}: this is no aviato server", reason="protocol", retryable=reached)
    if version != str(WIRE_VERSION) and not (version.isdecimal() and int(version) > WIRE_VERSION):
        pid = headers.get(PID_HEADER, "unknown")
        raise SandboxUnavailableError(
            f"{where}: the server speaks wire version {version}, this client {WIRE_VERSION}; end the server (pid {pid})",
            reason="wire_version",
            retryable=False,
        )


def _os_text(error: OSError | None) -> str:
    if error is None:
        return "no connection"
    if error.errno is not None and error.errno > 0:  # asyncio writes the arguments of its call as the text
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
