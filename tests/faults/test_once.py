"""Each call, cut after every so many bytes of its request and of its answer, has its effect once, counted inside the sandbox.

`AVIATO_TEST_CUT_STEP=1` cuts at every byte.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from aviato import OperationRef, Sandbox, SandboxUnavailableError
from aviato.calls.one_command import run_only
from aviato.transport import http
from aviato.wire.frames import FrameType, encode
from aviato.wire.session import WHOLE, encode_head
from tests.conftest import RunningServer
from tests.faults.gate import Cut, Gate, gate_to
from tests.matrices import every

STEP = int(os.environ.get("AVIATO_TEST_CUT_STEP", "89"))
SHORTEST_ANSWER_BYTES = 16
SEED = int(os.environ.get("AVIATO_TEST_FAULT_SEED", "0")) or random.randrange(1, 1 << 31)
COUNT = """
import signal, sys
count = 0
def add(number, frame):
    global count
    count += 1
signal.signal(signal.SIGUSR1, add)
print("up", flush=True)
while sys.stdin.readline():
    print(count, flush=True)
"""


class Place:
    """Where calls are made, and cut."""

    def __init__(self, gate: Gate, server: RunningServer) -> None:
        self.gate = gate
        self.server = server
        self.box = Sandbox(base_url=gate.url)
        self.number = 0
        self.cut = Cut(b"")
        self._next: tuple[str, int] = "up", 0

    def next(self, way: str, at: int) -> None:
        """The call that follows is cut so."""
        self.number += 1
        self._next = way, at

    def arm(self, begins: str) -> None:
        """It begins now."""
        way, at = self._next
        self.cut = self.gate.cut(begins, **{way: at})

    async def done(self, operation: OperationRef[Any]) -> Any:
        """Its result, by `await` and by `result()` in turn."""
        return await operation if self.number % 2 else await asyncio.to_thread(operation.result, 30)

    async def ran(self) -> int:
        """How often the command of this number has run."""
        return (await self.box.read_file("ran")).split().count(str(self.number).encode())


# -- each makes one call, which is cut, and says whether it had its effect once


async def create(place: Place) -> bool:
    tag = f"one-{uuid.uuid4()}"
    box = Sandbox(base_url=place.gate.url, tags=[tag])
    place.arm("POST /v1/sandboxes\n")
    await place.done(box.start())
    found = await Sandbox.list(tags=[tag], include_stopped=True, base_url=place.server.url)
    await box.stop(0)
    return [one.sandbox_id for one in found] == [box.sandbox_id]


async def execute(place: Place, **options: Any) -> bool:
    place.arm("POST /v1/sandboxes/sb-")
    result = await place.done(place.box.exec(["sh", "-c", f"echo {place.number} >> ran; echo out; exit 3"], **options))
    return (result.returncode, result.stdout) == (3, "out\n") and await place.ran() == 1


async def detached(place: Place) -> bool:
    return await execute(place, detach=True)


async def alone(place: Place) -> bool:
    place.arm("POST /v1/runs\n")
    box = Sandbox(base_url=place.gate.url)
    work = run_only(box._state, ["sh", "-c", "echo once >> ran; cat ran; exit 3"], timeout_seconds=20)
    result = await place.done(OperationRef.start(work, name="the one command"))
    return (result.returncode, result.stdout) == (3, "once\n")


async def write_stdin(place: Place) -> bool:
    process = place.box.exec(["cat"], stdin=True)
    assert process.stdin is not None
    await process.stdin.write(b"one\n")
    place.arm("POST /v1/sandboxes/sb-")
    await place.done(process.stdin.write(f"{place.number}\n".encode()))
    await process.stdin.close()
    return (await process).stdout == f"one\n{place.number}\n"


async def write_file(place: Place) -> bool:
    """Somebody inside takes each file away, as from a queue: a second effect would leave one there."""
    taking = place.box.exec(["sh", "-c", "echo up; until mv job taken 2>/dev/null; do sleep 0.002; done"])
    assert await anext(aiter(taking.stdout)) == "up\n"
    place.arm("PUT ")
    await place.done(place.box.write_file("job", f"{place.number}".encode()))
    await taking
    names = [one.path.rpartition("/")[2] for one in await place.box.list_files(".")]
    return "job" not in names and await place.box.read_file("taken") == f"{place.number}".encode()


async def remove(place: Place) -> bool:
    """Somebody inside makes the file again: a second effect would remove that one."""
    await place.box.write_file("old", b"1")
    making = place.box.exec(["sh", "-c", "echo up; while [ -e old ]; do sleep 0.002; done; echo 2 > old"])
    assert await anext(aiter(making.stdout)) == "up\n"
    place.arm("DELETE ")
    await place.done(place.box.remove("old"))
    await making
    return await place.box.read_file("old") == b"2\n"


async def signal(place: Place) -> bool:
    process = place.box.exec(["python3", "-u", "-c", COUNT], stdin=True)
    assert process.stdin is not None
    lines = aiter(process.stdout.lines())
    assert await anext(lines) == "up"
    place.arm("POST /v1/sandboxes/sb-")
    await place.done(process.send_signal(10))
    await process.stdin.writeline("")
    counted = await anext(lines)
    await process.stdin.close()
    await process
    return counted == "1"


async def kill(place: Place) -> bool:
    process = place.box.exec(["sh", "-c", "echo up; sleep 60"])
    assert await anext(aiter(process.stdout)) == "up\n"
    place.arm("POST /v1/sandboxes/sb-")
    process.cancel()
    while not process.done():
        await asyncio.sleep(0.01)
    return (await place.box.exec(["sh", "-c", "cat /proc/[0-9]*/comm | grep -c sleep"])).stdout == "0\n"


async def stop(place: Place) -> bool:
    box = Sandbox(base_url=place.gate.url)
    await box
    place.arm("POST /v1/sandboxes/sb-")
    await place.done(box.stop(0))
    found = await Sandbox.from_id(box.sandbox_id, base_url=place.server.url)
    return (found.status, found.status_reason) == ("terminated", "stopped")


CALLS: list[Callable[[Place], Awaitable[bool]]] = [
    *(create, execute, detached, alone, write_stdin, write_file, remove, signal, kill, stop)
]


@pytest.fixture
def place(server: RunningServer) -> Iterator[Place]:
    with gate_to(server.url) as gate:
        place = Place(gate, server)
        with place.box:
            yield place


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("call", every(3, CALLS), ids=lambda call: call.__name__)
def test_cut_anywhere_it_has_its_effect_once(place: Place, call: Callable[[Place], Awaitable[bool]], way: str) -> None:
    print(f"AVIATO_TEST_FAULT_SEED={SEED}")
    begin = random.Random(SEED).randrange(STEP if way == "up" else min(STEP, SHORTEST_ANSWER_BYTES))

    async def all_of_it() -> int:
        count, at = 0, begin
        while True:
            place.next(way, at)
            assert await call(place), f"cut after {at} bytes {way}"
            if not place.cut.happened:
                return count
            count, at = count + 1, at + STEP

    count = asyncio.run(all_of_it())
    print(f"{count} cuts")
    assert count >= 100 // STEP


GARBLED = encode_head("201", {"Content-Type": "application/json"}), b"{}"
FOREIGN = encode_head("500", {"Content-Type": "text/plain"}), b"sorry"


@pytest.mark.parametrize(("head", "body"), [GARBLED, FOREIGN], ids=["garbled", "foreign"])
def test_a_sandbox_whose_start_seemed_to_fail_ends_with_its_stop(server: RunningServer, head: bytes, body: bytes) -> None:
    def answer(channel: int) -> bytes:
        return encode(FrameType.ANSWER, head + body, stream=WHOLE, channel=channel, offset=len(head))

    with gate_to(server.url) as gate:
        box = Sandbox(base_url=gate.url)
        cut = gate.cut("POST /v1/sandboxes\n", down=0, instead=answer)
        with pytest.raises(SandboxUnavailableError) as caught:
            box.start().result()
        assert cut.happened and (caught.value.reason, caught.value.retryable) == ("protocol", False)
        assert Sandbox.from_id(box.sandbox_id, base_url=server.url).result().status_reason is None
        box.stop(0).result()
        assert Sandbox.from_id(box.sandbox_id, base_url=server.url).result().status_reason == "stopped"


def test_where_no_server_answers_the_stop_adds_no_error(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FOREIGN_ANSWERS", 1)
    with gate_to(server.url, only_http=True) as gate:
        box = Sandbox(base_url=gate.url)

        def nobody(_: int) -> bytes:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

        gate.cut("POST /v1/sandboxes ", down=0, instead=nobody)
        with pytest.raises(SandboxUnavailableError, match="no aviato server"):
            box.start().result()
        gate.cut("POST /v1/sandboxes/sb-", down=0, instead=nobody)
        box.stop(0).result()
