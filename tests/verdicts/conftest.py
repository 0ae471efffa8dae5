"""Verdicts of real sandboxes, all of one server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, evaluate


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


@pytest.fixture
def outcomes(session: aviato.Session) -> Callable[..., list[Outcome]]:
    """Those of tasks, in order."""
    return lambda tasks, **options: evaluate(tasks, session=session, **{"timeout_seconds": 30, **options}).result(55)


@pytest.fixture
def outcome(outcomes: Callable[..., list[Outcome]]) -> Callable[..., Outcome]:
    return lambda task, **options: outcomes([task], **options)[0]
