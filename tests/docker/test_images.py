"""Images of an engine: which there are, and what is said of those that are not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from aviato.server.backends.docker.engine import EngineError
from aviato.server.backends.docker.images import EngineImages, pull_error
from tests.docker import engines
from tests.docker.conftest import SMALL


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("host", "a container has no files of the machine; name an image, or none for this server's 'aviato-test-small:1'"),
        (
            "host:3.11",
            "a container has no files of the machine; name an image, or none for this server's 'aviato-test-small:1'",
        ),
        ("dir:/usr", "docker import"),
        ("oci:/tmp/x", "docker load"),
        ("docker-archive:/tmp/x.tar", "docker load"),
        ("no such", "no such"),
        ("sha256:" + "0" * 64, "the engine has none of this id"),
        ("localhost:1/nothing:1", "could not be pulled by the engine"),
    ],
)
def test_what_cannot_be_had(make_docker: Callable[..., Any], image: str, said: str) -> None:
    make_docker()
    with aviato.Session() as session, pytest.raises(aviato.SandboxImageError, match=said.replace("(", "\\(")) as caught:
        session.sandbox(container_image=image).exec(["true"]).result()
    assert caught.value.is_infrastructure


def test_an_id_is_an_image(make_docker: Callable[..., Any], engine: Any) -> None:
    import json

    make_docker()
    found = json.loads(engine.ask("GET", "/images/aviato-test-small:1/json")[1])["Id"]
    with aviato.Session() as session:
        assert session.sandbox(container_image=found).exec(["echo", "x"]).result().stdout == "x\n"
        short = found.removeprefix("sha256:")[:12]
        assert session.sandbox(container_image=short).exec(["echo", "x"]).result().stdout == "x\n"


def test_a_sandbox_of_a_tag_that_moved_begins_anew_with_its_own(make_docker: Callable[..., Any], engine: Any) -> None:
    """By whichever server, and who asks by the name gets what it means by now."""
    for which in ("first", "second"):
        engine.make_image(f"aviato-moves-{which}:1", engines.busybox_root(), f"ENV WHICH={which}")
    engine.tag("aviato-moves-first:1", "aviato-moves:1")
    ask = ["sh", "-c", "echo $WHICH"]
    server = make_docker()
    sandbox = aviato.Sandbox.run(container_image="aviato-moves:1", detached=True)
    assert sandbox.exec(ask).result().stdout == "first\n"
    engine.tag("aviato-moves-second:1", "aviato-moves:1")
    sandbox.reset().result()
    assert sandbox.exec(ask).result().stdout == "first\n"

    server.stop(signal.SIGKILL)
    server.restart(backend="docker", default_image=SMALL, docker_host=engine.address)
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    again.reset().result()
    assert again.exec(ask).result().stdout == "first\n"
    again.stop().result()
    with aviato.Session() as session:
        assert session.sandbox(container_image="aviato-moves:1").exec(ask).result().stdout == "second\n"


@pytest.mark.anyio
async def test_what_a_container_is_made_of_is_told_where_its_image_was_removed_meanwhile(
    backend: Any, boxes: Any, engine: Any
) -> None:
    """Its name means another one by then: that is in use, with its settings, and on record."""
    for which in ("before", "after"):
        engine.make_image(f"aviato-goes-{which}:1", engines.busybox_root(), f"ENV WHICH={which}")
    engine.tag("aviato-goes-before:1", "aviato-goes:1")
    had = await backend.fetch_image(backend.resolve_image("aviato-goes:1"))
    engine.tag("aviato-goes-after:1", "aviato-goes:1")
    assert engine.ask("DELETE", "/images/aviato-goes-before:1")[0] == 200
    async with boxes.make_box(backend, had) as box:
        made_of = backend.image_in(box.id)
        assert made_of == await backend.fetch_image(backend.resolve_image("aviato-goes:1")) and made_of != had
        assert (await box.sh("echo $WHICH")).stdout == "after\n"
    assert backend.image_in(box.id) is None


SAID = {
    "manifest for x:9 not found: manifest unknown: manifest unknown": "unknown_name",
    "pull access denied for x, repository does not exist or may require 'docker login': denied": "needs_credentials",
    "unauthorized: authentication required": "needs_credentials",
    "toomanyrequests: You have reached your pull rate limit": "too_many_requests",
    "write /var/lib/docker/tmp/x: no space left on device": "disk_full",
    "no matching manifest for linux/arm64/v8 in the manifest list entries": "wrong_platform",
    "Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host": "registry_unreachable",
}


@pytest.mark.parametrize("said", SAID)
def test_an_engine_s_words_have_a_reason(said: str) -> None:
    error = pull_error("x:9", EngineError(500, said), has_credentials=False)
    assert error.reason == SAID[said] and said in str(error) and error.is_infrastructure
    assert error.retryable is (error.reason in ("too_many_requests", "registry_unreachable"))
    if error.reason == "needs_credentials":
        assert pull_error("x:9", EngineError(500, said), has_credentials=True).reason == "denied"


def test_a_name_that_would_be_another_path_of_the_engine_is_refused() -> None:
    images = EngineImages("small")
    for name in ("../containers/x", "a?b=c", "a#b", "x/../../info", "-x"):
        with pytest.raises(aviato.SandboxImageError):
            images.resolve(name)
