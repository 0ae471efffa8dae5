"""What other servers of a claim have left, and when it goes: by objects as a cluster has them, and a real process 1."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from aviato.server.backends.kubernetes import left_behind, reach
from aviato.server.backends.kubernetes.cluster import ClusterError
from aviato.server.backends.kubernetes.left_behind import LeftBehind
from aviato.server.backends.kubernetes.options import ClusterOptions
from aviato.server.backends.kubernetes.pods import Pods
from aviato.server.backends.kubernetes.sandbox_maker import SandboxMaker
from tests.protocol.networked import POD, place

pytestmark = pytest.mark.anyio

LABELS = {"aviato.dev/claim": "c", "aviato.dev/server": "other"}
STATUS: dict[str, dict[str, Any]] = {
    "runs": {"podIP": "127.0.0.1", "containerStatuses": [{"name": "sandbox", "state": {"running": {}}}]},
    "waits": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
    "ended": {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": {"terminated": {"exitCode": 83}}}]},
}


class Names:
    """The Secrets of a cluster, and nothing else of it."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.asked = 0

    def path(self, kind: str, name: str | None = None, *, group: str = "") -> str:
        return kind

    async def all(self, path: str, selector: str, *, names_alone: bool = False) -> tuple[list[Any], str]:
        assert (path, names_alone) == ("secrets", True) and "aviato.dev/server!=own" in selector
        self.asked += 1
        return [found(one) for one in self.places], "1"


def found(place_id: str, server: str = "other", status: str = "runs", **metadata: Any) -> dict[str, Any]:
    """An object of a place."""
    labels = {**LABELS, "aviato.dev/place": place_id, "aviato.dev/server": server}
    known = {"name": f"aviato-{place_id}", "uid": POD, "labels": labels, **metadata}
    return {"metadata": known, "spec": {"nodeName": "n"}, "status": STATUS[status]}


class Left:
    """One server's look at them; `removed` has what it took away, in order."""

    def __init__(self) -> None:
        self.cluster: Any = Names()
        options = ClusterOptions(claim="c", start_seconds=1.0, objects="agent-sandbox", warm_pool="p")
        self.pods = Pods(self.cluster, "c", "own", lambda _: None)
        self.maker = SandboxMaker(self.cluster, self.pods, options)
        self.removed: list[str] = []
        self.look = LeftBehind(self.cluster, self.pods, self.maker, options, "own", self.remove)

    async def remove(self, place_id: str) -> None:
        if place_id not in self.removed:
            self.removed.append(place_id)
        self.pods.forget(place_id)
        if place_id == "resists":
            raise ClusterError(500, "not now")

    def from_pool(self, place_id: str) -> None:
        """A claim of a warm pool has it."""
        self.maker._claims.take(place_id, found(place_id))
        self.pods.take(place_id, found(place_id))

    async def until(self, *places: str) -> None:
        async with asyncio.timeout(60):
            while set(self.removed) < set(places):
                await asyncio.sleep(0.01)


@pytest.fixture
async def left(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(left_behind, "ABANDONED_SECONDS", 0.1)
    made = Left()

    async def look() -> None:
        while True:
            await made.look.look()
            await asyncio.sleep(0.01)

    task = asyncio.create_task(look())
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_has_ended_goes_first_and_what_waits_after_any_start(left):
    for status in STATUS:
        left.pods.take(f"own-{status}", found(f"own-{status}", "own", status))
        left.pods.take(status, found(status, status=status))
    left.pods.take("resists", found("resists", status="ended"))
    left.cluster.places = ["alone", "runs", "waits", "own-runs"]
    await left.until("ended", "own-ended", "resists", "waits", "alone")
    # Nothing that runs, nothing of its own that goes on, and one that cannot be removed holds up no other.
    asked = left.cluster.asked
    while left.cluster.asked < asked + 5:
        await asyncio.sleep(0.01)
    assert set(left.removed) == {"ended", "own-ended", "resists", "waits", "alone"}
    assert set(left.removed[:3]) == {"ended", "own-ended", "resists"}


@pytest.mark.parametrize("told", [False, True])
async def test_one_of_a_pool_that_was_never_told_anything(left, monkeypatch, told):
    """Its server died after it had labelled it: its process 1 says whether it was."""
    left.maker._pool_key = secrets.token_bytes(32)
    async with place(pool_key=left.maker._pool_key) as there:
        monkeypatch.setattr(reach, "PORT", there.port)
        sock = await there.begun() if told else None
        left.from_pool("pl-1")
        if sock is None:
            await left.until("pl-1")
        else:
            async with asyncio.timeout(60):
                while left.look._begun != {"pl-1"}:
                    await asyncio.sleep(0.01)
            assert left.removed == []
            left.pods.forget("pl-1")
            async with asyncio.timeout(60):
                while left.look._begun:
                    await asyncio.sleep(0.01)


async def test_one_that_does_not_answer_is_asked_again(left, monkeypatch):
    left.maker._pool_key = secrets.token_bytes(32)
    async with place(pool_key=left.maker._pool_key) as there:
        monkeypatch.setattr(reach, "PORT", 1)
        left.from_pool("pl-1")
        asked = left.cluster.asked
        while left.cluster.asked < asked + 6:
            await asyncio.sleep(0.01)
        assert left.removed == []
        monkeypatch.setattr(reach, "PORT", there.port)
        await left.until("pl-1")


def test_whose_a_place_is_says_what_was_asked_for():
    """A controller may bring labels of a pod back that are older than those of the Sandbox, or of the claim."""
    made = Left()
    assert made.maker.server("pl-1") is None
    made.maker._sandboxes.take("pl-1", found("pl-1", "own"))
    assert made.maker.server("pl-1") is None, "there is no pod to have"
    made.pods.take("pl-1", found("pl-1", "other"))
    assert (made.pods.server("pl-1"), made.maker.server("pl-1")) == ("other", "own")
    made.pods.take("pl-2", found("pl-2", "other"))
    assert made.maker.server("pl-2") == "other"
