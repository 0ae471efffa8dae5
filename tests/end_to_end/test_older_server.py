"""A server of an earlier version of the library, which does not know everything that this client says."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aviato
from aviato.transport.http import HttpTransport


def test_what_it_does_not_know_is_told_with_what_to_do(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = HttpTransport.open

    async def later(self: HttpTransport, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if path == "/v1/sandboxes" and isinstance(body, bytes):
            body = json.dumps({**json.loads(body), "a_later_field": 1}).encode()
        return await usual(self, method, path, body, **options)

    monkeypatch.setattr(HttpTransport, "open", later)
    said = rf"older than this client and does not know a_later_field; end the server \(pid {server.pid}\)"
    with pytest.raises(aviato.SandboxUnavailableError, match=said) as caught:
        aviato.Sandbox(base_url=server.url).exec(["true"]).result(60)
    assert caught.value.is_infrastructure and not caught.value.retryable and caught.value.reason == "wire_version"
