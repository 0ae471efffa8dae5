"""GPUs of a cluster: counted by its scheduler, as any device of a node that a device plugin says it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato.server.backends.kubernetes.cluster import Cluster
from tests.kubernetes.pods.conftest import Namespace
from tests.kubernetes.pods.test_failures import wait_until

GPU, COUNT = "nvidia.com/gpu", 2


@pytest.fixture
def node(namespace: Namespace) -> Iterator[str]:
    """One that says of itself that it has two, as the scheduler sees them: no sandbox here uses one.

    Where there are others, it takes only who wants some, as is usual.
    """
    nodes = json.loads(namespace.kubectl("get", "nodes", "-o", "json"))["items"]
    if any(GPU in one["status"]["capacity"] for one in nodes):
        pytest.skip("the cluster has GPUs of its own, whose count is theirs")
    name = nodes[-1]["metadata"]["name"]

    def has(count: int) -> bool:
        found = json.loads(namespace.kubectl("get", "node", name, "-o", "json"))["status"]["allocatable"]
        return int(found.get(GPU, 0)) == count

    asyncio.run(say(name, str(COUNT)))
    if len(nodes) > 1:
        namespace.kubectl("taint", "node", name, f"{GPU}:NoSchedule")
    try:
        wait_until(lambda: has(COUNT))
        yield name
    finally:
        asyncio.run(say(name, None))
        namespace.kubectl("taint", "node", name, f"{GPU}-", check=False)
        wait_until(lambda: has(0))


async def say(node: str, count: str | None) -> None:
    """Have a node's status name so many."""
    cluster = await Cluster.connect(None, None)
    try:
        body = {"status": {what: {GPU: count} for what in ("capacity", "allocatable")}}
        await cluster.ask("PATCH", f"/api/v1/nodes/{node}/status", body, patch=True)
    finally:
        await cluster.close()


def test_gpus_are_kept_free(make_kubernetes: Callable[..., Any], namespace: Namespace, node: str) -> None:
    """Each is one sandbox's, on the node that has them; who gets none waits, and is told so in the scheduler's words."""
    make_kubernetes()
    with aviato.Session() as session:
        both = [session.sandbox(resources={"gpu": 1}) for _ in range(COUNT)]
        for sandbox in both:
            assert sandbox.exec(["echo", "x"]).result().stdout == "x\n"
            assert sandbox.tower_id == node and sandbox.limits["gpu"] == (1, "hard")
            (container,) = namespace.pod(str(sandbox.sandbox_id))["spec"]["containers"]
            assert container["resources"]["limits"][GPU] == container["resources"]["requests"][GPU] == "1"
        third = session.sandbox(resources={"gpu": 1})
        third.start().result()
        wait_until(lambda: third.get_status() == "pending" and f"Insufficient {GPU}" in str(third.status_reason))
        with pytest.raises(aviato.OperationTimeoutError, match=rf"\(pending: .*Insufficient {GPU}") as caught:
            third.wait(0.1)
        assert f"Insufficient {GPU}" in str(caught.value.status_reason)
        # Who needs none has room.
        other = session.sandbox()
        assert other.exec(["echo", "y"]).result().stdout == "y\n"
        assert other.tower_id != node or len(namespace.nodes()) == 1
        both[0].stop().result()
        assert third.exec(["echo", "z"]).result().stdout == "z\n"
        assert third.tower_id == node
