"""A tag that means another image by now: whoever has a sandbox of the one before begins anew with that."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.images.programs import tools
from tests.images.real_registry import real_registry
from tests.images.whole_images import make_layout, tar_of
from tests.kubernetes.pods.conftest import Namespace


@pytest.fixture
def push(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Pushes an image under a tag that is always the same, with a file that says which it is."""
    with real_registry(tmp_path) as host:

        def pushed(which: str) -> str:
            files: dict[str, Any] = {**tools("cat", "sh"), "which": which.encode()}
            layout = make_layout(tmp_path / which, [tar_of(files)], {"Env": ["PATH=/bin"]})
            words = ["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}", f"docker://{host}/tasks/moves:1"]
            subprocess.run(words, check=True, capture_output=True)
            return f"{host}/tasks/moves:1"

        yield pushed


def test_another_server_begins_with_the_image_that_the_pod_has(
    make_server: Callable[..., Any], namespace: Namespace, push: Callable[[str], str]
) -> None:
    first, second = namespace.nodes()[:2]
    image = push("first")
    one, two = (make_server(**namespace.settings("moves")) for _ in range(2))
    sandbox = aviato.Sandbox(container_image=image, tower_ids=[first], detached=True, base_url=one.url)
    try:
        sandbox.wait()
    except aviato.SandboxImageError as error:
        if "refused" in str(error) or "no such host" in str(error):
            pytest.skip(f"the node {first} does not reach a registry of this machine's loopback")
        raise
    push("second")
    with aviato.Sandbox(container_image=image, tower_ids=[second], base_url=two.url) as other:
        assert other.read_file("/which").result() == b"second"
    there = aviato.Sandbox.from_id(str(sandbox.sandbox_id), base_url=two.url).result()
    assert there.grade({}, ["cat", "/which"]).result().exec_result.stdout == "first"
    there.reset().result()
    assert there.read_file("/which").result() == b"first"
    there.stop().result()
