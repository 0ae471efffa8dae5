"""Files of the web, fetched by whoever builds an image: bounded, and from nowhere that only this machine should be asked by."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.system.foreign_http import foreign_session, moment, sent_on_to
from aviato.system.proxies import proxy_of
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import IO

    import aiohttp
    from yarl import URL

MOST_BYTES = 4 << 30
"""Of one file: no sandbox can have a larger one."""
MOST_SECONDS = 1800.0
STALL_SECONDS = 30.0
"""For a connection, an answer, and each next byte."""
MOST_REDIRECTS = 10
ATTEMPTS = 3
BACKOFF_SECONDS = 0.5
_PIECE_BYTES = 1 << 20


class DownloadError(ValueError):
    """A file cannot be had.

    Attributes:
        may_pass: by itself.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


@dataclass(frozen=True)
class Download:
    """A file that is here.

    Attributes:
        digest: `sha256:…`.
        size_bytes: of it.
        mtime: as its server says; 0: it says nothing.
    """

    digest: str
    size_bytes: int
    mtime: int


async def download(url: str, path: str) -> Download:
    """Fetch a file.

    Args:
        url: of http or https. Where it leads on is followed: from a public address to public ones alone. Link-local
            ones, where clouds tell of their machines, are asked for nothing.
        path: of the file that it becomes.

    Raises:
        DownloadError: it cannot be had, is too large, or takes too long.
        OSError: the file cannot be written.
    """
    for attempt in range(ATTEMPTS):
        try:
            async with asyncio.timeout(MOST_SECONDS):
                return await _fetch(url, path)
        except DownloadError as error:
            if not error.may_pass or attempt == ATTEMPTS - 1:
                raise
        except TimeoutError:
            raise DownloadError(f"it had not come whole after {MOST_SECONDS:g} seconds") from None
        await asyncio.sleep(BACKOFF_SECONDS * 2**attempt)
    raise AssertionError


async def _fetch(url: str, path: str) -> Download:
    file = await in_thread(open, path, "wb")
    try:
        async with _answered(url) as answer:
            size = answer.content_length
            if size is not None and size > MOST_BYTES:
                raise DownloadError(f"it is larger than {MOST_BYTES} bytes")
            digest, count = hashlib.sha256(), 0
            while piece := await answer.content.read(_PIECE_BYTES):
                count += len(piece)
                if count > MOST_BYTES:
                    raise DownloadError(f"it is larger than {MOST_BYTES} bytes")
                await in_thread(_write, file, digest, piece)
            return Download(f"sha256:{digest.hexdigest()}", count, _mtime(answer))
    finally:
        await in_thread(file.close)


def _write(file: IO[bytes], digest: Any, piece: bytes) -> None:
    digest.update(piece)
    file.write(piece)


@asynccontextmanager
async def _answered(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer that is the file."""
    import aiohttp
    from yarl import URL

    places = _Places()
    connector = aiohttp.TCPConnector(resolver=places.resolver(), force_close=True)
    try:
        async with foreign_session(connector, connect_seconds=STALL_SECONDS, stall_seconds=STALL_SECONDS) as session:
            target = URL(url)
            for _ in range(MOST_REDIRECTS + 1):
                places.look(target)
                async with session.get(target, allow_redirects=False, proxy=proxy_of(str(target))) as answer:
                    location = sent_on_to(answer)
                    if location is None:
                        _check(answer)
                        yield answer
                        return
                    target = _onward(target, location)
                places.go_on()
    except TimeoutError:
        raise DownloadError(f"its server is silent for {STALL_SECONDS:g} seconds", may_pass=True) from None
    except ValueError as error:
        if isinstance(error, DownloadError):
            raise
        raise DownloadError(f"it is no URL: {error}") from None
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(refused := error.__cause__, _NotThere) or isinstance(refused := error, _NotThere):
            raise DownloadError(str(refused)) from None
        raise DownloadError(f"it cannot be fetched: {error}", may_pass=True) from error
    raise DownloadError(f"its server sends on more than {MOST_REDIRECTS} times")


def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        passing = answer.status == 429 or answer.status >= 500
        said = f"{answer.status} {answer.reason or ''}".strip()
        raise DownloadError(f"its server answers {said}", may_pass=passing)


def _onward(at: URL, location: str) -> URL:
    from yarl import URL

    try:
        target = at.join(URL(location))
        target.origin()
    except ValueError:
        raise DownloadError("its server sends on to what is no URL") from None
    if target.scheme not in ("http", "https"):
        raise DownloadError(f"its server sends on to a URL of {target.scheme}")
    return target


def _mtime(answer: aiohttp.ClientResponse) -> int:
    return max(0, int(moment(answer.headers.get("Last-Modified")) or 0))


class _NotThere(OSError):
    """Nothing is fetched from an address."""


class _Places:
    """The addresses that one file may come from."""

    def __init__(self) -> None:
        self._is_first = True
        self._begun_in_public = False

    def look(self, url: URL) -> None:
        """The host of a URL may be an address itself, which no resolver is asked for."""
        try:
            address = ipaddress.ip_address(url.host or "")
        except ValueError:
            return
        self.take([str(address)])

    def go_on(self) -> None:
        """What comes now is where a server has sent on to."""
        self._is_first = False

    def take(self, addresses: list[str]) -> None:
        """Addresses of a host."""
        found = [ipaddress.ip_address(one.partition("%")[0]) for one in addresses]
        plain = [getattr(one, "ipv4_mapped", None) or one for one in found]
        if any(one.is_link_local for one in plain):
            raise _NotThere("it is at a link-local address, from which nothing is fetched")
        is_public = all(one.is_global for one in plain)
        if self._is_first:
            self._begun_in_public = is_public
        elif self._begun_in_public and not is_public:
            raise _NotThere("its server, which is public, sends on to an address that is not")

    def resolver(self) -> aiohttp.abc.AbstractResolver:
        """Finds those addresses alone."""
        from aviato.transport.aiohttp_session import Resolver

        places = self

        class Looked(Resolver):
            async def resolve(self, host: str, port: int = 0, family: Any = 0) -> Any:
                found = await super().resolve(host, port, family)
                places.take([one["host"] for one in found])
                return found

        return Looked()
