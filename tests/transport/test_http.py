"""The HTTP client itself: TCP with a key, proxies, long socket paths, loops that come and go."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.transport import http, sessions
from tests.conftest import free_port


@pytest.fixture
def tcp(make_server: Callable[..., Any], tmp_path: Path) -> str:
    """A server on TCP whose key is `right-key-of-enough-length`."""
    keys = tmp_path / "keys"
    keys.write_text("right-key-of-enough-length\n")
    keys.chmod(0o600)
    port = free_port()
    make_server(port=port, api_key_file=keys)
    return f"http://127.0.0.1:{port}"


def test_tcp_needs_the_key(tcp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(aviato.AviatoAuthenticationError, match="AVIATO_API_KEY") as caught:
        aviato.Sandbox.run(base_url=tcp)
    assert caught.value.is_infrastructure
    monkeypatch.setenv("AVIATO_API_KEY", "wrong")
    with pytest.raises(aviato.AviatoAuthenticationError) as caught:
        aviato.Sandbox.run(base_url=tcp)
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv("AVIATO_API_KEY", "right-key-of-enough-length")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # not used for loopback
    with aviato.Sandbox(base_url=tcp) as sandbox:
        assert sandbox.exec(["cat"], stdin="over tcp").result().stdout == "over tcp"


def test_proxies_are_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "internal.example")
    assert sessions.proxy("https://example.com") == "http://proxy:3128"
    assert sessions.proxy("https://internal.example") is None
    assert sessions.proxy("http://example.com") is None


def test_a_socket_path_longer_than_the_kernel_allows(tmp_path: Path, served_at: Callable[[Path], Any]) -> None:
    folder = tmp_path / ("d" * 100)
    folder.mkdir()

    async def main() -> None:
        async with served_at(folder) as fake:

            async def health(_: Any) -> Any:
                return fake.json({"ok": True})

            fake.others = [health]
            transport = http.HttpTransport(fake.url, request_timeout_seconds=5)
            assert await transport.request("GET", "/v1/health") == b'{"ok": true}'

    asyncio.run(main())


@pytest.fixture
def served_at() -> Callable[[Path], Any]:
    from tests.core.fake import serving

    return serving


def test_a_loop_that_goes_takes_its_connections_along(tmp_path: Path, served_at: Callable[[Path], Any]) -> None:
    async def main() -> None:
        async with served_at(tmp_path) as fake:

            async def health(_: Any) -> Any:
                return fake.json({})

            fake.others = [health]
            transport = http.HttpTransport(fake.url, request_timeout_seconds=5)
            await asyncio.gather(*(transport.request("GET", "/v1/health") for _ in range(5)))

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert not [loop for loop in http._pools if loop.is_closed()]


@pytest.mark.parametrize("whole", [True, False], ids=["a body that is whole", "one that is sent piece by piece"])
def test_what_a_burst_left_behind_is_not_used_in_turn(
    tmp_path: Path, served_at: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(sessions, "IDLE_SECONDS", 0.5)

    async def main() -> None:
        async with served_at(tmp_path) as fake:
            here = asyncio.Event()

            arrived = 0

            async def slow(_: Any) -> Any:
                nonlocal arrived
                arrived += 1
                await here.wait()
                return fake.json({"ok": True})

            async def fast(_: Any) -> Any:
                return fake.json({"ok": True})

            async def pieces() -> AsyncIterator[bytes]:
                yield b"x"

            async def ask() -> None:
                response = await transport.open("PUT", "/v1/health", b"x" if whole else pieces())
                await response.read()

            fake.others = [slow]
            transport = http.HttpTransport(fake.url, request_timeout_seconds=5)
            burst = [asyncio.ensure_future(ask()) for _ in range(40)]
            while arrived < 40:
                await asyncio.sleep(0)
            here.set()
            await asyncio.gather(*burst)
            session, unix = await transport._pool().session(), await transport._pool().unix()
            assert session.connector is not None

            def idle() -> int:
                return len(unix._idle) if whole else sum(map(len, session.connector._conns.values()))  # type: ignore[union-attr]

            assert idle() == 40
            fake.others = [fast]
            while idle() > 1:  # the timeout of the test is the limit: used in turn, none would ever be idle for so long
                await ask()
                await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_thousands_of_connections_are_allowed(server: Any) -> None:
    import resource

    asyncio.run(http.HttpTransport(server.url, request_timeout_seconds=5).request("GET", "/v1/health"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
