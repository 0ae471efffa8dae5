"""A server process: its sockets, its signals, and its end."""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import os
import signal
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from aviato.server import http_log
from aviato.server.app import make_app
from aviato.server.connection_limit import BACKLOG, ConnectionLimit, backlog
from aviato.server.door import Desk
from aviato.server.guard import Guard
from aviato.server.handshakes import TlsListener
from aviato.server.host import dump_no_core, give_memory_back, raise_open_files
from aviato.server.service import Service
from aviato.server.service.secrets import Secrets, take_variables
from aviato.server.threads import fix_threads
from aviato.server.unauthenticated import Unauthenticated
from aviato.server.wandb_keys import WandbKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.server.backends.base import Backend
    from aviato.server.folders import Folder
    from aviato.server.settings import ServerSettings
    from aviato.server.tls import Tls

log = logging.getLogger(__name__)

LEAVE_SECONDS = 1.8
IDLE_CHECK_SECONDS = 0.5
CONNECTION_SECONDS = 0.5
"""How long a handler may take to end itself when the server goes."""
ACCEPTED_A_TURN = 4
"""Connections that Python's loop takes at once: those are no more than `connection_limit` sees before the next ones come."""
HANDSHAKE_SECONDS = 10.0
"""How long a client may take to begin TLS."""
FAULTS_VARIABLE = "AVIATO_TEST_FAULTS"
"""Set by tests alone: see `fault_points`."""
VANISHED_SECONDS = 120
"""How long a connection over TCP is kept whose peer does not answer any more."""
KEEPALIVE_SECONDS = 3600.0
"""Idle connections are kept: a client's open connection is how it notices that its server is gone."""


@dataclass(frozen=True, kw_only=True)
class Listeners:
    """Where a server listens.

    Attributes:
        sockets: bound and listening.
        path: of the Unix socket, unlinked when the server goes; None if it is someone else's.
        tls: of those that are on TCP; None is none.
    """

    sockets: Sequence[socket.socket]
    path: str | None = None
    tls: Tls | None = None


async def serve(
    settings: ServerSettings,
    folder: Folder,
    backend: Backend,
    listeners: Listeners,
    *,
    key_hashes: Sequence[str] = (),
    embedded: bool = False,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal or idleness ends it.

    SIGINT ends every sandbox (a second one hands over at once); SIGTERM hands over: sandboxes live on. An `embedded` server has
    no secrets of its own: each caller sends what it names.
    """
    variables = take_variables(os.environ)
    shared = () if settings.secrets_dir is None else backend.shared_paths()
    secrets = Secrets(None if embedded else variables, settings.secrets_dir, shared)
    raise_open_files()
    dump_no_core()
    give_memory_back()
    fix_threads(asyncio.get_running_loop())
    service = Service(settings, folder, backend, secrets)
    if (faults := os.environ.get(FAULTS_VARIABLE)) is not None:
        from aviato.server.fault_injection import Switch

        Switch(service, faults).install()
    if settings.api_key_file is not None:
        # A key that was taken out of the file is one no more.
        service.store.forget_key_hashes()
    elif earlier := len(service.store.key_hashes()):
        log.info("%d API keys of earlier starts stay valid; --api-key-file F puts those of a file in their place", earlier)
    for key_hash in key_hashes:
        service.store.add_key_hash(key_hash)
    wandb = WandbKeys(os.environ.get("WANDB_BASE_URL"), settings.wandb_entity) if settings.auth == "wandb" else None
    if wandb is not None and listeners.tls is None:
        log.warning("clients send W&B keys over https only: give --tls-cert, or put a proxy that speaks TLS in front")
    if wandb is not None and not settings.wandb_entity:
        log.warning("everybody with a W&B account is let in: --wandb-entity NAME names whom you mean")
    guard = Guard(service.store.key_hashes(), hosts=[settings.host, *settings.allowed_host], wandb=wandb)
    if listeners.tls is not None:
        guard.set_certificate_names(listeners.tls.names())
    connection_limit = ConnectionLimit()
    app = make_app(service, guard, connection_limit)
    desk = Desk(app, service, guard, connection_limit)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=CONNECTION_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
        auto_decompress=False,
        logger=http_log.log,
    )
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    await runner.setup()
    connection_limit.runner = runner
    beside = [asyncio.create_task(connection_limit.keep_few(), name="connection_limit")]
    if any(listener.family != socket.AF_UNIX for listener in listeners.sockets):
        beside.append(asyncio.create_task(Unauthenticated(runner, guard.let_in).keep_few(), name="unauthenticated"))
    if listeners.tls is not None:
        beside.append(asyncio.create_task(listeners.tls.keep_fresh(guard.set_certificate_names), name="certificate"))
    try:
        listening = await accept(runner, listeners, connection_limit, desk)
        on_ready()
        await _until_over(service, runner, signals, settings.idle_exit)
        _unlink(listeners.path)
        for server in listening:
            server.close()
        log.info("the server goes")
    finally:
        _leave_in_time()
        service.stop_waiting()
        for task in beside:
            task.cancel()
        if wandb is not None:
            await wandb.close()
        await desk.close(CONNECTION_SECONDS)
        await runner.cleanup()


def _leave_in_time() -> None:
    """Bound the way out, whatever holds it up (a thread that removes a large tree): the next server takes up what is left."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LEAVE_SECONDS)
    # After the threads have been waited for: the interpreter's own end takes the handler away, and then the signal would kill.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)


async def _until_over(service: Service, runner: web.AppRunner, signals: asyncio.Queue[int], idle_exit: float | None) -> None:
    waiting = asyncio.create_task(signals.get())
    idle = asyncio.create_task(_until_idle(service, runner, idle_exit))
    try:
        await asyncio.wait({waiting, idle}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done() and waiting.result() == signal.SIGINT:
            log.info("interrupted: every sandbox ends")
            service.long_polls.closing = True
            waiting = asyncio.create_task(signals.get())
            ending = asyncio.create_task(service.end_all())
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
    finally:
        for task in (waiting, idle):
            task.cancel()
        await asyncio.gather(waiting, idle, return_exceptions=True)


async def _until_idle(service: Service, runner: web.AppRunner, idle_exit: float | None) -> None:
    """Return after so many seconds without sandboxes, leases and connections; never if there is no such limit."""
    if idle_exit is None:
        await asyncio.Event().wait()
        return
    with suppress(Exception):
        await service.ready()
    since = time.monotonic()
    while True:
        server = runner.server
        if not service.idle or (server is not None and server.connections):
            since = time.monotonic()
        elif time.monotonic() - since >= idle_exit:
            log.info("idle for %g s", idle_exit)
            return
        await asyncio.sleep(min(IDLE_CHECK_SECONDS, idle_exit / 4))


async def accept(
    runner: web.AppRunner, listeners: Listeners, connection_limit: ConnectionLimit | None = None, desk: Desk | None = None
) -> list[asyncio.AbstractServer | TlsListener]:
    """Let connections come to an application that is set up, over TLS where that is TCP's.

    Args:
        runner: of the application.
        listeners: where they come.
        connection_limit: counts them.
        desk: has the doors of Unix sockets; None is none.
    """
    loop = asyncio.get_running_loop()
    found: list[asyncio.AbstractServer | TlsListener] = []
    for listener in listeners.sockets:
        server = runner.server
        assert server is not None
        make = server if connection_limit is None else connection_limit.watched(server)
        if desk is not None and listener.family == socket.AF_UNIX:
            make = desk.doors(make)
        if listener.family == socket.AF_UNIX or listeners.tls is None:
            found.append(await loop.create_server(make, sock=listener, backlog=ACCEPTED_A_TURN))
            listener.listen(backlog())
            continue
        # aiohttp's own sites leave a stranger a minute for this.
        found.append(TlsListener(listener, make, listeners.tls.context, HANDSHAKE_SECONDS))
    return found


def _unlink(path: str | None) -> None:
    if path is not None:
        with suppress(FileNotFoundError):
            os.unlink(path)


def listen_unix(path: str, *, locked: bool = True) -> socket.socket:
    """A listening Unix socket with mode 0600, whatever the length of its path.

    A socket that a dead server left there is replaced.

    Args:
        path: where.
        locked: the caller's lock says that no server is there; otherwise one that listens is left in peace.

    Raises:
        FileExistsError: what lies there is no socket.
        OSError: EADDRINUSE: somebody listens there.
    """
    directory, name = os.path.split(path)
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_dead(directory_fd, name, locked)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{directory_fd}/{name}")
        finally:
            os.umask(mask)
        listener.listen(BACKLOG)
        return listener
    finally:
        os.close(directory_fd)


def _remove_dead(directory_fd: int, name: str, locked: bool) -> None:
    """Remove a socket where nobody listens; what somebody has named by mistake stays."""
    try:
        mode = os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file of this name, and it is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        if not locked and probe.connect_ex(f"/proc/self/fd/{directory_fd}/{name}") not in (errno.ECONNREFUSED, errno.ENOENT):
            raise OSError(errno.EADDRINUSE, "another server listens there")
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory_fd)


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Those that are accepted have it from here: of a peer that has vanished nothing else would ever be heard.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, VANISHED_SECONDS // 2))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, VANISHED_SECONDS // 8))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    return listener
