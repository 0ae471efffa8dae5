"""One server for the tests that do not care which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from tests.conftest import RunningServer
from tests.run_code.served import over_tcp


@pytest.fixture(scope="session")
def tcp(_private_environment: None) -> Iterator[tuple[RunningServer, str]]:
    with over_tcp() as made:
        yield made


@pytest.fixture
def base(tcp: tuple[RunningServer, str]) -> str:
    return tcp[1]


@pytest.fixture
def run_code(base: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """Code in, answer out; only 200 is fine."""
    with requests.Session() as http:

        def call(code: str, language: str = "python", **fields: Any) -> dict[str, Any]:
            response = http.post(f"{base}/run_code", json={"code": code, "language": language, **fields}, timeout=50)
            assert response.status_code == 200, response.text
            body: dict[str, Any] = response.json()
            return body

        yield call
