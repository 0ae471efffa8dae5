"""Calls that are repeated, and those that are not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, SandboxDefaults
from aviato.core.client import encode_create, encode_exec
from aviato.wire.ids import new_lease_id, new_sandbox_id
from aviato.wire.sandboxes import CreateSandbox
from tests.core.fake import FakeServer, serving


def listing(tmp_path: Path, script: Any, **limits: Any) -> tuple[Any, FakeServer]:
    """List sandboxes against a scripted server; the outcome or the error."""

    async def main() -> tuple[Any, FakeServer]:
        async with serving(tmp_path) as fake:
            fake.others = [getattr(fake, step) if isinstance(step, str) else step(fake) for step in script]
            async with AsyncClient(defaults=SandboxDefaults(base_url=fake.url, **limits)) as client:
                try:
                    return await client.list(), fake
                except aviato.AviatoError as error:
                    return error, fake

    return asyncio.run(main())


def page(*ids: str, cursor: str | None = None) -> Any:
    def script(fake: FakeServer) -> Any:
        async def reply(_: Any) -> Any:
            infos = [{"sandbox_id": one, "status": "running", "status_updated_at": 1, "created_at": 1, "new": 1} for one in ids]
            return fake.json({"sandboxes": infos, "next_cursor": cursor, "added_later": True})

        return reply

    return script


def error(code: str, status: int, **fields: Any) -> Any:
    return lambda fake: fake.error(code, status, **fields)


def test_pages_are_followed_and_unknown_fields_ignored(tmp_path: Path) -> None:
    found, fake = listing(tmp_path, [page("a", "b", cursor="c/1"), page("b", "d")])
    assert [one.sandbox_id for one in found] == ["a", "b", "d"]
    assert "cursor=c%2F1" in fake.requests[1][1]


@pytest.mark.parametrize(
    "step",
    [
        "hang_up",
        error("UNAVAILABLE", 503, retryable=True),
        error("RESOURCE_EXHAUSTED", 429, retryable=True, retry_delay_seconds=0.2),
        error("REQUEST_TIMEOUT", 504, retryable=True),
    ],
)
def test_what_is_repeated(tmp_path: Path, step: Any) -> None:
    found, fake = listing(tmp_path, [step, step, page("a")])
    assert [one.sandbox_id for one in found] == ["a"]
    assert len(fake.requests) == 3


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("VALIDATION", 400, aviato.AviatoValidationError),
        ("AUTHENTICATION", 401, aviato.AviatoAuthenticationError),
        ("SANDBOX_NOT_FOUND", 404, aviato.SandboxNotFoundError),
        ("SANDBOX_FAILED", 409, aviato.SandboxFailedError),
        ("FROM_THE_FUTURE", 418, aviato.AviatoError),
    ],
)
def test_what_is_not(tmp_path: Path, code: str, status: int, kind: type[Exception]) -> None:
    found, fake = listing(tmp_path, [error(code, status)])
    assert type(found) is kind
    assert code in str(found)
    assert len(fake.requests) == 1


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    begin = time.monotonic()
    listing(tmp_path, [error("RESOURCE_EXHAUSTED", 429, retryable=True, retry_after="0.6"), page()])
    assert time.monotonic() - begin > 0.6


def test_a_silent_server(tmp_path: Path) -> None:
    begin = time.monotonic()
    found, _ = listing(tmp_path, ["silence"], request_timeout_seconds=0.3, reconnect_timeout_seconds=0.1)
    assert isinstance(found, aviato.SandboxRequestTimeoutError)
    assert isinstance(found, TimeoutError)
    assert found.is_infrastructure
    assert time.monotonic() - begin < 7


def test_another_wire_version(tmp_path: Path) -> None:
    def script(fake: FakeServer) -> Any:
        fake.headers = {"Aviato-Wire": "0", "Aviato-Server-Pid": "4711"}
        return page()(fake)

    found, fake = listing(tmp_path, [script])
    assert isinstance(found, aviato.SandboxUnavailableError)
    assert "version 0, this client 1; end the server (pid 4711)" in str(found)
    assert len(fake.requests) == 1


def foreign(status: int) -> Any:
    def script(fake: FakeServer) -> Any:
        async def reply(_: Any) -> Any:
            from aiohttp import web

            fake.headers = {}
            return web.Response(text="<html>welcome</html>", status=status)

        return reply

    return script


@pytest.mark.parametrize("status", [200, 404])
def test_no_aviato_server(tmp_path: Path, status: int) -> None:
    found, fake = listing(tmp_path, [foreign(status)] * 4)
    assert isinstance(found, aviato.SandboxUnavailableError) and found.is_infrastructure
    assert "no aviato server" in str(found) and not found.retryable
    assert len(fake.requests) == 3


def back(fake: FakeServer) -> Any:
    async def reply(_: Any) -> Any:
        fake.headers = {"Aviato-Wire": "1"}
        infos = [{"sandbox_id": "b", "status": "running", "status_updated_at": 1, "created_at": 1}]
        return fake.json({"sandboxes": infos, "next_cursor": None})

    return reply


@pytest.mark.parametrize("status", [200, 404])
def test_somebody_else_s_answer_where_there_was_an_aviato_server(tmp_path: Path, status: int) -> None:
    """As of a proxy in between that is being set up: it is tried again."""
    found, fake = listing(tmp_path, [page("a", cursor="c"), *[foreign(status)] * 4, back])
    assert [one.sandbox_id for one in found] == ["a", "b"] and len(fake.requests) == 6


@pytest.mark.parametrize("status", [200, 404])
def test_the_first_answer_of_all_is_a_proxy_s_mishap(tmp_path: Path, status: int) -> None:
    found, fake = listing(tmp_path, [foreign(status), back])
    assert [one.sandbox_id for one in found] == ["b"] and len(fake.requests) == 2


def test_an_answer_that_is_no_json_is_a_typed_error(tmp_path: Path) -> None:
    def script(fake: FakeServer) -> Any:
        async def reply(_: Any) -> Any:
            from aiohttp import web

            return web.Response(text="not json", headers=fake.headers)

        return reply

    found, _ = listing(tmp_path, [script])
    assert isinstance(found, aviato.SandboxUnavailableError)


@pytest.mark.parametrize(
    "fields", [{}, {"tags": ["a"], "environment_variables": {"ä": '"x'}}, {"annotations": {"a": "b" * 70_000}}]
)
def test_creates_with_the_same_fields_are_their_own(fields: dict[str, Any]) -> None:
    """What they have in common is encoded once; others' fields, and other sandboxes' ids, are in none of them."""
    for common in (fields, {"image": "host"}, fields, dict(fields)):
        for own in ({"sandbox_id": new_sandbox_id()}, {"sandbox_id": new_sandbox_id(), "lease_id": new_lease_id()}):
            assert CreateSandbox.model_validate_json(encode_create(common, **own)) == CreateSandbox(**own, **common)


def test_fields_that_the_wire_does_not_allow_are_refused_each_time() -> None:
    fields = {"tags": ["\n"]}
    for _ in range(2):
        with pytest.raises(aviato.AviatoValidationError, match="tags"):
            encode_create(fields, sandbox_id=new_sandbox_id())


def test_text_that_is_not_unicode_is_refused() -> None:
    for fields in ({"command": ["\ud800"]}, {"environment_variables": {"\ud800": "x"}}):
        with pytest.raises(aviato.AviatoValidationError, match="not Unicode"):
            encode_exec({"exec_id": "ex", **fields})
