"""What a session counts of builds, pools, snapshots, forks and resets, from blocking code and from coroutines."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from aviato import AviatoError, Image, Sandbox, Session
from aviato.policy.counts import IF_ANY
from tests.end_to_end.test_pools import full

pytestmark = pytest.mark.usefixtures("served")
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "metrics.md"


def counted(session: Session) -> dict[str, float]:
    """What is shown only where there was any."""
    found = session.get_metrics()
    return {name: found[f"aviato/{name}"] for name in IF_ANY if f"aviato/{name}" in found}


def test_the_guide_names_each() -> None:
    said = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert set(IF_ANY) <= said


def test_a_pool_s_claims_and_misses(session: Session) -> None:
    with session.pool(1) as pool:
        full(pool)
        assert pool.sandbox().exec(["true"]).result().returncode == 0  # Its create goes with the command.
        full(pool)
        pool.sandbox().wait()
        pool.sandbox(resources={"limits": {"processes": 77}}).wait()
        session.sandbox().wait()
    assert counted(session) == {"pool_claims": 2, "pool_misses": 1}


def test_steps_of_builds(tmp_path: Path) -> None:
    image = Image.from_("host").run(f"echo {tmp_path} >/srv/which").run("echo two >/srv/two")
    with Session() as first:
        for sandbox in [first.sandbox(container_image=image) for _ in range(3)]:
            sandbox.wait()
        more = image.run("echo three >/srv/three")
        first.sandbox(container_image=more).wait()
        assert counted(first) == {"build_steps": 3, "build_steps_cached": 2}
        broken = more.run("false")
        with pytest.raises(AviatoError):
            first.sandbox(container_image=broken).wait()
        assert counted(first) == {"build_steps": 3, "build_steps_cached": 5}
    with Session() as second, second.pool(1, container_image=image.run("echo else >/srv/else")) as pool:
        full(pool)
        assert counted(second) == {"build_steps": 1, "build_steps_cached": 2}


def test_by_await() -> None:
    async def work() -> dict[str, float]:
        async with Session() as session:
            parent = session.sandbox()
            taken = await parent.snapshot()
            for child in parent.fork(2):
                await child.exec(["true"])
            await parent.reset(to=taken)
            await parent.reset()
            with pytest.raises(AviatoError):
                await parent.reset(to="none-of-that-name")
            await Sandbox.delete_snapshot(taken.snapshot_id)
            return counted(session)

    assert asyncio.run(work()) == {"snapshots": 1, "forks": 2, "resets": 2}
