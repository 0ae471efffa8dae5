"""Whether the hub answers is known in seconds, whatever becomes of the request."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

HUB = Path(__file__).resolve().parents[2] / "examples" / "rl_training" / "hub.py"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hub", HUB)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.5)
    return module


@pytest.fixture
def silent() -> Iterator[str]:
    """It lets in, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=[200, 401, 404, 500])
def talking(request: pytest.FixtureRequest) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(request.param)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_one_that_answers(hub: Any, talking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", talking)
    monkeypatch.setattr(hub, "PATIENCE_SECONDS", 20.0)
    assert hub.answers()


def test_one_that_does_not(hub: Any, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (silent, "http://127.0.0.1:9", "http://hub.invalid", "nonsense", "http://[", "gopher://x"):
        monkeypatch.setenv("HF_ENDPOINT", address)
        begin = time.monotonic()
        assert not hub.answers(), address
        assert time.monotonic() - begin < 30


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_who_wants_to_be_offline_asks_nobody(hub: Any, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    monkeypatch.setattr(threading, "Thread", None)
    assert not hub.answers()


def test_a_resolver_that_hangs_holds_nobody(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(hub.urllib.request, "urlopen", lambda *_, **__: (released.wait(60), nullcontext())[1])
    assert not hub.answers()
    released.set()
