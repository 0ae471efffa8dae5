"""The server's end of the zygote, `aviato-init zygote`: starts it, asks it for sandboxes, notices its death."""

from __future__ import annotations

import array
import asyncio
import errno
import json
import logging
import os
import socket
import subprocess
from typing import IO, TYPE_CHECKING, Any

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.local import binary, requests, sealed, subordinate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)

END_SECONDS = 5.0
BURIAL_SECONDS = 1.0
LARGEST_ANSWER = 16 << 10
"""Memory of that size is at hand: each time that it were new memory it would cost more than the answer."""
GIVES_IDS = "--gives-ids"
"""Asks `aviato-init zygote` to be root of a user namespace with subordinate ids."""


_ENVIRONMENT: Mapping[str, str] = {}


class ZygoteDied(SandboxUnavailableError):
    """The zygote ended while it was asked for a sandbox."""


class Zygote:
    """One zygote process.

    Attributes:
        ids: how many users and groups a sandbox of an ordinary user has.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, ids: int = 1) -> None:
        self.ids = ids
        self._process = process
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._buried: dict[int, asyncio.Future[list[int]]] = {}
        self.number = 0
        """Of the last request."""
        self._sending: set[asyncio.Task[None]] = set()
        self._shares = False
        self.alive = True
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def start(cls, ranges: subordinate.Ranges | None = None) -> Zygote:
        """Run one, with an empty environment.

        Args:
            ranges: ids that it is to give to sandboxes. Where they cannot be mapped it gives none.
        """
        return cls(*await asyncio.to_thread(spawn, ranges))

    def ask(
        self,
        request: requests.Request | dict[str, Any],
        connection: socket.socket,
        content: IO[bytes] | None = None,
    ) -> asyncio.Future[tuple[int, int]]:
        """Ask for a sandbox. Where the zygote has room the request has left when this returns, so that it begins meanwhile.

        Args:
            request: what it is to be, by its fields or made from an example.
            connection: process 1's end of the first one.
            content: what its read-only files hold, one behind the other.

        Returns:
            What comes to its pid and a pidfd, which the caller owns, or to a `SandboxUnavailableError`: what the zygote
            could not do, or an `OSError`: this process has no descriptor left.

        Raises:
            SandboxUnavailableError: there is no zygote.
        """
        if not self.alive:
            raise ZygoteDied("the zygote process has ended", reason="start_failed")
        self.number += 1
        answer: asyncio.Future[tuple[int, int]] = self._loop.create_future()
        self._asked[self.number] = answer
        if isinstance(request, requests.Request):
            message = request.message(self.number)
        else:
            message = requests.message(request, self.number, content=content is not None)
        self._send_soon(message, [item.fileno() for item in (connection, content) if item is not None])
        return answer

    def share_processors(self, directory: str, unified: bool) -> None:
        """Have each sandbox from now on in a control group of its own; once. See `requests.sharing`."""
        if self.alive and not self._shares:
            self._shares = True
            self._send_soon(requests.sharing(directory, unified), [])

    async def bury(self, dead: Sequence[tuple[int, str, str]], late: Callable[[list[int]], None]) -> list[int]:
        """The requests of those whose layers another sandbox can have; nobody's without a zygote.

        Args:
            dead: see `requests.burial`.
            late: gets those of which the zygote says so when nobody waits for it any more.
        """
        if not self.alive:
            return []
        kept = []
        for first in range(0, len(dead), requests.MOST_BURIED):
            self.number += 1
            number = self.number
            answer = self._buried[number] = self._loop.create_future()
            self._send_soon(requests.burial(number, dead[first : first + requests.MOST_BURIED]), [])
            try:
                # No sandbox is to stay because its zygote stands still.
                async with asyncio.timeout(BURIAL_SECONDS):
                    kept += await asyncio.shield(answer)
            except ZygoteDied:
                break
            except BaseException as error:
                answer.add_done_callback(lambda done: None if done.cancelled() or done.exception() else late(done.result()))
                if not isinstance(error, TimeoutError):
                    late(kept)
                    raise
                break
        return kept

    def forget(self, numbers: Sequence[int]) -> None:
        """Let go of the layers of those that were buried."""
        for first in range(0, len(numbers) if self.alive else 0, requests.MOST_BURIED):
            self._send_soon(requests.oblivion(numbers[first : first + requests.MOST_BURIED]), [])

    def _send_soon(self, message: bytes, fds: list[int]) -> None:
        if not self._send(message, fds):
            # Copies: whoever asked closes its own.
            task = self._loop.create_task(self._send_later(message, [os.dup(fd) for fd in fds]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _send(self, message: bytes, fds: list[int]) -> bool:
        """Whether that is done with; no where there is no room now, or too many descriptors of this user are on their way."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([message], ancillary)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                return False
            self._died()
        return True

    async def _send_later(self, message: bytes, fds: list[int]) -> None:
        """Many creates at once: the zygote takes them one after another."""
        try:
            while self.alive:
                if self._send(message, fds):
                    return
                await asyncio.sleep(0.002)
        finally:
            for fd in fds:
                os.close(fd)

    async def close(self) -> None:
        """Let it end; its sandboxes live on."""
        self._died()
        await asyncio.to_thread(self._reap)

    def _reap(self) -> None:
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _readable(self) -> None:
        # One at a time: they come one at a time, and the loop calls again where there is more.
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, LARGEST_ANSWER, requests.MOST_BURIED, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._died()
            return
        self._answered(json.loads(data.decode(errors="replace")), fds)

    def _answered(self, message: dict[str, Any], fds: list[int]) -> None:
        if "kept" in message:
            if fds:  # With them ends what was mounted, which can take its time.
                self._loop.run_in_executor(None, _close_all, fds)
            if (buried := self._buried.pop(message["n"], None)) is not None and not buried.done():
                buried.set_result(message["kept"])
            return
        answer = self._asked.pop(message.get("n", 0), None)
        if answer is None or answer.done():
            for fd in fds:
                os.close(fd)
        elif "error" in message:
            why = f"{message['error']}: {os.strerror(message['errno'])}" if message["errno"] else message["error"]
            answer.set_exception(SandboxUnavailableError(f"a sandbox could not be made: {why}", reason="start_failed"))
        elif not fds:
            # The kernel leaves out descriptors for which this process has no room. Whoever takes the sandbox away finds it.
            answer.set_exception(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        else:
            answer.set_result((message["pid"], fds[0]))

    def _died(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._sock)
        self._sock.close()
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._buried.values()]
        for answer in waiting:
            if not answer.done():
                answer.set_exception(ZygoteDied("the zygote process ended while it was asked", reason="start_failed"))
        self._asked.clear()
        self._buried.clear()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def spawn(ranges: subordinate.Ranges | None) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """A zygote, the socket to it, and how many users and groups a sandbox of an ordinary user has."""
    if ranges is None:
        return *_connected(()), 1
    process, sock = _connected((GIVES_IDS,))
    try:
        sock.settimeout(subordinate.SECONDS)
        subordinate.serve(sock, process.pid, ranges)
        sock.setblocking(False)
    except OSError as error:
        log.warning("sandboxes have root as their only user: %s", error)
        sock.close()
        process.kill()
        process.wait()
        return spawn(None)
    return process, sock, 1 + ranges.size


def _connected(words: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new zygote, whose command line has these words, and a socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    executable = binary.found()
    with theirs:
        if (copy := sealed.copy_of(executable)) is not None:
            try:
                return _run(executable, theirs, copy, words), ours
            except OSError:
                pass  # A security module that lets nobody run memory.
            finally:
                os.close(copy)
        return _run(executable, theirs, None, words), ours


def _run(executable: str, control: socket.socket, copy: int | None, words: Sequence[str]) -> subprocess.Popen[bytes]:
    argv = [executable, "zygote", "--control", str(control.fileno()), *words]
    kept = [control.fileno()]
    if copy is not None:
        argv += ["--copy", str(copy)]
        kept.append(copy)
        executable = f"/proc/self/fd/{copy}"
    return subprocess.Popen(
        argv,
        executable=executable,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        pass_fds=kept,
        cwd="/",
        start_new_session=True,
    )
