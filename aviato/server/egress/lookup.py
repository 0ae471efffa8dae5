"""Names into addresses, by the machine's own resolver, in threads of its own: names that hang hold up nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING

from aviato.values import hosts

if TYPE_CHECKING:
    from aviato.server.egress.policy import Address

THREADS = 64
LOOKUPS_A_SANDBOX = 4
"""At once: a sandbox whose names hang leaves threads for others."""
SECONDS = 10.0


class Lookup:
    """Finds the addresses of hosts."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="aviato-egress")

    async def addresses(self, host: str, asker: asyncio.Semaphore) -> list[Address]:
        """The addresses of a canonical host, each once, best first.

        Args:
            host: a name or an address.
            asker: of the sandbox; it is held until the resolver is done, however long somebody waits for that here.

        Raises:
            socket.gaierror: it has none.
            TimeoutError: nobody says.
        """
        if hosts.is_address(host):
            return [ip_address(host)]
        loop = asyncio.get_running_loop()

        def over(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # The server is gone.
                loop.call_soon_threadsafe(asker.release)

        async with asyncio.timeout(SECONDS):
            await asker.acquire()
            try:
                asked = self._threads.submit(self.resolve, host)
            except BaseException:
                asker.release()
                raise
            asked.add_done_callback(over)
            found = await asyncio.wrap_future(asked)
        return list(dict.fromkeys(map(ip_address, found)))

    def resolve(self, host: str) -> list[str]:
        """Ask the machine's resolver; blocks."""
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)
