"""Sixty sandboxes on the nodes of a cluster, and what becomes of them when a server or a node dies."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from tests.kubernetes.pods.conftest import Namespace
from tests.kubernetes.pods.test_failures import Service, service, wait_until
from tests.matrices import deep

__all__ = ["service"]

SANDBOXES = 60
VARIABLE = "AVIATO_TEST_KILL_NODE"
KILL_NODE = os.environ.get(VARIABLE)
"""A command that ends a node without a word, with its name behind it."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("many", deep([SANDBOXES]))
def test_many_survive_the_death_of_a_server(
    make_server: Callable[..., Any], namespace: Namespace, service: Service, many: int
) -> None:
    """In the middle of their commands: no result is lost, none is another's, and nothing runs twice."""
    one, two = (make_server(**namespace.settings("many"), max_sandboxes=many) for _ in range(2))
    service.lead_to(one)
    asked = aviato.ResourceOptions(requests={"cpu": "5m", "memory": "16Mi"}, limits={"memory": "64Mi"})
    with aviato.Session() as session:
        nodes = namespace.nodes()  # Where a scheduler puts them depends on what else is there, and is about to go.
        sandboxes = [session.sandbox(resources=asked, tower_ids=[nodes[number % len(nodes)]]) for number in range(many)]
        began = time.monotonic()
        for sandbox in sandboxes:
            sandbox.start()
        for sandbox in sandboxes:
            sandbox.wait()
        print(f"{many} sandboxes ran after {time.monotonic() - began:.1f} s")
        script = "echo $0; echo x >> runs; sleep 8; wc -l < runs"
        running = [sandbox.exec(["sh", "-c", script, str(number)]) for number, sandbox in enumerate(sandboxes)]
        time.sleep(4)
        service.lead_to(two)
        one.stop(signal.SIGKILL)
        assert [process.result().stdout for process in running] == [f"{number}\n1\n" for number in range(many)]
        assert [sandbox.tower_id for sandbox in sandboxes] == [nodes[number % len(nodes)] for number in range(many)]
    wait_until(lambda: namespace.all("pods", "aviato.dev/claim=many") == [], 60)


@pytest.mark.skipif(KILL_NODE is None, reason=f"{VARIABLE}: not set; it says how a node is killed")
def test_a_node_that_dies(session: aviato.Session, namespace: Namespace) -> None:
    """Its sandboxes are the cluster's failures, and others' are not touched. Last: the node does not come back."""
    nodes = namespace.nodes()
    pairs = {name: session.sandbox(tower_ids=[name]).wait() for name in nodes}
    running = {name: sandbox.exec(["sleep", "1000"]) for name, sandbox in pairs.items()}
    dying = nodes[-1]
    assert KILL_NODE is not None
    subprocess.run([KILL_NODE, dying], check=True)
    with pytest.raises(aviato.AviatoError) as caught:
        running[dying].result(200)
    assert caught.value.is_infrastructure
    for name in nodes[:-1]:
        assert pairs[name].exec(["echo", "on"]).result().stdout == "on\n"
