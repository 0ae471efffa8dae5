"""What is known of pods, and what a backend of pods refuses before it asks a cluster for anything."""

from __future__ import annotations

from typing import Any

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.backends.kubernetes import objects
from aviato.server.backends.kubernetes.backend import KubernetesBackend
from aviato.server.backends.kubernetes.pods import Pods
from aviato.server.images.resolved import ResolvedImage

IMAGE = ResolvedImage(reference="x", kind="oci", image_id="x")


class Cluster:
    """Pods need its paths alone."""

    def path(self, kind: str, *, group: str) -> str:
        return kind


def pod(version: str | None, server: str = "own", uid: str = "u") -> dict[str, Any]:
    labels = {"aviato.dev/claim": "c", "aviato.dev/place": "pl-1", "aviato.dev/server": server}
    own = {} if version is None else {"resourceVersion": version}
    return {"metadata": {"name": "aviato-pl-1", "uid": uid, "labels": labels, **own}, "status": {}}


@pytest.mark.parametrize(
    ("then", "knows"),
    [
        (pod("9", "other"), "own"),
        (pod("11", "other"), "other"),
        (pod(None, "other"), "other"),
        (pod("9", "other", "v"), "other"),
    ],
    ids=["older", "newer", "of no version", "another pod"],
)
def test_what_comes_late_undoes_nothing(then, knows):
    """The answer to a change is newer than what the watch says of the time before, which comes after it."""
    cluster: Any = Cluster()
    pods = Pods(cluster, "c", "own", lambda _: None)
    pods.take("pl-1", pod("10"))
    pods.take("pl-1", then)
    assert pods.server("pl-1") == knows


def test_a_place_that_is_used_again_begins_anew():
    cluster: Any = Cluster()
    pods = Pods(cluster, "c", "own", lambda _: None)
    pods.take("pl-1", pod("10"))
    pods._hear("DELETED", pod("12"))
    assert pods.ids() == []
    pods.take("pl-1", pod("9", "other"))
    assert pods.server("pl-1") == "other"


def checked(tmp_path, **wanted: Any) -> set[str]:
    """The fields that a spec is refused for."""
    try:
        KubernetesBackend(tmp_path).check(SandboxSpec(sandbox_id="pl-1", image=IMAGE, **wanted))
    except AviatoValidationError as error:
        return set(error.field_violations)
    return set()


@pytest.mark.parametrize("path", ["/workspace", "/.aviato/x", "/.aviato-key", "/.aviato-key/key", "/proc/x", "/a:b"])
def test_where_no_file_can_be_mounted(tmp_path, path):
    assert checked(tmp_path, mounted_files=(MountedFile(path=path, content=b""),)) == {"mounted_files"}


@pytest.mark.parametrize("path", ["/workspace/x", "/.aviato-keys", "/workspaces", "/etc/hosts"])
def test_where_one_can(tmp_path, path):
    assert not checked(tmp_path, mounted_files=(MountedFile(path=path, content=b""),))


def test_what_does_not_fit_into_its_secret(tmp_path):
    most = objects.MOST_SECRET_BYTES
    files = tuple(MountedFile(path=f"/{name}", content=bytes(most // 4)) for name in "abc")
    assert not checked(tmp_path, mounted_files=files, record="x" * (most // 4))
    assert checked(tmp_path, mounted_files=files, record="x" * (most // 4 + 4)) == {"mounted_files"}
    assert checked(tmp_path, record="x" * (most + 1)) == {"environment_variables"}


@pytest.mark.parametrize("name", ["runway_ids", "tower_ids"])
def test_nodes_that_no_label_can_name(tmp_path, name):
    for wrong in ("a b", "-a", "a/b", "x" * 64, "é"):
        assert checked(tmp_path, **{name: ("fine", wrong)}) == {name}
    assert not checked(tmp_path, **{name: ("fine", "a.b_c-9", "x" * 63)})
