"""Tests of the facade talk to the run's server by the environment, as a user's programs would."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from tests.conftest import in_interpreter


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run's server is the one that `AVIATO_BASE_URL` names."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server


@pytest.fixture
def session(served: Any) -> Iterator[aviato.Session]:
    with aviato.Session() as made:
        yield made


@pytest.fixture
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    return session.sandbox()


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program in an interpreter of its own, as a user would."""

    def run(source: str, *, timeout: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
        return in_interpreter(textwrap.dedent(source), timeout=timeout, **environment)

    return run
