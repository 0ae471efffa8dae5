"""A cluster, a namespace of its own in it, and servers whose sandboxes are pods there.

Any cluster that `KUBECONFIG` names, if its nodes have the images of `images.py`; else the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

import aviato
from aviato.promises.serving import Serving
from tests.conftest import SERVE

pytest.importorskip("kubernetes_asyncio", reason="the extra kubernetes is not installed")

CLAIM = "tests"
NAMES = ("KUBECONFIG", "AVIATO_TEST_KUBERNETES_IMAGE", "AVIATO_TEST_KUBERNETES_INIT_IMAGE")
GIVEN = {name: os.environ[name] for name in NAMES if os.environ.get(name)}
"""Before the tests' own environment takes their place."""


class Namespace:
    """A namespace, asked by kubectl: another client than ours is the oracle."""

    def __init__(self, name: str, image: str, init_image: str) -> None:
        self.name = name
        self.image = image
        self.init_image = init_image

    def settings(self, claim: str | None = None) -> dict[str, Any]:
        """Of a server, by default with a claim of its own."""
        return {
            "backend": "kubernetes",
            "default_image": self.image,
            "kubernetes_namespace": self.name,
            "kubernetes_claim": claim or f"{CLAIM}-{uuid.uuid4().hex[:8]}",
            "kubernetes_init_image": self.init_image,
        }

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        """What it prints."""
        done = subprocess.run(["kubectl", "-n", self.name, *words], input=given, capture_output=True, text=True, timeout=250)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def all(self, kind: str, selector: str | None = None, *, own: bool = True) -> list[dict[str, Any]]:
        """Objects of a kind; with `own` without those that the cluster makes."""
        found = json.loads(self.kubectl("get", kind, "-o", "json", *(["-l", selector] if selector else [])))["items"]
        theirs = ("kube-root-ca", "default-token")
        return [one for one in found if not own or not one["metadata"]["name"].startswith(theirs)]

    def nodes(self) -> list[str]:
        """The names of the cluster's nodes."""
        return sorted(one["metadata"]["name"] for one in json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"])

    def pod(self, sandbox_id: str) -> dict[str, Any]:
        """The pod of a sandbox."""
        return next(one for one in self.all("pods") if one["metadata"]["labels"].get("aviato.dev/sandbox") == sandbox_id)


Made = TypeVar("Made", bound=Namespace)


@contextmanager
def own_namespace(kind: type[Made]) -> Iterator[Made]:
    """One for this process, which goes with all that is in it."""
    missing = [name for name in NAMES if name not in GIVEN]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not set; see tests/kubernetes/pods/images.py")
    made = kind(f"aviato-{uuid.uuid4().hex[:8]}", GIVEN[NAMES[1]], GIVEN[NAMES[2]])
    done = subprocess.run(["kubectl", "create", "namespace", made.name], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the cluster cannot be used: {done.stderr.strip()}")
    try:
        yield made
    finally:
        made.kubectl("delete", "configmap", "--all", check=False)
        subprocess.run(["kubectl", "delete", "namespace", made.name, "--wait=false"], capture_output=True)


def skip_if_out_of_reach(node: str, error: aviato.SandboxImageError) -> None:
    """Skip where a node, by what it says of an image, does not reach the registry of the test."""
    if "refused" in str(error) or "no such host" in str(error):
        pytest.skip(f"the node {node} does not reach a registry of this machine's loopback")


@pytest.fixture(scope="session")
def namespace() -> Iterator[Namespace]:
    """One for this process; nothing of ours is in it at the end."""
    with own_namespace(Namespace) as made:
        yield made
        deadline = time.monotonic() + 60
        while left := [one["metadata"]["name"] for kind in ("pods", "secrets") for one in made.all(kind)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)


@pytest.fixture(scope="module")
def serving(namespace: Namespace) -> Serving:
    """Servers of the suite of whole backends, all with one claim."""
    variables = {f"AVIATO_{name.upper()}": value for name, value in namespace.settings().items()}
    variables["KUBECONFIG"] = GIVEN["KUBECONFIG"]
    return Serving(backend="kubernetes", variables=variables, command=(sys.executable, "-c", SERVE))


@pytest.fixture
def make_kubernetes(
    namespace: Namespace, make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Makes a server on the cluster, which is the one that clients ask."""

    def make(**settings: Any) -> Any:
        running = make_server(**namespace.settings() | settings)
        monkeypatch.setenv("AVIATO_BASE_URL", running.url)
        return running

    return make


@pytest.fixture
def session(make_kubernetes: Callable[..., Any]) -> Iterator[aviato.Session]:
    """A session on a server of its own."""
    make_kubernetes()
    with aviato.Session() as made:
        yield made
