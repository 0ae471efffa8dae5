"""Who may speak to a process 1 that anybody can connect to: whoever proves the key, to whom it proves it, too."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import socket

NONCE_BYTES = 32
CONTROL, QUESTION = b"c", b"q"
"""Kinds of connections: one that becomes that of its server, and one that asks for the state alone, and disturbs nobody."""
_STATES: dict[bytes, Literal["new", "running"]] = {b"n": "new", b"r": "running"}


class NotAuthentic(Exception):
    """Whoever answers does not know the key, or the connection ended.

    Attributes:
        wrong_key: it has answered, and wrongly. Else the connection ended before, as where process 1 does not believe it,
            or is not there behind what listens in its place.
    """

    def __init__(self, message: str, *, wrong_key: bool) -> None:
        super().__init__(message)
        self.wrong_key = wrong_key


async def prove(sock: socket.socket, key: bytes, *, seconds: float = 10.0, kind: bytes = CONTROL) -> Literal["new", "running"]:
    """Prove the key over a connection, and have it proved. Not a byte behind that is read.

    Args:
        sock: connected, and does not block; the caller closes it.
        key: of the sandbox.
        seconds: for all of it.
        kind: of the connection.

    Returns:
        Whether process 1 waits for its plan, or runs.

    Raises:
        NotAuthentic: it was not.
        TimeoutError: it takes too long.
        OSError: the connection broke.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        theirs = await _read(sock, NONCE_BYTES)
        own = os.urandom(NONCE_BYTES)
        await loop.sock_sendall(sock, kind + own + _mac(key, b"aviato server 1\0" + kind + theirs + own))
        answer = await _read(sock, 1 + hashlib.sha256().digest_size)
    state, proof = answer[:1], answer[1:]
    wanted = _mac(key, b"aviato process 1\0" + kind + state + theirs + own)
    if state not in _STATES or not hmac.compare_digest(proof, wanted):
        raise NotAuthentic("who answers does not know the key", wrong_key=True)
    return _STATES[state]


def key_of_pod(pool_key: bytes, uid: str) -> bytes:
    """The key of a pod that was made with others from one template: only its init container has seen that of the pool.

    Args:
        pool_key: of all of them.
        uid: of the pod.
    """
    return _mac(pool_key, b"aviato pod 1\0" + uid.encode())


async def _read(sock: socket.socket, count: int) -> bytes:
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < count:
        piece = await loop.sock_recv(sock, count - len(found))
        if not piece:
            raise NotAuthentic("the connection ended before the key was proved", wrong_key=False)
        found += piece
    return found


def _mac(key: bytes, said: bytes) -> bytes:
    return hmac.new(key, said, hashlib.sha256).digest()
