"""TLS of the TCP listener."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.settings import ServerSettings

log = logging.getLogger(__name__)

_NO_CHECK_TIME = 0x200000
"""`X509_V_FLAG_NO_CHECK_TIME` of OpenSSL, which Python does not name."""
LOOK_SECONDS = 10.0
"""How often the files are looked at: certificates are replaced every few weeks, long before they expire."""


class Tls:
    """A certificate and its key, read again when their files change.

    Args:
        cert, key: their files.

    Raises:
        AviatoValidationError: they cannot be used; the message names the flag.
    """

    def __init__(self, cert: str, key: str) -> None:
        self._cert, self._key = cert, key
        self._seen = self._look()
        self.context = _context(cert, key)

    def names(self) -> tuple[str, ...]:
        """The DNS names of the certificate; none where it does not say."""
        return _names(self.context, self._cert)

    async def keep_fresh(self, on_names: Callable[[tuple[str, ...]], None]) -> None:
        """Read the files again whenever they have changed. New connections get what is new, and `on_names` its names."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.read_again(on_names)

    def read_again(self, on_names: Callable[[tuple[str, ...]], None]) -> None:
        """Take up the files if they have changed. Where they do not go together (yet) all stays as it is."""
        seen = self._look()
        if seen == self._seen:
            return
        try:
            # First elsewhere: a context that fails halfway would have a certificate without its key.
            _context(self._cert, self._key)
            self.context.load_cert_chain(self._cert, self._key, _no_password)
        except (AviatoValidationError, OSError) as error:
            log.error("the certificate was replaced and cannot be used; the one before is still in use: %s", error)
        else:
            log.info("the certificate was replaced")
            on_names(self.names())
        self._seen = seen

    def _look(self) -> list[tuple[int, int, int, int]]:
        found = []
        for path in (self._cert, self._key):
            with suppress(OSError):
                status = os.stat(path)
                # Another owner or mode, too: what could not be read may be readable now.
                found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return found


def tls_of(settings: ServerSettings) -> Tls | None:
    """The certificate and key that the settings name; None if they name none.

    Raises:
        AviatoValidationError: they cannot be used; the message names the flag.
    """
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
        raise _wrong(missing, f"is missing: {settings.source(given)} needs it")
    if settings.port is None:
        raise _wrong("tls_cert", "is for a TCP listener: give --port too")
    return Tls(cert, key)


def _context(cert: str, key: str) -> ssl.SSLContext:
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise _wrong(name, f"{path!r} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, _no_password)
    except ssl.SSLError as error:
        why = f"{cert!r} and --tls-key {key!r} are no certificate and its key in PEM ({error.reason or 'not readable'})"
        raise _wrong("tls_cert", why) from None
    return context


def _names(context: ssl.SSLContext, cert: str) -> tuple[str, ...]:
    """What a client that trusts this very certificate reads in it: Python reads certificates in a handshake only."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    # An expired certificate is soon renewed, and some clients do not mind.
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trusting.load_verify_locations(cert)
        client, server = trusting.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
        for _ in range(4):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        found = client.getpeercert() or {}
    except (OSError, ValueError) as error:
        log.warning("the names of the certificate %r cannot be read (%s): give --allowed-host for each", cert, error)
        return ()
    return tuple(str(entry[1]) for entry in found.get("subjectAltName", ()) if entry[0] == "DNS")


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise _wrong("tls_key", "is encrypted; the server needs one without a password")


def _wrong(name: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"--{name.replace('_', '-')} {why}", field_violations={name: why})
