"""Commands give their results and run once each, whatever happens to the server and to the connections meanwhile.

`AVIATO_TEST_FAULT_COMMANDS=1000 AVIATO_TEST_FAULT_SEED=7` makes it the long form, with a seed of one's own.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.server.fault_injection import OF_MOVES, POINTS
from tests.conftest import free_port
from tests.faults.conftest import FaultyServer, RunningProxy
from tests.faults.work import Work

COMMANDS = int(os.environ.get("AVIATO_TEST_FAULT_COMMANDS", "150"))
SEED = int(os.environ.get("AVIATO_TEST_FAULT_SEED", "0")) or random.randrange(1, 1 << 31)
IS_LONG = COMMANDS >= 1000
CUTS = 200 if IS_LONG else 20
RUNNING, CREATING = 8, 4
"""What goes on at each kill, at least."""
AT_ONCE, MAKERS = 24 if IS_LONG else 16, 16
PATIENCE_SECONDS = 30.0
FAULT_SECONDS = 0.1
"""Between two faults on connections, on the average and at least."""
KILLED = [name for name in POINTS if name not in ("disk.before", *OF_MOVES)]
KILLS = 2 * len(KILLED) if IS_LONG else 5
"""No command here writes to the server's disk."""


@pytest.fixture
def seed() -> int:
    print(f"AVIATO_TEST_FAULT_SEED={SEED}")
    return SEED


def _kills(seed: int) -> Iterator[str]:
    """Where the server is killed: in the long form twice at each point."""
    draw = random.Random(seed)
    return iter(draw.sample(KILLED * 2, KILLS))


@pytest.fixture(params=["unix", "tcp"])
def place(
    request: pytest.FixtureRequest,
    make_faulty: Any,
    make_proxy: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> tuple[FaultyServer, RunningProxy]:
    """A server and the proxy in front of it."""
    if request.param == "unix":
        server = make_faulty()
        return server, make_proxy(server.socket, seed=seed, every=FAULT_SECONDS)
    (tmp_path / "keys").write_text("the-key\n")
    monkeypatch.setenv("AVIATO_API_KEY", "the-key")
    port = free_port()
    server = make_faulty(port=port, api_key_file=tmp_path / "keys")
    return server, make_proxy(f"127.0.0.1:{port}", seed=seed, every=FAULT_SECONDS, listen="127.0.0.1:0")


@pytest.mark.long
@pytest.mark.timeout(1800 if IS_LONG else 300)
def test_kills_and_cuts(place: tuple[FaultyServer, RunningProxy], seed: int) -> None:
    server, proxy = place
    work = Work(proxy.url, seed, COMMANDS, at_once=AT_ONCE, makers=MAKERS)
    waits: list[str] = []
    work.needed = True

    async def kill() -> None:
        try:
            await kill_all()
        finally:
            work.needed = False

    async def kill_all() -> None:
        for number, point in enumerate(_kills(seed), 1):
            while work.done < 0.75 * COMMANDS * (number - 0.5) / KILLS:
                await asyncio.sleep(0.01)
            server.arm("kill", point, RUNNING, CREATING)
            begin = time.monotonic()
            while not server.died and time.monotonic() < begin + PATIENCE_SECONDS:
                await asyncio.sleep(0.005)
            waits.append(f"{point} {time.monotonic() - begin:.1f} s")
            if not server.died:
                server.disarm()
                continue
            await asyncio.to_thread(server.start)

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill())
            tasks.create_task(work.run())

    begin = time.monotonic()
    asyncio.run(both())
    hits = server.hits
    print(
        f"{work.done} commands and {work.made} sandboxes beside in {time.monotonic() - begin:.0f} s; {len(hits)} kills at",
        waits,
    )
    print("faults on connections:", dict(proxy.counts))
    assert not work.wrong, "\n".join(work.wrong)
    assert [hit[0] for hit in hits] == ["kill"] * KILLS
    assert min(hit[2] for hit in hits) >= RUNNING and min(hit[3] for hit in hits) >= CREATING
    assert proxy.counts["cut"] >= CUTS
    if IS_LONG:
        assert set(Counter(hit[1] for hit in hits).items()) == {(name, 2) for name in KILLED}
    assert aviato.Sandbox.list(base_url=server.url).result() == []
    assert server.places() == []
