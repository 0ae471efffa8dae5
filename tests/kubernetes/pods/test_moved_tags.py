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
from tests.kubernetes.pods.conftest import Namespace, skip_if_out_of_reach
from tests.kubernetes.pods.test_failures import wait_until


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
    node = namespace.nodes()[0]
    image = push("first")
    one, two = (make_server(**namespace.settings("moves")) for _ in range(2))
    sandbox = aviato.Sandbox(container_image=image, tower_ids=[node], detached=True, base_url=one.url)
    try:
        sandbox.wait()
    except aviato.SandboxImageError as error:
        skip_if_out_of_reach(node, error)
        raise
    sandbox_id = str(sandbox.sandbox_id)

    def image_id() -> str:
        return str(namespace.pod(sandbox_id)["status"]["containerStatuses"][0]["imageID"])

    wait_until(lambda: "@" in image_id(), 60)
    had = image_id()
    push("second")
    there = aviato.Sandbox.from_id(sandbox_id, base_url=two.url).result()
    there.reset().result()
    assert there.read_file("/which").result() == b"first"
    # The node has the tag as it was; another one would have what it means by now.
    assert namespace.pod(sandbox_id)["spec"]["containers"][0]["image"] == had
    there.stop().result()
