"""Images of a registry that wants a password, which nodes have from a Secret of the pods."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.images.real_registry import real_registry
from tests.kubernetes.pods.conftest import Namespace, skip_if_out_of_reach
from tests.kubernetes.pods.images import write_init
from tests.kubernetes.pods.test_failures import doctor

RUN = ["/usr/local/bin/aviato-init", "--version"]
"""In an image with nothing else."""


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image of a registry on the loopback of these tests: what is there is asked without TLS, if a node is there, too."""
    with real_registry(tmp_path, password=True) as host:
        whole = f"{host}/private/{uuid.uuid4().hex[:8]}:1"
        write_init(tmp_path / "init.tar")
        command = ["skopeo", "copy", "--all", "--dest-creds=user:secret", "--dest-tls-verify=false"]
        subprocess.run([*command, f"oci-archive:{tmp_path}/init.tar", f"docker://{whole}"], check=True, capture_output=True)
        yield whole


def secret(namespace: Namespace, image: str, password: str) -> str:
    """The name of a Secret with credentials of the image's registry."""
    name = f"registry-{uuid.uuid4().hex[:8]}"
    words = (f"--docker-server={image.partition('/')[0]}", "--docker-username=user", f"--docker-password={password}")
    namespace.kubectl("create", "secret", "docker-registry", name, *words)
    return name


def test_doctor_says_what_nodes_do_not_read(namespace: Namespace) -> None:
    """Kubernetes goes on without a word where the Secret is not there, or is another one."""
    kept = {"good": secret(namespace, "registry.example.org/x", "secret"), "none": "registry-none", "other": "registry-other"}
    namespace.kubectl("create", "secret", "generic", kept["other"], "--from-literal=password=x")
    try:
        variables = {
            "AVIATO_KUBERNETES_INIT_IMAGE": namespace.init_image,
            "AVIATO_KUBERNETES_PULL_SECRET": ",".join(kept.values()),
        }
        said = doctor(namespace, **variables)
        assert f"{kept['good']} has credentials of a registry" in said, said
        assert "there is no Secret registry-none" in said and "registry-other is of type Opaque" in said, said
        assert "kubectl create secret docker-registry registry-none" in said
    finally:
        namespace.kubectl("delete", "secret", kept["good"], kept["other"])


def test_a_secret_opens_a_registry(make_kubernetes: Callable[..., Any], namespace: Namespace, image: str) -> None:
    """Without it, and with one that does not open it, the image cannot be had, and what to do about that is not the same."""
    node = namespace.nodes()[0]
    names = {password: secret(namespace, image, password) for password in ("secret", "wrong")}
    try:
        for password, advice in ((None, "names no Secret that opens it"), ("wrong", "does not open it")):
            make_kubernetes(**({} if password is None else {"kubernetes_pull_secret": names[password]}))
            with aviato.Session() as session:
                with pytest.raises(aviato.SandboxImageError, match=image) as caught:
                    session.sandbox(container_image=image, tower_ids=[node]).wait()
                skip_if_out_of_reach(node, caught.value)
                assert advice in str(caught.value) and caught.value.is_infrastructure
                assert caught.value.reason == "image_pull_failed" and not caught.value.retryable
        make_kubernetes(kubernetes_pull_secret=f"{names['wrong']},{names['secret']}")
        with aviato.Session() as session:
            sandbox = session.sandbox(container_image=image, tower_ids=[node])
            assert sandbox.exec(RUN).result().stdout.startswith("aviato-init ")
            spec = namespace.pod(str(sandbox.sandbox_id))["spec"]
            assert spec["imagePullSecrets"] == [{"name": names["wrong"]}, {"name": names["secret"]}]
    finally:
        namespace.kubectl("delete", "secret", *names.values())
