"""What `docs/guides/kubernetes.md` says is done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.kubernetes.conftest import Cluster
from tests.kubernetes.manifests import ROOT, lacking

OLD_POLICIES = "kubectl kustomize mine | sed s,policy/v1$,policy/v1beta1, | kubectl apply --validate=false --filename -"


@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_its_commands_bring_servers_that_can_make_sandboxes(cluster: Cluster, server_image, tmp_path):
    """In a directory with the manifests, with the tests' image and a namespace of its own."""
    page = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    blocks = [source for source in re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "kubectl" in source]
    assert blocks
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("wheels"))
    name, _, tag = server_image.rpartition(":")
    namespace = f"aviato-guide-{os.getpid()}"
    try:
        for source in blocks:
            script = source.replace("namespace aviato", f"namespace {namespace}").replace(
                "namespace: aviato", f"namespace: {namespace}"
            )
            script = script.replace("registry.example.org/team/aviato", name).replace("newTag: 0.1.0", f"newTag: {tag}")
            if "policy/v1" not in cluster.kubectl("api-versions").split():
                script = script.replace("kubectl apply --kustomize mine", OLD_POLICIES)
            done = subprocess.run(
                ["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
        assert "Sandboxes can run here." in done.stdout
    finally:
        cluster.run("delete", "namespace", namespace, "--wait=false")
