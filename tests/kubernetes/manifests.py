"""The manifests of `deploy/kubernetes`, as kustomize makes them, for a cluster."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.kubernetes.conftest import Cluster

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())
IMAGE = "registry.example.org/aviato/server"
Objects = list[dict[str, Any]]


@functools.cache
def lacking() -> str | None:
    """Why this machine cannot build them, if it cannot."""
    if shutil.which("kubectl") is None:
        return "no kubectl"
    done = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    return None if "kustomizeVersion" in done.stdout else "this kubectl has a kustomize from before version 4"


def built(directory: Path, cluster: Cluster | None = None, image: str | None = None) -> Objects:
    """What kustomize makes of it.

    Args:
        directory: with a kustomization.
        cluster: they are for its namespace, and in versions that it knows.
        image: of the servers, in place of the one that they name.
    """
    with tempfile.TemporaryDirectory() as folder:
        own: dict[str, Any] = {"resources": [os.path.relpath(directory, os.path.realpath(folder))]}
        if image is not None:
            name, _, tag = image.rpartition(":")
            own["images"] = [{"name": IMAGE, "newName": name, "newTag": tag}]
        if cluster is not None:
            own["namespace"] = cluster.namespace
        Path(folder, "kustomization.yaml").write_text(json.dumps(own))
        text = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True).stdout
    objects = as_objects(text)
    for one in objects:
        # Policies came later than all else here.
        if (
            one["apiVersion"] == "policy/v1"
            and cluster is not None
            and "policy/v1" not in cluster.kubectl("api-versions").split()
        ):
            one["apiVersion"] = "policy/v1beta1"
    return objects


def as_objects(text: str) -> Objects:
    """Documents of YAML, read by kubectl."""
    command = ["kubectl", "label", "--local", "--dry-run=client", "-o", "json", "-f", "-", "aviato.test=yes"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(done.stdout.rstrip()):
        one, at = decoder.raw_decode(done.stdout, at)
        found += one["items"] if one["kind"] == "List" else [one]
        at += len(done.stdout[at:]) - len(done.stdout[at:].lstrip())
    return found


def of_kind(objects: Objects, kind: str) -> dict[str, Any]:
    """The one of this kind."""
    (found,) = (one for one in objects if one["kind"] == kind)
    return found
