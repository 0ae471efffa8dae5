"""Process 1 and server of different versions: docs/protocol.md, Versions."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.link import hello
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.link import Process1Link
from aviato.wire.frames import PROTOCOL, FrameType, encode

pytestmark = pytest.mark.anyio

SANDBOX_ID = "sb-it"
PATIENCE_SECONDS = 5.0
USUAL: dict[str, Any] = {"protocol": PROTOCOL, "features": [], "execs": {}, "orphan_timeout_seconds": 600}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def greeted(payload: bytes) -> AsyncIterator[tuple[Process1Link, socket.socket]]:
    """A link to who says this first, and the other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        theirs.sendall(encode(FrameType.HELLO, payload))
        link = await asyncio.wait_for(Process1Link.connect(SANDBOX_ID, ours), PATIENCE_SECONDS)
        try:
            yield link, theirs
        finally:
            link.detach()


def saying(**fields: Any) -> bytes:
    """A HELLO."""
    return json.dumps({**USUAL, **fields}).encode()


@pytest.mark.parametrize("own", [PROTOCOL, PROTOCOL + 1])
async def test_the_own_protocol_and_the_one_before_are_spoken(own, monkeypatch):
    monkeypatch.setattr(hello, "PROTOCOL", own)
    async with greeted(saying(protocol=PROTOCOL, of_a_later_release={"x": [1]})) as (link, _):
        assert link.hello["protocol"] == PROTOCOL and link.ended() is None


UNKNOWN = {
    "newer": PROTOCOL + 1,
    "much newer": 10**30,
    "none": None,
    "zero": 0,
    "negative": -1,
    "a word": "one",
    "a long word": "1" * 10_000,
    "a fraction": 1.5,
    "a flag": True,
    "a list": [PROTOCOL],
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_another_protocol_is_refused_by_name(name):
    number = UNKNOWN[name]
    # What else such a HELLO has is not known.
    for payload in (saying(protocol=number), json.dumps({"protocol": number}).encode()):
        with pytest.raises(SandboxUnavailableError) as caught:
            async with greeted(payload):
                pass
        error, text = caught.value, str(caught.value)
        assert (error.reason, error.retryable, error.is_infrastructure) == ("protocol_version", False, True)
        assert SANDBOX_ID in text and f"this server speaks {PROTOCOL}" in text and "make a new sandbox" in text
        assert len(text) < 400
        if name == "newer":
            assert f"speaks protocol {number}," in text and "a newer aviato" in text


async def test_two_versions_before_is_too_old(monkeypatch):
    monkeypatch.setattr(hello, "PROTOCOL", PROTOCOL + 2)
    said = f"speaks protocol {PROTOCOL}, this server speaks {PROTOCOL + 1} and {PROTOCOL + 2}; another version"
    with pytest.raises(SandboxUnavailableError, match=said):
        async with greeted(saying()):
            pass


NONSENSE = {
    "no JSON": b"{",
    "no text": b"\xff",
    "no object": b"[1]",
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "no features": saying(features=None),
    "commands that are no object": saying(execs=[]),
    "no patience": saying(orphan_timeout_seconds="long"),
}


@pytest.mark.parametrize("name", NONSENSE)
async def test_a_hello_that_is_none_ends_the_connection_alone(name, caplog):
    with pytest.raises(SandboxGone, match="broke the protocol: its HELLO"):
        async with greeted(NONSENSE[name]):
            pass
    assert not caplog.records


async def test_an_answer_that_cannot_be_read_ends_the_connection_alone(caplog):
    async with greeted(saying()) as (link, theirs):
        asked = asyncio.create_task(link.write_stdin("ex-it", b"", 0, True))
        await asyncio.sleep(0.05)
        theirs.sendall(encode(FrameType.ACCEPTED, b"[]", channel=0) + encode(FrameType.ENDED, b"[" * 10_000 + b"]" * 10_000))
        with pytest.raises(SandboxGone, match="broke the protocol"):
            await asyncio.wait_for(asked, PATIENCE_SECONDS)
    assert not caplog.records


async def test_who_goes_without_a_word_is_gone():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.close()
    with pytest.raises(SandboxGone):
        await asyncio.wait_for(Process1Link.connect(SANDBOX_ID, ours), PATIENCE_SECONDS)


async def test_a_second_hello_changes_nothing():
    async with greeted(saying()) as (link, theirs):
        theirs.sendall(encode(FrameType.HELLO, saying(protocol=PROTOCOL + 1, features=["again"])))
        theirs.sendall(encode(FrameType.ENDED, b'{"reason": "exited", "returncode": 4, "of_a_later_release": 1}'))
        assert await asyncio.wait_for(link.wait_ended(), PATIENCE_SECONDS) == Ended(reason="exited", returncode=4)
        assert link.hello["features"] == []


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"reason": 3}'])
async def test_an_end_that_cannot_be_read_is_an_end(payload):
    async with greeted(saying()) as (link, theirs):
        theirs.sendall(encode(FrameType.ENDED, payload))
        assert (await asyncio.wait_for(link.wait_ended(), PATIENCE_SECONDS)).reason == "lost"
