"""What `aviato doctor` says where there is no cluster, and what a server does then."""

from __future__ import annotations

from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.kubernetes.options import ClusterOptions
from aviato.server.backends.registry import make_backend

pytestmark = pytest.mark.anyio

CONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
"""


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes_asyncio", reason="the extra kubernetes is not installed")
    monkeypatch.setattr("aviato.server.backends.kubernetes.cluster.PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def backend(tmp_path: Path, **options: str):
    return make_backend("kubernetes", directory=tmp_path, options=ClusterOptions(**options))


async def test_nothing_says_where_a_cluster_is(tmp_path):
    made = backend(tmp_path)
    last = (await made.probe())[-1]
    assert (last.name, last.ok) == ("cluster", False) and "set KUBECONFIG to a kubeconfig file" in last.remedy
    with pytest.raises(SandboxUnavailableError, match="KUBECONFIG") as caught:
        await made.open()
    assert caught.value.is_infrastructure


async def test_a_context_that_there_is_not(tmp_path):
    (tmp_path / "config").write_text(CONFIG)
    last = (await backend(tmp_path, context="other").probe())[-1]
    assert not last.ok and "kubectl config get-contexts" in last.remedy and "other" in last.remedy


async def test_a_cluster_that_does_not_answer(tmp_path):
    (tmp_path / "config").write_text(CONFIG)
    last = (await backend(tmp_path).probe())[-1]
    assert not last.ok and "https://127.0.0.1:1" in last.detail and "kubectl version" in last.remedy
