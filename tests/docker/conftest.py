"""A container engine with images of its own, a backend on it, and servers."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.registry import make_backend
from tests.docker import engines
from tests.images import debian
from tests.real_backend import anyio_backend, boxes

__all__ = ["anyio_backend", "boxes"]

pytest.importorskip("aiodocker", reason="the extra docker is not installed")

SMALL, SMALL_USERS, PYTHON = "aviato-test-small:1", "aviato-test-users:1", "aviato-test-debian:1"


@pytest.fixture(scope="session")
def engine() -> Iterator[engines.Engine]:
    """One for all, which has the small images; nothing of ours is in it at the end."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aviato-engine-", ignore_cleanup_errors=True)))
        try:
            found = stack.enter_context(engines.an_engine(directory))
            small = engines.busybox_root()
        except engines.NoEngineError as why:
            pytest.skip(str(why))
        found.make_image(SMALL, small)
        found.make_image(SMALL_USERS, small, "USER bob", "WORKDIR /home/bob", "ENV OF=the-image")
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("DOCKER_HOST", found.address)
        yield found
        left = [one["Names"] for one in found.containers() if "aviato.sandbox" in one["Labels"]]
        assert left == []


@pytest.fixture(scope="session")
def python_image(engine: engines.Engine) -> str:
    """An image of a distribution, with Python."""
    if not engine.has(PYTHON):
        try:
            engine.make_image(PYTHON, engines.debian_root())
        except debian.NoImageError as why:
            pytest.skip(str(why))
    return PYTHON


@pytest.fixture(scope="module")
async def backend(anyio_backend: str, engine: engines.Engine) -> AsyncIterator[Any]:
    """One that is open."""
    with tempfile.TemporaryDirectory(prefix="aviato-docker-") as directory:
        made = make_backend("docker", directory=Path(directory), default_image=SMALL, address=engine.address)
        try:
            await made.open()
            yield made
            assert await made.place_ids() == []
        finally:
            await made.close()


@pytest.fixture
def make_docker(engine: engines.Engine, make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a server on the engine, which is the one that clients ask."""

    def make(image: str = SMALL, **settings: Any) -> Any:
        running = make_server(backend="docker", default_image=image, docker_host=engine.address, **settings)
        monkeypatch.setenv("AVIATO_BASE_URL", running.url)
        return running

    return make
