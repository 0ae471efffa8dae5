"""What the checks ask for, on top of the fixture `serving`, which says what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato.promises.declared import Declared
from aviato.promises.serving import Server, Serving

OWN = "own_server"


@pytest.fixture(scope="session")
def serving(request: pytest.FixtureRequest) -> Serving:
    """What the command line names."""
    backend, base_url = (request.config.getoption(f"--promises-{name}") for name in ("backend", "server"))
    return Serving(backend=backend, base_url=base_url)


@pytest.fixture(scope="module")
def server(serving: Serving) -> Iterator[Server]:
    """One that most checks share."""
    running = Server(serving)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def declared(server: Server) -> Declared:
    """What its backend says of itself."""
    health = server.health()
    with aviato.Sandbox(base_url=server.url, resources={"cpu": 1}) as sandbox:
        sandbox.wait()
        unkept = frozenset(line.partition(":")[0] for line in sandbox.unkept_promises)
        strengths: dict[str, str] = {name: limit.strength for name, limit in sandbox.limits.items()}
    return Declared(
        backend=health["backend"], capabilities=frozenset(health["capabilities"]), unkept=unkept, strengths=strengths
    )


@pytest.fixture(autouse=True)
def _for_this_backend(request: pytest.FixtureRequest) -> None:
    """Leave out what the backend has said that it cannot do."""
    check: Any = getattr(request, "function", None)
    if any(hasattr(check, name) for name in ("needs", "keeps", "limits")):
        why = request.getfixturevalue("declared").lacking(check)
        if why is not None:
            pytest.skip(why)


@pytest.fixture
def own_server(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One of the check's own, to be killed; clients ask it."""
    if serving.base_url is not None:
        pytest.skip("the server that is asked is not the suite's own")
    running = Server(serving)
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def session(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    """Of the shared server, which clients ask."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


@pytest.fixture
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    """One of the check's own."""
    return session.sandbox()


@pytest.fixture
def sh(sandbox: aviato.Sandbox) -> Callable[..., aviato.ProcessResult]:
    """Runs a line of shell in it, to its end."""
    return lambda line, **options: sandbox.exec(["sh", "-c", line], **options).result()


__all__ = ["_for_this_backend", "declared", "own_server", "sandbox", "server", "serving", "session", "sh"]
