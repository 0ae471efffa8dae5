"""TLS of the TCP listener."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from aviato.server.settings import ServerSettings


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The certificate and key that the settings name; None if they name none.

    Raises:
        AviatoValidationError: they cannot be used; the message names the flag.
    """
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        given, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
        raise _wrong(missing, f"is missing: --{given.replace('_', '-')} needs it")
    if settings.port is None:
        raise _wrong("tls_cert", "is for a TCP listener: give --port too")
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


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise _wrong("tls_key", "is encrypted; the server needs one without a password")


def _wrong(name: str, why: str) -> AviatoValidationError:
    return AviatoValidationError(f"--{name.replace('_', '-')} {why}", field_violations={name: why})
