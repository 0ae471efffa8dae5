"""Requests to a registry over HTTP: patient for a bounded while, and with credentials for whom they are for alone."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aviato.exceptions import SandboxImageError
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.registry_tokens import LARGEST_ANSWER_BYTES, Answer, RegistryTokens, login, read_challenges
from aviato.system.foreign_http import foreign_session, moment, sent_on_to
from aviato.system.proxies import proxy_of
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aiohttp
    from yarl import URL

    from aviato.server.images.patience import Patience

MOST_REDIRECTS = 5
ANSWER_SECONDS = 300.0
"""How long a registry may think about what it was sent: it may put it into a store of somebody else's."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """What is sent.

    Attributes:
        size_bytes: of it.
        pieces: gives it from its beginning; called for each attempt.
    """

    size_bytes: int
    pieces: Callable[[], AsyncIterator[bytes]]


class RegistryRequests:
    """Requests for one repository at one host.

    Args:
        base: scheme, host and port; None of the scheme means https, and http where a loopback host speaks only that.
        host: for messages.
        tokens: makes what is said of who asks, from what asks a token server.
        patience: with it.
        pushes: whether images are put there, for messages.
    """

    def __init__(
        self,
        base: str,
        host: str,
        tokens: Callable[[RegistryRequests], Awaitable[RegistryTokens]],
        patience: Patience,
        *,
        pushes: bool = False,
    ) -> None:
        self._pushes = pushes
        self._base = base
        self._host = host
        self._make_tokens = tokens
        self._tokens: RegistryTokens | None = None
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()

    async def get(
        self, path: str, headers: dict[str, str], *, method: str = "GET", body: Body | None = None
    ) -> aiohttp.ClientResponse:
        """An answer that is no 401, no 429, no 5xx and no redirect; close it.

        Args:
            path: at the registry; or the URL of somewhere else, as `onward` gave it, which gets no credentials.
            headers: of the request.
            method: of the request.
            body: of the request. With one there is one attempt only: who takes it may have taken a part of it.

        Raises:
            SandboxImageError: there is none.
        """
        async with self._lock:
            if self._tokens is None:
                self._base = await self._with_scheme()
                self._tokens = await self._make_tokens(self)
        attempts = self._patience.attempts if body is None else 1
        return await self._patiently(lambda: self._asked(path, headers, method, body), attempts, f"the registry {self._host}")

    def onward(self, response: aiohttp.ClientResponse) -> str:
        """Where an answer says that it goes on.

        Raises:
            SandboxImageError: nowhere, or to where nobody is sent.
        """
        location = response.headers.get("Location")
        if location is None:
            raise image_error("not_a_registry", f"the registry {self._host} does not say where an upload goes")
        return str(self._located(response.url, location))

    async def ask_for_token(
        self, url: str, *, query: dict[str, str] | None, form: dict[str, str] | None, login: str | None
    ) -> Answer:
        """See `Ask`: passwords go over https, or to this machine."""
        from yarl import URL

        try:
            target = URL(url).update_query(query or {})
        except ValueError:
            target = URL()
        if not self._may_send_to(target):
            said = f"the registry {self._host} has its tokens at {quoted(url)}, which is no https: address of another machine"
            raise image_error("not_a_registry", said)
        headers = {"Authorization": login} if login else {}
        response = await self._patiently(
            lambda: self._send(target, headers, "POST" if form else "GET", form),
            self._patience.attempts,
            f"the token server of {self._host}",
        )
        try:
            return Answer(response.status, await self.read(response, LARGEST_ANSWER_BYTES, f"the token of {self._host}"))
        finally:
            response.close()

    async def read(self, response: aiohttp.ClientResponse, most_bytes: int, what: str) -> bytes:
        """A small body.

        Raises:
            SandboxImageError: it is too large, or does not come.
        """
        data = bytearray()
        while piece := await self.next_piece(response):
            data += piece
            if len(data) > most_bytes:
                raise image_error("manifest_too_large", f"{what} is larger than {most_bytes >> 20} MiB")
        return bytes(data)

    async def next_piece(self, response: aiohttp.ClientResponse) -> bytes:
        """The next bytes of a body; none at its end.

        Raises:
            SandboxImageError: `stalled` or `interrupted`.
        """
        import aiohttp

        try:
            return await response.content.readany()
        except TimeoutError:
            raise self._stalled() from None
        except (aiohttp.ClientError, OSError) as error:
            raise image_error("interrupted", f"the registry {self._host} broke off: {_said(error)}") from error

    async def close(self) -> None:
        """End its connections."""
        if self._session is not None:
            await self._session.close()

    async def _patiently(
        self, ask: Callable[[], Awaitable[aiohttp.ClientResponse]], attempts: int, who: str
    ) -> aiohttp.ClientResponse:
        """An answer that is no 429 and no 5xx."""
        attempt = 0
        while True:
            response = await ask()
            if response.status != 429 and response.status < 500:
                return response
            wait = _retry_after(response.headers.get("Retry-After"))
            response.close()
            attempt += 1
            if attempt >= attempts or (wait or 0.0) > self._patience.most_wait_seconds:
                raise self._refused(who, response.status, wait)
            await asyncio.sleep(self._patience.backoff(attempt - 1) if wait is None else wait)

    async def _asked(self, path: str, headers: dict[str, str], method: str, body: Body | None) -> aiohttp.ClientResponse:
        from yarl import URL

        if path.startswith("/"):
            return await self._authorized(URL(f"{self._base}{path}"), headers, method, body)
        target = URL(path, encoded=True)
        if target.origin() == URL(self._base).origin():
            return await self._authorized(target, headers, method, body)
        return await self._redirected(target, headers, method, body)

    async def _authorized(self, url: URL, headers: dict[str, str], method: str, body: Body | None) -> aiohttp.ClientResponse:
        assert self._tokens is not None
        tokens = self._tokens
        for is_last in (False, True):
            header = tokens.header()
            response = await self._redirected(url, {**headers, **({"Authorization": header} if header else {})}, method, body)
            if response.status != 401:
                return response
            challenges = read_challenges(response.headers.getall("WWW-Authenticate", []))
            response.close()
            async with self._lock:
                # Another request may have got a token meanwhile.
                is_met = not is_last and (tokens.header() != header or await tokens.meet(challenges))
            if not is_met:
                break
        if tokens.has_credentials:
            wanted = "put an image there" if self._pushes else "have the image"
            raise image_error("denied", f"the registry {self._host} does not let these credentials {wanted}")
        why = "takes no images without credentials" if self._pushes else "has no such image, or asks for credentials"
        raise image_error("needs_credentials", f"the registry {self._host} {why}: {login(self._host)}")

    async def _redirected(self, target: URL, headers: dict[str, str], method: str, body: Body | None) -> aiohttp.ClientResponse:
        origin = target.origin()
        for _ in range(MOST_REDIRECTS):
            response = await self._send(target, headers, method, body=body)
            location = sent_on_to(response)
            if location is None:
                return response
            response.close()
            target = self._located(target, location)
            if target.origin() != origin:
                headers = {name: value for name, value in headers.items() if name != "Authorization"}
        raise image_error("not_a_registry", f"the registry {self._host} sends on again and again")

    def _located(self, at: URL, location: str) -> URL:
        """Where somebody is sent on to from somewhere."""
        from yarl import URL

        try:
            target = at.join(URL(location, encoded=True))
            origin = target.origin()
        except ValueError:
            raise image_error("not_a_registry", f"the registry {self._host} sends on to {quoted(location)}") from None
        if not self._may_send_to(target):
            raise image_error("not_a_registry", f"the registry {self._host} sends on to {quoted(origin)}")
        return target

    def _may_send_to(self, target: URL) -> bool:
        """Whether a registry may have this asked: over https, and nothing of this machine, unless the registry is there."""
        is_here = _is_loopback(urlsplit(self._base).hostname or "")
        return is_allowed(str(target)) and (is_here or not _is_loopback(target.host or ""))

    async def _send(
        self,
        url: URL,
        headers: dict[str, str],
        method: str,
        form: dict[str, str] | None = None,
        body: Body | None = None,
    ) -> aiohttp.ClientResponse:
        import aiohttp

        session = await self._opened()
        # Who was sent a part of a body may have taken it: that is not sent again here.
        for is_last in (False, True) if body is None else (True,):
            try:
                if body is not None:
                    return await self._send_body(session, url, headers, method, body)
                return await session.request(
                    method,
                    url,
                    headers=headers,
                    data=form,
                    proxy=proxy_of(str(url)),
                    allow_redirects=False,
                )
            except aiohttp.ConnectionTimeoutError:
                raise self._unreachable(f"no connection within {self._patience.connect_seconds:g} s") from None
            except TimeoutError:
                raise self._stalled() from None
            except aiohttp.InvalidURL as error:
                raise image_error("not_a_registry", f"the registry {self._host} has a wrong address: {quoted(error)}") from None
            except (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ClientProxyConnectionError) as error:
                raise self._unreachable(_said(error)) from error
            except aiohttp.ClientResponseError as error:
                raise image_error("not_a_registry", f"{self._host} does not answer by HTTP: {_said(error)}") from error
            except (aiohttp.ClientError, OSError) as error:
                # A connection that was kept may have ended just as it was taken again.
                if is_last:
                    raise image_error("interrupted", f"the registry {self._host} broke off: {_said(error)}") from error
        raise AssertionError("unreachable")

    async def _send_body(
        self, session: aiohttp.ClientSession, url: URL, headers: dict[str, str], method: str, body: Body
    ) -> aiohttp.ClientResponse:
        """Raises TimeoutError where nobody takes what is sent."""
        import aiohttp

        async with asyncio.timeout(self._patience.connect_seconds + self._patience.stall_seconds) as timer:
            return await session.request(
                method,
                url,
                headers={**headers, "Content-Length": str(body.size_bytes)},
                data=_paced(body.pieces(), timer, self._patience.stall_seconds),
                proxy=proxy_of(str(url)),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._patience.connect_seconds, sock_read=ANSWER_SECONDS
                ),
            )

    async def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import ssl

            import aiohttp

            authorities = await in_thread(ssl.create_default_context)
            if self._session is None:
                self._session = foreign_session(
                    aiohttp.TCPConnector(limit=8, ssl=authorities),
                    connect_seconds=self._patience.connect_seconds,
                    stall_seconds=self._patience.stall_seconds,
                )
        return self._session

    async def _with_scheme(self) -> str:
        """The base with its scheme."""
        if "://" in self._base:
            return self._base
        if _is_loopback(urlsplit(f"//{self._base}").hostname or ""):
            from yarl import URL

            try:
                (await self._send(URL(f"https://{self._base}/v2/"), {}, "GET")).close()
            except SandboxImageError as error:
                if error.reason not in ("registry_unreachable", "interrupted", "not_a_registry"):
                    raise
                # One that speaks https without a certificate that counts is not spoken to in clear.
                if not _is_by_certificate(error):
                    return f"http://{self._base}"
        return f"https://{self._base}"

    def _refused(self, who: str, status: int, wait: float | None) -> SandboxImageError:
        if status == 429:
            text = f"{who} takes no more requests for a while (HTTP 429); {login(self._host)}, or wait"
            return image_error("too_many_requests", text, retry_delay_seconds=wait)
        return image_error("registry_failed", f"{who} failed with HTTP {status}", retry_delay_seconds=wait)

    def _stalled(self) -> SandboxImageError:
        done = "sent and taken" if self._pushes else "sent"
        return image_error("stalled", f"the registry {self._host} has {done} nothing for {self._patience.stall_seconds:g} s")

    def _unreachable(self, why: str) -> SandboxImageError:
        return image_error("registry_unreachable", f"the registry {self._host} cannot be reached: {why}")


async def _paced(pieces: AsyncIterator[bytes], timer: asyncio.Timeout, stall_seconds: float) -> AsyncIterator[bytes]:
    """Pieces, each of which has so long to go out; then there is time for an answer."""
    now = asyncio.get_running_loop().time
    async for piece in pieces:
        timer.reschedule(now() + stall_seconds)
        yield piece
    timer.reschedule(now() + ANSWER_SECONDS)


def _retry_after(text: str | None) -> float | None:
    """Seconds, given as such or as a date."""
    if text is not None and text.strip().isdecimal():
        return float(text.strip()[:9])
    at = moment(text)
    return None if at is None else max(0.0, at - time.time())


def is_allowed(url: str) -> bool:
    """Whether a URL is of https, or of http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_by_certificate(error: SandboxImageError) -> bool:
    import aiohttp

    return isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError)


def _said(error: Exception) -> str:
    return quoted(str(error) or type(error).__name__)
