"""A namespace of a cluster with the definitions of agent-sandbox, and a stand-in for its controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kubernetes.agent_sandbox.controller import Controller
from tests.kubernetes.agent_sandbox.definitions import KINDS, CannotBe, installed
from tests.kubernetes.pods.conftest import Namespace, own_namespace

GONE_SECONDS = 45
"""A cluster's garbage collector looks twice a minute for kinds that it does not know yet."""


class Agents(Namespace):
    """A namespace with a controller.

    Attributes:
        controller: of its Sandboxes.
    """

    controller: Controller

    def left(self) -> list[str]:
        """What there is of sandboxes."""
        kinds = ("pods", *(f"{plural}.{group}" for group, plural in KINDS.values()))
        found = [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.all(kind)]
        return [*found, *(one["metadata"]["name"] for one in self.all("secrets", "aviato.dev/place"))]

    def wait_empty(self, seconds: float = GONE_SECONDS) -> None:
        """Until nothing is left."""
        deadline = time.monotonic() + seconds
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    def sandboxes(self, selector: str | None = None) -> list[dict[str, Any]]:
        """The Sandboxes of agent-sandbox."""
        return self.all("sandboxes.agents.x-k8s.io", selector)

    def claims(self) -> list[dict[str, Any]]:
        """The SandboxClaims."""
        return self.all("sandboxclaims.extensions.agents.x-k8s.io")

    def has_ready(self, pool: str, count: int) -> bool:
        """Whether a pool has as many that are ready."""
        found = self.all("sandboxwarmpools.extensions.agents.x-k8s.io")
        one = next(one for one in found if one["metadata"]["name"] == pool)
        return bool((one.get("status") or {}).get("readyReplicas", 0) >= count)


@pytest.fixture(scope="session")
def namespace() -> Iterator[Agents]:
    """One for this process; nothing of ours is in it at the end."""
    with own_namespace(Agents) as made:
        try:
            with installed():
                made.controller = Controller(made.name)
                made.controller.start()
                try:
                    yield made
                    made.wait_empty()
                finally:
                    for group, plural in KINDS.values():
                        made.kubectl("delete", f"{plural}.{group}", "--all", "--wait=false", check=False)
                    made.controller.stop()
        except CannotBe as error:
            pytest.skip(str(error))


@pytest.fixture
def make_kubernetes(namespace: Agents, make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a server that asks for Sandboxes, which is the one that clients ask."""

    def make(**settings: Any) -> Any:
        running = make_server(**namespace.settings() | {"kubernetes_objects": "agent-sandbox"} | settings)
        monkeypatch.setenv("AVIATO_BASE_URL", running.url)
        return running

    return make


@pytest.fixture
def make_pool(namespace: Agents) -> Iterator[Callable[..., str]]:
    """Makes a warm pool with what the command prints; returns its name, once its sandboxes are ready."""
    made: list[str] = []

    def make(claim: str, *flags: str, count: int = 1, image: str | None = None, ready: bool = True) -> str:
        name = f"pool-{uuid.uuid4().hex[:6]}"
        own = {"claim": claim, "namespace": namespace.name, "init_image": namespace.init_image}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "aviato", "kubernetes", "warm-pool", name, "--count", str(count)),
                *("--image", image or namespace.image, *flags),
            ],
            env={**os.environ, **{f"AVIATO_KUBERNETES_{key.upper()}": value for key, value in own.items()}},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert {one["kind"] for one in json.loads(done.stdout)["items"]} == {"SandboxTemplate", "SandboxWarmPool"}
        namespace.kubectl("apply", "-f", "-", given=done.stdout)
        made.append(name)
        deadline = time.monotonic() + 60
        while ready and not namespace.has_ready(name, count):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return name

    yield make
    for name in made:
        for kind in ("sandboxwarmpools", "sandboxtemplates"):
            namespace.kubectl("delete", f"{kind}.extensions.agents.x-k8s.io", name, "--wait=false", check=False)
    namespace.controller.look()
    # The cluster would do so, too, up to half a minute later; as long may its kubelets take to say that a pod is gone.
    for kind, how in (("sandboxes.agents.x-k8s.io", []), ("pods", ["--grace-period=0", "--force"])):
        names = [one["metadata"]["name"] for one in namespace.all(kind) if one["metadata"]["name"].startswith(tuple(made))]
        namespace.kubectl("delete", kind, "--wait=false", "--ignore-not-found", *how, *names) if names else None
