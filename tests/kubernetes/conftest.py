"""A cluster, by KUBECONFIG, whichever it is; a namespace of its own for each module; the server's image on its nodes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

IMAGE_VARIABLE = "AVIATO_TEST_SERVER_IMAGE"
IMAGE = os.environ.get(IMAGE_VARIABLE)
"""Now: tests are made without variables of ours."""
REACH_SECONDS = 5
KEY = "key-of-the-tests"
KEYS = f"{KEY}\nprobe /v1/health\n"


@dataclass(frozen=True)
class Cluster:
    """What answers at KUBECONFIG; `namespace` is where its commands go."""

    namespace: str = "default"

    def run(self, *arguments: str, given: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """kubectl."""
        command = ["kubectl", "--namespace", self.namespace, *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=seconds, check=False)

    def kubectl(self, *arguments: str, given: str | None = None, seconds: float = 60) -> str:
        """What it says; it has to go well."""
        done = self.run(*arguments, given=given, seconds=seconds)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Objects, as the server has them."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make them, or change them. What a server is too old for, it leaves out."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--validate=false", "-f", "-", given=text)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """One that answers, or the reason why these tests are skipped."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl")
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: set KUBECONFIG, to one on which namespaces may be made")
    found = Cluster()
    done = found.run("version", f"--request-timeout={REACH_SECONDS}s", "-o", "json")
    if done.returncode != 0:
        pytest.skip(f"the cluster of KUBECONFIG={os.environ['KUBECONFIG']} does not answer: {done.stderr.strip()[-300:]}")
    return found


@contextmanager
def own_namespace(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, in a new namespace that has the keys of a server; the cluster takes it away, with all that is in it."""
    name = f"aviato-test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    try:
        own = Cluster(name)
        own.kubectl("create", "secret", "generic", "aviato-keys", f"--from-literal=keys={KEYS}")
        yield own
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[Cluster]:
    """One of a module's own."""
    with own_namespace(cluster) as own:
        yield own


@pytest.fixture(scope="session")
def server_image(cluster: Cluster) -> str:
    """The image that `tests/kubernetes/server_image.py` makes, which nodes have or can pull."""
    if IMAGE is None:
        pytest.skip(
            f"no image of the server: set {IMAGE_VARIABLE} to one that the nodes have; see tests/kubernetes/server_image.py"
        )
    return IMAGE
