"""The guides' code blocks on another backend: a module says which by its fixture `serving`, and takes all of this."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from aviato.promises.serving import Server, Serving
from tests.guides.test_guides import *


@pytest.fixture(autouse=True)
def _one_of_them(request: pytest.FixtureRequest) -> None:
    """The guides say the same thrice, and one suffices for a backend."""
    spec = getattr(request.node, "callspec", None)
    if spec is not None and spec.params.get("guide", "c") != "c" and not os.environ.get("AVIATO_TEST_ALL_GUIDES"):
        pytest.skip("with AVIATO_TEST_ALL_GUIDES=1 alone")


@pytest.fixture(scope="module")
def running(serving: Serving) -> Iterator[Server]:
    server = Server(serving)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def served(running: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)


@pytest.fixture
def crowded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = Server(replace(serving, variables={**serving.variables, "AVIATO_MAX_SANDBOXES": str(BUSY_LIMIT)}))
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    try:
        yield
    finally:
        print(server.log())  # pytest shows it of a test that failed
        server.close()
