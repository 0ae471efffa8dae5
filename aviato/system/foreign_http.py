"""How files are asked of the servers of others: as the bytes that they are, without cookies, and following nobody unseen."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

_SENDS_ON = frozenset({301, 302, 303, 307, 308})


def foreign_session(connector: aiohttp.BaseConnector, *, connect_seconds: float, stall_seconds: float) -> aiohttp.ClientSession:
    """Connections to such servers. Requests name their proxy and take `allow_redirects=False`; see `sent_on_to`.

    Args:
        connector: makes them.
        connect_seconds: for a connection.
        stall_seconds: for each next byte. How long all of an answer may take is up to the caller.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=stall_seconds),
        auto_decompress=False,  # Digests are of the bytes as they are.
        headers={"Accept-Encoding": "identity", "User-Agent": "aviato"},
    )


def sent_on_to(answer: aiohttp.ClientResponse) -> str | None:
    """Where an answer sends who asked, as it says it; None: it is an answer itself. The caller decides whether to go there."""
    return answer.headers.get("Location") if answer.status in _SENDS_ON else None


def moment(said: str | None) -> float | None:
    """A date of a header, in seconds since the epoch; None: there is none."""
    try:
        return None if said is None else parsedate_to_datetime(said).timestamp()
    except (ValueError, OverflowError):
        return None
