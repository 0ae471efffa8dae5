"""What a server loads: clients, of registries and of engines, only where they are asked for something."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from aviato import Sandbox
from tests.conftest import RunningServer, make_state_dir, remove, start_server

SAYS = "import atexit, sys\natexit.register(lambda: print('loaded:', *sys.modules))\n"
LATE = {"aiohttp", "aiodocker", "kubernetes_asyncio", "zstandard", "yarl", "aviato.server.http.app"}
LATE |= {f"aviato.server.images.{name}" for name in ("registry", "registry_requests", "registry_tokens", "image_push")}


@pytest.fixture
def running() -> Iterator[RunningServer]:
    directory = make_state_dir()
    running = start_server(directory, first=SAYS)
    yield running
    running.stop()
    remove(directory)


def test_for_a_command_it_loads_no_client(running: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    with Sandbox() as sandbox:
        assert sandbox.exec(["echo", "in"]).result().stdout == "in\n"
    running.stop()
    found = re.search("^loaded: (.+)$", running.log.read_text(), re.MULTILINE)
    assert found is not None
    loaded = set(found[1].split())
    assert "aviato.server.images.store" in loaded and not loaded & LATE
