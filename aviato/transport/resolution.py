"""Which server a call goes to: explicit `base_url` > explicit defaults > `AVIATO_BASE_URL` > the embedded one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from aviato.exceptions import AviatoValidationError

BASE_URL_VARIABLE = "AVIATO_BASE_URL"
EMBEDDED = "embedded:"
"""Stands for the embedded server where a pickled sandbox has to say which server it belongs to."""


@dataclass(frozen=True)
class Endpoint:
    """One server.

    Attributes:
        url: as a person would write it; for the embedded server `unix://` and its socket.
        origin: what request paths are appended to.
        socket_path: of a Unix socket, else None.
        embedded: whether this client may start it.
    """

    url: str
    origin: str
    socket_path: str | None = None
    embedded: bool = False

    @property
    def is_secure(self) -> bool:
        """Whether a W&B key may travel there."""
        return self.origin.startswith("https://")

    @property
    def is_loopback(self) -> bool:
        """Whether a proxy from the environment must not be used."""
        if self.socket_path is not None:
            return True
        import ipaddress

        host = urlsplit(self.origin).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def proxy_of(endpoint: Endpoint) -> str | None:
    """The proxy that the environment names for this server. Not aiohttp's `trust_env`: it would also send netrc passwords."""
    if endpoint.is_loopback:
        return None
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(endpoint.origin)
    proxies = getproxies()
    if proxy_bypass(parts.hostname or ""):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def choose(base_url: str | None, defaults_base_url: str | None) -> str:
    """The base URL in effect by precedence; `EMBEDDED` where nobody named a server.

    Raises:
        AviatoValidationError: the winner is no URL that a client understands.
    """
    for value, origin in (
        (base_url, "base_url"),
        (defaults_base_url, "SandboxDefaults.base_url"),
        (os.environ.get(BASE_URL_VARIABLE) or None, BASE_URL_VARIABLE),
    ):
        if value is not None:
            _check(value, origin)
            return value
    return EMBEDDED


def endpoint(base_url: str) -> Endpoint:
    """The endpoint of a base URL that `choose` gave; for the embedded server this computes its folder."""
    if base_url == EMBEDDED:
        from aviato.transport import embedded

        path = embedded.socket_path()
        return Endpoint(f"unix://{path}", "http://localhost", path, embedded=True)
    parts = urlsplit(base_url)
    if parts.scheme == "unix":
        return Endpoint(base_url, "http://localhost", unquote(parts.path))
    return Endpoint(base_url, base_url.rstrip("/"))


def _check(value: str, origin: str) -> None:
    if value == EMBEDDED:
        return
    if not isinstance(value, str):
        raise TypeError(f"{origin} must be a str, not {type(value).__name__}")
    try:
        value.encode()
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise _invalid(origin, value, str(error)) from None
    if parts.username is not None or parts.password is not None:
        raise AviatoValidationError(
            f"{origin} must not hold credentials; put the key into AVIATO_API_KEY",
            field_violations={"base_url": "holds credentials"},
        )
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise _invalid(origin, value, "a socket is written unix:///absolute/path")
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid(origin, value, "use http://host:port, https://host or unix:///absolute/path")


def _invalid(origin: str, value: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"{origin} is {value!r}: {why}", field_violations={"base_url": why})
