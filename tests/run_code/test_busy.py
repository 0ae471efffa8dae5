"""More requests than slots: they queue, a 504 tells in time to ask again, and who asks again goes on where it was."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aviato import scripts
from aviato.exceptions import SandboxRequestTimeoutError, SandboxUnavailableError
from aviato.server.backends.registry import make_backend
from aviato.server.link import file_calls
from aviato.server.service import Service, batches, commands_of_server, one_shot, run_code
from aviato.server.settings import ServerSettings
from aviato.server.state_dir import StateDirectory
from aviato.wire.run_code import RunCode
from tests.base_roots import share
from tests.conftest import make_state_dir, remove

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch, _private_environment: None) -> AsyncIterator[Service]:
    """One slot, and clients of little patience."""
    monkeypatch.setattr(run_code, "PATIENCE_SECONDS", run_code.MARGIN_SECONDS)
    state = make_state_dir()
    folder = StateDirectory(str(state / "server"))
    folder.make()
    share(Path(folder.path))
    service = Service(ServerSettings(run_code_concurrency=1), folder, make_backend("local", directory=Path(folder.path)))
    service.open()
    await service.ready()
    yield service
    await service.end_all()
    await service.close()
    remove(state)


def request(code: str, seconds: float, **fields: Any) -> RunCode:
    return RunCode(code=code, language="python", run_timeout=seconds / 2, compile_timeout=seconds / 2, **fields)


async def test_who_asks_again_goes_on_where_it_was(service: Service) -> None:
    await service.code.run(request("", 10))  # Python was tried.
    long = asyncio.create_task(service.code.run(request("import time; time.sleep(2)", 10)))
    await asyncio.sleep(0)
    second = request("print('second')", 0.8)
    with pytest.raises(SandboxRequestTimeoutError) as caught:
        await service.code.run(second)
    assert caught.value.reason == "busy" and caught.value.is_infrastructure
    # Those that come now wait behind it.
    third = asyncio.create_task(service.code.run(request("print('third')", 20)))
    order: list[str] = []
    third.add_done_callback(lambda _: order.append("third"))
    while True:
        try:
            result = await service.code.run(second)
            break
        except SandboxRequestTimeoutError:
            await asyncio.sleep(0.05)
    order.append("second")
    assert result.run_result is not None and result.run_result.stdout == "second\n"
    assert (await long).status == "Success"
    assert (await third).run_result.stdout == "third\n"  # type: ignore[union-attr]
    assert order[0] == "second"
    assert not service.code._waiting_again


async def test_who_does_not_come_again_is_forgotten(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_code, "KEPT_SECONDS", 0.2)
    monkeypatch.setattr(run_code, "PATIENCE_SECONDS", run_code.MARGIN_SECONDS - 119.0)
    with pytest.raises(SandboxRequestTimeoutError):
        await service.code.run(request("import time; time.sleep(30)", 120.0))
    await until(lambda: not service.registry.live and not service.one_shots._jobs)
    assert not service.code._waiting_again


async def test_a_full_queue_is_waited_for(service: Service) -> None:
    """Never 429: to the clients of this interface that is final."""
    service.slots.admission.queue_bound = 0
    with pytest.raises(SandboxRequestTimeoutError):
        await service.code.run(request("print(1)", 1.0))
    service.slots.admission.queue_bound = 10
    assert (await service.code.run(request("print(1)", 20))).status == "Success"


async def test_no_more_at_once_than_there_are_slots(service: Service) -> None:
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(service.registry.live))
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    results = await asyncio.gather(*(service.code.run(request(f"print({n})", 40)) for n in range(6)))
    watching.cancel()
    assert [result.run_result.stdout for result in results] == [f"{n}\n" for n in range(6)]  # type: ignore[union-attr]
    assert most == 1


async def test_a_sandbox_that_falls_silent_is_no_timeout_of_the_code(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the machine's failure, which is tried again before it is said."""
    monkeypatch.setattr(commands_of_server, "SILENCE_SECONDS", 0.3)
    async with service.one_shots.workplace(60) as place:
        running = asyncio.create_task(place.run(["sleep", "0.3"], timeout_seconds=0.5))
        while not place.sandbox.link.active_execs():  # type: ignore[union-attr]
            await asyncio.sleep(0.005)
        pidfd = service.backend._held[place.sandbox_id].pidfd  # type: ignore[attr-defined]
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        with pytest.raises(SandboxUnavailableError) as caught:
            await running
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    assert (caught.value.reason, caught.value.is_infrastructure) == ("silent", True)


async def test_a_sandbox_that_takes_no_files_is_no_matter_of_the_request(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has run in it yet."""
    monkeypatch.setattr(file_calls, "ANSWER_SECONDS", 0.3)
    async with service.one_shots.workplace(60) as place:
        await place.write("there", b"")
        pidfd = service.backend._held[place.sandbox_id].pidfd  # type: ignore[attr-defined]
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        with pytest.raises(SandboxUnavailableError) as caught:
            await place.write("never", b"")
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    assert (caught.value.reason, caught.value.is_infrastructure) == ("silent", True)


async def test_a_record_that_a_standing_sandbox_does_not_give_is_no_early_exit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "RECORD_SECONDS", 0.3)
    monkeypatch.setattr(one_shot, "ANSWER_SECONDS", 0.3)
    async with service.one_shots.workplace(60) as place:
        await place.write(scripts.RECORD_PATH, b"{}")
        pidfd = service.backend._held[place.sandbox_id].pidfd  # type: ignore[attr-defined]
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        with pytest.raises(SandboxUnavailableError) as caught:
            await service.batches._value(place, "nonce")
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        assert (caught.value.reason, caught.value.is_infrastructure) == ("silent", True)
        assert await service.batches._value(place, "nonce") is None


async def test_the_lease_goes_when_nothing_runs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an embedded server would never be idle."""

    monkeypatch.setattr(one_shot, "LEASE_IDLE_SECONDS", 0.1)
    await service.code.run(request("print(1)", 20))
    await until(lambda: service.idle)


async def until(condition: Any) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.02)
