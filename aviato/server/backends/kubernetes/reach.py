"""Ways to the process 1 of a pod: over the pod network, or through the API server. Whoever comes either way proves its key."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from aviato.server.backends.kubernetes.cluster import ClusterError
from aviato.server.backends.kubernetes.objects import PORT
from aviato.server.link.handshake import CONTROL, QUESTION, NotAuthentic, prove

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.cluster import Cluster
    from aviato.server.backends.kubernetes.options import Reach
    from aviato.server.backends.kubernetes.pod_state import PodState

CONNECT_SECONDS = 5.0
SILENCE = (
    *((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
"""After half a minute in which nothing comes back a connection is lost, whether something was sent or not."""


class NotReached(Exception):
    """Nobody answers there now."""


async def reach(cluster: Cluster, state: PodState, way: Reach, key: bytes) -> tuple[socket.socket, Literal["new", "running"]]:
    """A connection to a process 1 that knows the key, and whether it has begun. The caller owns it.

    Raises:
        NotReached: nobody answers there, or not with the key.
    """
    return await _proved(cluster, state, way, key, CONTROL)


async def has_begun(cluster: Cluster, state: PodState, way: Reach, key: bytes) -> bool:
    """Whether a process 1 that knows the key was told what it is; the server that it has keeps its connection.

    Raises:
        NotReached: nobody answers there, or not with the key, or it is of a version that is not asked.
    """
    sock, said = await _proved(cluster, state, way, key, QUESTION)
    _close(sock)
    return said == "running"


async def _proved(
    cluster: Cluster, state: PodState, way: Reach, key: bytes, kind: bytes
) -> tuple[socket.socket, Literal["new", "running"]]:
    sock = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            sock = await _connected(cluster, state, way)
            return sock, await prove(sock, key, kind=kind)
    except (OSError, TimeoutError, ClusterError, NotAuthentic) as error:
        _close(sock)
        raise NotReached(str(error) or type(error).__name__) from error
    except BaseException:
        _close(sock)
        raise


async def begin(sock: socket.socket, plan: dict[str, Any]) -> None:
    """Tell a new process 1 what to do first.

    Raises:
        OSError: it is gone.
    """
    data = json.dumps(plan, separators=(",", ":")).encode()
    await asyncio.get_running_loop().sock_sendall(sock, len(data).to_bytes(4, "big") + data)


async def _connected(cluster: Cluster, state: PodState, way: Reach) -> socket.socket:
    if way == "forward":
        return await cluster.forward(state.name, PORT)
    if state.address is None:
        raise NotReached("its pod has no address yet")
    family = socket.AF_INET6 if ":" in state.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in SILENCE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        await asyncio.get_running_loop().sock_connect(sock, (state.address, PORT))
    except BaseException:
        sock.close()
        raise
    return sock


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):
            sock.close()
