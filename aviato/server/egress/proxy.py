"""The proxy: one request a connection, checked twice, passed on to the address that was checked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

from aviato.server.egress.bodies import send_bytes, send_chunks
from aviato.server.egress.own import is_own
from aviato.server.egress.policy import plain, reached
from aviato.server.egress.requests import Malformed, parse_answer, parse_request
from aviato.server.egress.streams import Stream
from aviato.server.port_relay import relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.egress.lookup import Lookup
    from aviato.server.egress.policy import Address, Policy
    from aviato.server.egress.requests import Request

HEAD_SECONDS = 20.0
CONNECT_SECONDS = 10.0
"""For each address."""
MAX_ADDRESSES = 6
MAX_LOOKED_AT = 32
"""Of those that a name has: whoever answers for it may say thousands."""
IDLE_SECONDS = 900.0
"""How long neither side of a connection may say anything: models that think are silent for minutes."""
MAX_INTERIM = 8
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
MAX_PHRASE_CHARACTERS = 300
NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)
MAX_WHY_CHARACTERS = 1000
"""In the log and in an answer."""


class Refused(Exception):
    """A request that is not passed on.

    Attributes:
        status: of the answer.
        verdict: what the log says of it.
        detail: for the log alone: the addresses of internal names are nobody's business inside.
    """

    def __init__(self, status: str, why: str, verdict: str, detail: str | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.verdict = verdict
        self.detail = detail


@dataclass(kw_only=True)
class Visit:
    """One request, as the log has it.

    Attributes:
        verdict: `passed`, `refused`, `unreachable` or `malformed`.
    """

    method: str | None = None
    host: str | None = None
    port: int | None = None
    address: str | None = None
    verdict: str = "passed"
    why: str | None = None
    status: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    at: float = field(default_factory=time.time)

    def entry(self) -> dict[str, Any]:
        """As a line of the log; what is not known is left out."""
        values = {name: value for name, value in vars(self).items() if value is not None and name != "at"}
        if self.why is not None:
            values["why"] = self.why[:MAX_WHY_CHARACTERS]
        return {"at": round(self.at, 3), **values, "seconds": round(max(0.0, time.time() - self.at), 3)}


class Proxy:
    """Serves connections of one sandbox.

    Args:
        policy: what it may connect to.
        lookup: of names.
        asker: bounds its lookups.
        note: is told of each request when it is over.
    """

    def __init__(
        self, policy: Policy, lookup: Lookup, asker: asyncio.Semaphore, note: Callable[[dict[str, Any]], None]
    ) -> None:
        self._policy = policy
        self._lookup = lookup
        self._asker = asker
        self._note = note
        self._pace = asyncio.Lock()

    async def serve(self, sock: socket.socket) -> None:
        """Serve one connection until it is over. Owns the socket."""
        visit = Visit()
        client = Stream(sock, IDLE_SECONDS)
        noted = False
        try:
            head = await client.head(HEAD_SECONDS)
            if not head:
                noted = True  # Somebody looked whether there is a proxy.
                return
            request = parse_request(head)
            visit.method, visit.host, visit.port = request.method, request.host, request.port
            host = Stream(await self._connect(request, visit), IDLE_SECONDS)
            if request.method == "CONNECT":
                await self._tunnel(client, host, visit)
            else:
                await self._pass_on(client, host, request, visit)
        except Malformed as error:
            visit.verdict, visit.why = "malformed", str(error)
            await self._answer(client, visit, error.status, f"this is a proxy, and {error}")
        except Refused as error:
            visit.verdict, visit.why = error.verdict, error.detail or str(error)
            await self._answer(client, visit, error.status, str(error))
        except OSError as error:
            visit.why = visit.why or f"broken off: {error.strerror or type(error).__name__}"
            client.reset()
        except asyncio.CancelledError:
            visit.why = visit.why or "cut: the sandbox or the server ended"
            raise
        finally:
            sock.close()
            if not noted:
                self._note(visit.entry())

    # -- the way out

    async def _connect(self, request: Request, visit: Visit) -> socket.socket:
        """A connection to an address of the host that nobody refuses."""
        why = self._policy.refuse_host(request.host, request.port)
        if why is not None:
            raise Refused("403 Forbidden", why, "refused")
        try:
            found = await self._lookup.addresses(request.host, self._asker)
        except TimeoutError:
            raise Refused("504 Gateway Timeout", f"nobody says which address {request.host} has", "unreachable") from None
        except (OSError, ValueError) as error:
            text = getattr(error, "strerror", None) or str(error)
            told = f"{request.host} has no address: {text}"
            if self._policy.hosts is None and getattr(error, "errno", None) in NO_SUCH_NAME:
                # As of a name that has a private one: nobody learns here which internal names there are.
                raise Refused("403 Forbidden", _none_allowed(request.host), "unreachable", told) from None
            raise Refused("502 Bad Gateway", told, "unreachable") from None
        refusals, good = [], []
        for address in found[:MAX_LOOKED_AT]:
            try:
                refusal = self._policy.refuse_address(address) or self._refuse_own(address)
            except OSError as error:
                refusal = f"nobody can say whose {address} is: {error.strerror}"
            if refusal is None:
                good.append(address)
            else:
                refusals.append(refusal)
        if not good:
            detail = "; ".join(refusals[:MAX_ADDRESSES]) or None
            raise Refused("403 Forbidden", _none_allowed(request.host), "refused", detail)
        return await self._dial(good[:MAX_ADDRESSES], request, visit)

    def _refuse_own(self, address: Address) -> str | None:
        """The machine's own addresses are as good as its loopback, public ones too."""
        if self._policy.names_own(address) or not (is_own(address) or is_own(reached(address))):
            return None
        return f"{address} is the server's own"

    async def _dial(self, addresses: list[Address], request: Request, visit: Visit) -> socket.socket:
        status, problem = "502 Bad Gateway", ""
        for address in map(plain, addresses):
            visit.address = str(address)
            try:
                return await _open(address, request.port)
            except TimeoutError:
                status, problem = "504 Gateway Timeout", "it does not answer"
            except OSError as error:
                status, problem = "502 Bad Gateway", os.strerror(error.errno) if error.errno else str(error)
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    break
        raise Refused(status, f"{request.host} cannot be reached at port {request.port}: {problem}", "unreachable")

    # -- passing on

    async def _tunnel(self, client: Stream, host: Stream, visit: Visit) -> None:
        visit.status = 200
        try:
            await client.send(ESTABLISHED)
        except BaseException:
            host.reset()
            raise
        early = client.taken()
        visit.sent_bytes, visit.received_bytes = await relay(client.sock, host.sock, first=early, idle_seconds=IDLE_SECONDS)

    async def _pass_on(self, client: Stream, host: Stream, request: Request, visit: Visit) -> None:
        """One request and its answer; both ways at once, since an answer may come before all of the request is sent."""
        gone = asyncio.create_task(self._send(client, host, request), name="a request to the network")
        answering = asyncio.create_task(self._receive(client, host, visit), name="an answer of the network")
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                gone.result()  # The client is gone; or its request is malformed.
                return
            answering.result()
        finally:
            for task in (gone, answering):
                task.cancel()
            try:
                await asyncio.gather(gone, answering, return_exceptions=True)
            finally:  # The sandbox may end just now. Both tasks are over even so: a gather that is cancelled waits for them.
                visit.sent_bytes, visit.received_bytes = host.sent, host.received
                host.sock.close()
        await client.leave()

    async def _send(self, client: Stream, host: Stream, request: Request) -> None:
        """Send a request, and no byte beyond it. Returns once the client is gone."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await host.send(request.head)
            if request.body == "chunked":
                await send_chunks(client, host, self._pace)
            else:
                await send_bytes(client, host, request.body)
        # What comes now was not asked for: it stays where it is, and so does its sender.
        if not client.taken() and not await asyncio.get_running_loop().sock_recv(client.sock, 1):
            return
        await asyncio.Event().wait()

    async def _receive(self, client: Stream, host: Stream, visit: Visit) -> None:
        """Send the answer to the client."""
        for _ in range(MAX_INTERIM):
            try:
                head = await host.head(IDLE_SECONDS)
                if not head:
                    raise Malformed("there is none")
                answer = parse_answer(head, visit.method or "")
            except Malformed as error:
                raise Refused("502 Bad Gateway", f"the answer of {visit.host} cannot be read: {error}", "unreachable") from None
            visit.status = answer.status
            await client.send(answer.head)
            if not answer.interim:
                break
        else:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the host never comes to its answer")
        left = answer.length
        while left != 0 and (data := await host.some()):
            await client.send(data[:left])
            left = None if left is None else max(0, left - len(data))
        if left:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the answer breaks off")

    async def _answer(self, client: Stream, visit: Visit, status: str, why: str) -> None:
        """Say why not. Tools show the phrase behind the number, and of a refused CONNECT little else."""
        if visit.status is not None:  # The answer had begun.
            client.reset()
            return
        visit.status = int(status[:3])
        text = "".join(character if " " <= character <= "~" else "?" for character in why[:MAX_WHY_CHARACTERS])
        body = f"aviato: {text}\n"
        head = (
            f"HTTP/1.1 {status}: {text[:MAX_PHRASE_CHARACTERS]}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            await client.send((head if visit.method == "HEAD" else head + body).encode("ascii"))
            await client.leave()


def _none_allowed(host: str) -> str:
    return f"{host} has no address that a sandbox may connect to"


async def _open(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Whoever is gone without a word is noticed after some minutes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock
