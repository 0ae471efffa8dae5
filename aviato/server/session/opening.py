"""The request that opens a session, and what it is answered: HTTP, without a framework of it."""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.wire.session import LENGTH_HEADER, TYPE_HEADER
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.operations.reply import Reply


def parse_opening(head: bytes) -> Mapping[str, str]:
    """The headers of the request, by their names in title case.

    Raises:
        AviatoValidationError: it is none, or says something twice.
    """
    found: dict[str, str] = {}
    _, *lines = head.decode("latin-1").split("\r\n")
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.title()
        if not colon or not name or name != name.strip() or name in found or not line.isprintable():
            raise AviatoValidationError(
                f"the header {name[:40]!r} of the request cannot be read, or is there twice", reason="http"
            )
        found[name] = value.strip()
    return found


def encode_answer(upgrade: str) -> bytes:
    """What a client is told who is let in: this is spoken from now on."""
    headers = {"Connection": "Upgrade", "Upgrade": upgrade, WIRE_HEADER: str(WIRE_VERSION), PID_HEADER: str(os.getpid())}
    return _encode_head(HTTPStatus.SWITCHING_PROTOCOLS, headers)


def encode_refusal(reply: Reply) -> bytes:
    """What a client is told who gets no session; the connection ends with it."""
    headers = {
        WIRE_HEADER: str(WIRE_VERSION),
        PID_HEADER: str(os.getpid()),
        TYPE_HEADER: reply.content_type,
        LENGTH_HEADER: str(len(reply.body)),
        "Connection": "close",
        **reply.headers,
    }
    return _encode_head(HTTPStatus(reply.status), headers) + reply.body


def _encode_head(status: HTTPStatus, headers: Mapping[str, str | None]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
