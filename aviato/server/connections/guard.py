"""Who is let in, and as whom."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from aviato.exceptions import AviatoAuthenticationError, SandboxResourceExhaustedError, SandboxUnavailableError
from aviato.server.callers import OPERATOR, Caller, Key, parse_key
from aviato.server.connections.rate_limit import RateLimit
from aviato.server.peers import peer_uid
from aviato.wire.credentials import WANDB_KEY_HEADER
from aviato.wire.session import PATH as SESSION_PATH
from aviato.wire.version import OLDEST_WIRE_VERSION, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from aviato.server.connections.wandb_keys import WandbKeys

UPKEEP = frozenset({"/v1/leases/{lease_id}", "/v1/acknowledgements"})
"""What clients send by themselves: sandboxes would be lost if it waited behind what their programs ask."""
UPKEEP_PER_SECOND = 1000.0


def check_version(headers: Mapping[str, str]) -> None:
    """Hold the versions of the wire together; a request that names none is taken for a current one.

    Raises:
        SandboxUnavailableError: this server does not serve that version.
    """
    said = headers.get(WIRE_HEADER)
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


def hash_key(key: str) -> str:
    """What is stored of an API key."""
    # As it came in a header, where any byte can stand.
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


class Guard:
    """Lets in whom the server knows.

    Over a Unix socket that is the server's own uid and root; over TCP whoever has a key, under a host name that is ours.

    Args:
        keys: hashes of the API keys, each with what it is limited to behind it, as `parse_key` reads them.
        hosts: names under which the server may be asked for, beside `localhost`, the machine's name and IP addresses; `*.name`
            is all below it.
        wandb: tells who has a W&B key; None refuses these.
    """

    def __init__(self, keys: Iterable[str] = (), hosts: Iterable[str] = (), wandb: WandbKeys | None = None) -> None:
        self._keys = [parse_key(line) for line in keys]
        self._rate_limits = {
            key.hash: RateLimit(key.requests_per_second) for key in self._keys if key.requests_per_second is not None
        }
        self._upkeep = {
            key_hash: RateLimit(max(UPKEEP_PER_SECOND, rate_limit.per_second))
            for key_hash, rate_limit in self._rate_limits.items()
        }
        self._named = ("localhost", socket.gethostname(), *hosts)
        self.set_certificate_names(())
        self._wandb = wandb
        self.challenge = 'Bearer, Basic realm="aviato"' + ("" if wandb is None else ", WandB")
        """What a caller that is not let in could bring."""
        self._known: WeakSet[asyncio.BaseTransport] = WeakSet()
        self.let_in: set[asyncio.BaseTransport] = set()
        """Connections over TCP that have brought a key; who looks after them takes those out that have gone."""

    def set_certificate_names(self, names: Iterable[str]) -> None:
        """Take these as names of the server, too, in place of those of an earlier certificate."""
        named = [*self._named, *names]
        self._hosts = {name.lower() for name in named if not name.startswith("*.")}
        self._domains = tuple(name[1:].lower() for name in named if name.startswith("*."))

    async def check(
        self, transport: asyncio.BaseTransport | None, headers: Mapping[str, str], route: str | None, path: str = ""
    ) -> Caller:
        """See whether a request may come in, and who asks.

        Args:
            transport: of its connection; None once that is gone.
            headers: of the request, or of the one that has opened its session.
            route: that it is for, as the description has it; None is none.
            path: that it is for, for messages.

        Raises:
            AviatoAuthenticationError: it may not.
            SandboxResourceExhaustedError: not so soon.
            SandboxUnavailableError: this server does not serve that version, or W&B does not say whose the key is.
            ConnectionError: its connection is gone.
        """
        check_version(headers)
        return await self.caller(transport, headers, route, path)

    async def caller(
        self, transport: asyncio.BaseTransport | None, headers: Mapping[str, str], route: str | None, path: str = ""
    ) -> Caller:
        """As `check`, of a request whose version was looked at, such as one of a session that is open."""
        if transport is None:
            raise ConnectionResetError("its caller has gone")
        if transport in self._known:
            return OPERATOR
        uid = peer_uid(transport)
        if uid is None:
            return await self._check_tcp(transport, headers, route, path)
        if uid not in (0, os.getuid()):
            raise AviatoAuthenticationError(f"this socket is for uid {os.getuid()} only, the caller is {uid}")
        self._known.add(transport)
        return OPERATOR

    async def _check_tcp(
        self, transport: asyncio.BaseTransport, headers: Mapping[str, str], route: str | None, path: str
    ) -> Caller:
        host = _name_of(f"//{headers.get('Host', '')}")
        if not self._is_ours(host):
            why = f"the Host header names {host!r}, which is no name of this server; --allowed-host of `aviato serve` adds one"
            raise AviatoAuthenticationError(why, reason="host")
        _refuse_pages(headers)
        text = _key_of(headers.get("Authorization", ""))
        if text is None and WANDB_KEY_HEADER in headers and self._wandb is not None:
            caller = await self._wandb.caller(headers)
            self.let_in.add(transport)
            return caller
        if text is None:
            wandb = " W&B keys are not accepted here." if WANDB_KEY_HEADER in headers else ""
            raise AviatoAuthenticationError(f"an API key is needed: set AVIATO_API_KEY.{wandb}")
        key = self._known_key(text)
        self.let_in.add(transport)
        if key.routes and route not in key.routes and route != SESSION_PATH:  # Each request of a session is looked at.
            allowed = ", ".join(sorted(key.routes))
            raise AviatoAuthenticationError(f"this API key is for {allowed} only, not for {path!r}", reason="route")
        self._keep_rate(key, route)
        return key.caller

    def _known_key(self, text: str) -> Key:
        given = hash_key(text)
        # All of them are compared, so that the time says nothing of where one stands.
        found = [key for key in self._keys if hmac.compare_digest(given, key.hash)]
        if not found:
            raise AviatoAuthenticationError("the API key is not known to this server")
        return found[0]

    def _keep_rate(self, key: Key, route: str | None) -> None:
        rate_limit = (self._upkeep if route in UPKEEP else self._rate_limits).get(key.hash)
        if rate_limit is not None and (seconds := rate_limit.take(time.monotonic())):
            raise SandboxResourceExhaustedError(
                f"this API key may send {rate_limit.per_second:g} requests a second",
                reason="rate_limit",
                retry_delay_seconds=seconds,
            )

    def _is_ours(self, host: str | None) -> bool:
        if host is None:
            return False
        host = host.removesuffix(".")
        if host in self._hosts or host.endswith(self._domains):
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def _refuse_pages(headers: Mapping[str, str]) -> None:
    """Browsers send what they know of a login, Basic's key included, for any page: also for one that a sandbox serves.

    Raises:
        AviatoAuthenticationError: the request is of a page that is not the server's own.
    """
    origin = headers.get("Origin")
    if origin is not None and _authority(origin, origin) != _authority(f"//{headers.get('Host', '')}", origin):
        raise AviatoAuthenticationError(f"requests from pages of {origin!r} are refused", reason="origin")
    # Pictures and scripts of a page come without an Origin.
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        raise AviatoAuthenticationError("requests from pages of other origins are refused", reason="origin")


def _authority(url: str, origin: str) -> tuple[str, int] | None:
    """Host and port; where none is said, that of the origin's scheme."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if origin.startswith("https:") else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


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
