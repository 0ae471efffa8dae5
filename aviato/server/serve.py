"""A server process: its sockets, its signals, and its end."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.connections.guard import Guard
from aviato.server.executor import fix_threads
from aviato.server.front import Front
from aviato.server.machine import dump_no_core, give_memory_back, raise_open_files
from aviato.server.service import Service
from aviato.server.service.secrets import Secrets, take_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.server.backends.base import Backend
    from aviato.server.connections.listening import Listeners
    from aviato.server.connections.open_connections import OpenConnections
    from aviato.server.connections.wandb_keys import WandbKeys
    from aviato.server.settings import ServerSettings
    from aviato.server.state_dir import StateDirectory

log = logging.getLogger(__name__)

LEAVE_SECONDS = 1.8
IDLE_CHECK_SECONDS = 0.5
STARTER_SECONDS = 60.0
"""So long an embedded server waits for the process that has started it: that one may take its time to load what it needs."""
FAULTS_VARIABLE = "AVIATO_TEST_FAULTS"
"""Set by tests alone: see `fault_points`."""


async def serve(
    settings: ServerSettings,
    folder: StateDirectory,
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
    wandb = _wandb_keys(settings) if settings.auth == "wandb" else None
    if wandb is not None and listeners.tls is None:
        log.warning("clients send W&B keys over https only: give --tls-cert, or put a proxy that speaks TLS in front")
    if wandb is not None and not settings.wandb_entity:
        log.warning("everybody with a W&B account is let in: --wandb-entity NAME names whom you mean")
    guard = Guard(service.store.key_hashes(), hosts=[settings.host, *settings.allowed_host], wandb=wandb)
    if listeners.tls is not None:
        guard.set_certificate_names(listeners.tls.names())
    front = Front(service, guard)
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signals.put_nowait, number)
    try:
        await front.open(listeners)
        on_ready()
        await _until_over(service, front.connections, signals, settings.idle_exit, STARTER_SECONDS if embedded else 0.0)
        _unlink(listeners.path)
        front.close_listeners()
        log.info("the server goes")
    finally:
        _leave_in_time()
        await front.close()
        if wandb is not None:
            await wandb.close()


def _wandb_keys(settings: ServerSettings) -> WandbKeys:
    # Here, since it is a client, of aiohttp's.
    from aviato.server.connections.wandb_keys import WandbKeys

    return WandbKeys(os.environ.get("WANDB_BASE_URL"), settings.wandb_entity)


def _leave_in_time() -> None:
    """Bound the way out, whatever holds it up (a thread that removes a large tree): the next server takes up what is left."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LEAVE_SECONDS)
    # After the threads have been waited for: the interpreter's own end takes the handler away, and then the signal would kill.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)


async def _until_over(
    service: Service, connections: OpenConnections, signals: asyncio.Queue[int], idle_exit: float | None, starter_seconds: float
) -> None:
    waiting = asyncio.create_task(signals.get())
    idle = asyncio.create_task(_until_idle(service, connections, idle_exit, starter_seconds))
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


async def _until_idle(service: Service, connections: OpenConnections, idle_exit: float | None, starter_seconds: float) -> None:
    """Return after so many seconds without sandboxes, leases and connections; never if there is no such limit.

    Args:
        service: tells of sandboxes and leases.
        connections: of the server.
        idle_exit: the limit.
        starter_seconds: how long the first request may take to come.
    """
    if idle_exit is None:
        await asyncio.Event().wait()
        return
    with suppress(Exception):
        await service.ready()
    since = time.monotonic()
    first_by = since + starter_seconds
    while True:
        is_awaited = not connections.count and time.monotonic() < first_by
        if is_awaited or not service.idle or connections.all():
            since = time.monotonic()
        elif time.monotonic() - since >= idle_exit:
            log.info("idle for %g s", idle_exit)
            return
        await asyncio.sleep(min(IDLE_CHECK_SECONDS, idle_exit / 4))


def _unlink(path: str | None) -> None:
    if path is not None:
        with suppress(FileNotFoundError):
            os.unlink(path)
