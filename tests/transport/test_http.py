"""The HTTP client itself: TCP with a key, proxies, long socket paths, loops that come and go."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Task, evaluate
from aviato.transport import aiohttp_session, http
from aviato.transport.resolution import endpoint, proxy_of
from tests.conftest import free_port
from tests.faults.gate import gate_to


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
    assert proxy_of(endpoint("https://example.com")) == "http://proxy:3128"
    assert proxy_of(endpoint("https://internal.example")) is None
    assert proxy_of(endpoint("http://example.com")) is None
    assert proxy_of(endpoint("https://127.0.0.1:3")) is None


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


def test_what_a_burst_of_http_left_behind_is_not_used_in_turn(
    tmp_path: Path, served_at: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiohttp_session, "IDLE_SECONDS", 0.5)

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

            async def ask() -> None:
                response = await transport.open("PUT", "/v1/health", b"x")
                await response.read()

            fake.others = [slow]
            transport = http.HttpTransport(fake.url, request_timeout_seconds=5)
            burst = [asyncio.ensure_future(ask()) for _ in range(40)]
            while arrived < 40:
                await asyncio.sleep(0)
            here.set()
            await asyncio.gather(*burst)
            connector = (await transport._pool().http()).connector
            assert connector is not None

            def idle() -> int:
                return sum(map(len, connector._conns.values()))

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


def test_a_server_of_an_earlier_version_is_asked_by_http(server: Any) -> None:
    with gate_to(server.url, only_http=True) as gate, aviato.Session(aviato.SandboxDefaults(base_url=gate.url)) as session:
        box = session.sandbox()
        assert box.exec(["cat"], stdin=b"in").result().stdout == "in"
        box.write_file("a", b"x" * 1_000_000).result()
        box.write_file_streaming("b", iter([b"y" * 300_000] * 3)).result()
        assert (len(box.read_file("a").result()), len(box.read_file("b").result())) == (1_000_000, 900_000)
        assert list(box.exec(["sh", "-c", "echo 1; sleep 0.1; echo 2"]).stdout) == ["1\n", "2\n"]
        with pytest.raises(aviato.SandboxFileError):
            box.read_file("missing").result()
        tasks = [Task(code="n = 1", tests=["assert n == 1"])] * 8
        assert [outcome.passed for outcome in evaluate(tasks, session=session).result(50)] == [True] * 8
