"""Section 4: errors, each brought about for real."""

from __future__ import annotations

import asyncio
import os

import pytest

import aviato
from tests.surface.harness import Place, check


@check("AviatoError", "AviatoError.reason", "AviatoError.retryable", "AviatoError.retry_delay_seconds")
def base(place: Place) -> None:
    with pytest.raises(aviato.AviatoError) as caught:
        place.box().read_file("/nothing").result()
    assert (caught.value.reason, caught.value.retryable, caught.value.retry_delay_seconds) == ("no_such_file", False, None)


@check("AviatoError.is_infrastructure", "SandboxError")
def infrastructure(place: Place) -> None:
    with pytest.raises(aviato.SandboxError) as caught:
        place.box().read_file("/nothing").result()
    assert caught.value.is_infrastructure is False


@check("AviatoValidationError", "AviatoValidationError.field_violations")
def validation(place: Place) -> None:
    with pytest.raises(aviato.AviatoValidationError) as caught:
        place.box().exec(["true"], timeout_seconds=-1)
    assert "timeout_seconds" in caught.value.field_violations and isinstance(caught.value, ValueError)


@check("AviatoAuthenticationError")
def authentication(place: Place) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place.monkeypatch.setenv("AVIATO_API_KEY", "wrong")
    place.make_server(host="127.0.0.1", port=port)
    with pytest.raises(aviato.AviatoAuthenticationError) as caught:
        aviato.Sandbox.list(base_url=f"http://127.0.0.1:{port}").result(60)
    assert caught.value.is_infrastructure


@check("WandbAuthError")
def wandb_authentication(place: Place) -> None:
    place.monkeypatch.setenv("AVIATO_AUTH", "wandb")
    place.monkeypatch.setenv("NETRC", str(place.path / "none"))
    with pytest.raises(aviato.WandbAuthError, match="WANDB_API_KEY") as caught:
        aviato.Sandbox.list(base_url="https://127.0.0.1:9").result(60)
    place.monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    with pytest.raises(aviato.WandbAuthError, match="WANDB_ENTITY_NAME"):
        aviato.Sandbox.list(base_url="https://127.0.0.1:9").result(60)
    assert caught.value.is_infrastructure and isinstance(caught.value, aviato.AviatoAuthenticationError)


@check("SandboxFailedError")
def failed(place: Place) -> None:
    box = aviato.Sandbox(command="false")
    box.wait_until_complete().result(60)
    with pytest.raises(aviato.SandboxFailedError):
        box.exec(["true"]).result()


@check("SandboxResourceExhaustedError")
def exhausted(place: Place) -> None:
    """No capacity is waited for, so the error comes from what a server says that queues no more."""
    from aviato.exceptions import SandboxResourceExhaustedError
    from aviato.wire.errors import from_wire, to_wire

    sent = to_wire(SandboxResourceExhaustedError("full", retry_delay_seconds=2.0))
    error = from_wire(sent)
    assert isinstance(error, aviato.SandboxResourceExhaustedError) and error.is_infrastructure


@check("AsyncUsageWarning")
def blocking_on_a_loop(place: Place) -> None:
    box = place.box().wait()

    async def main() -> None:
        box.exec(["true"]).result()

    with pytest.warns(aviato.AsyncUsageWarning):
        asyncio.run(main())
    assert os.getpid()
