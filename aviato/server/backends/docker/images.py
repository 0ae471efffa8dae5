"""Images as a container engine has them, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.server.backends.docker.engine import EngineError
from aviato.server.images.engine_images import Refusals, named
from aviato.server.images.image_config import ImageConfig
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.oci_reference import id_prefix, parse_oci_reference
from aviato.server.images.pull_words import reason_of
from aviato.server.images.registry_credentials import find_credentials
from aviato.server.images.resolved import ResolvedImage

if TYPE_CHECKING:
    from aviato.exceptions import SandboxImageError
    from aviato.server.backends.docker.engine import Engine

REFUSALS = Refusals(
    backend="docker",
    host="a container has no files of the machine",
    directory="make an image of the directory: tar -C DIR -c . | docker import - NAME",
    archive="has the images of its engine, which docker load and docker pull fill",
)
REMEDIES = {
    "too_many_requests": "log in to the registry, or name a mirror in the engine's settings",
    "disk_full": "docker image prune",
    "wrong_platform": "name an image for this machine's architecture",
    "denied": "it is not there, or docker login REGISTRY, as the user of the server, opens it",
    "needs_credentials": "it is not there, or docker login REGISTRY, as the user of the server, opens it",
    "unknown_name": "see docker image ls for what is here, and how the name is spelt",
    "registry_unreachable": "look whether the engine reaches the registry: docker pull",
}


class EngineImages:
    """Which images there are.

    Args:
        default: of sandboxes that name none.
    """

    def __init__(self, default: str) -> None:
        self._default = default
        self._pulls: dict[str, asyncio.Task[dict[str, Any]]] = {}

    def resolve(self, reference: str | None) -> ResolvedImage:
        """What a reference means: the engine knows whether it is here.

        Raises:
            SandboxImageError: no container can be made of it.
        """
        return ResolvedImage(reference=named(reference, self._default, REFUSALS, by_id=True), kind="oci")

    async def fetch(self, engine: Engine, image: ResolvedImage) -> ResolvedImage:
        """The same, once the engine has it.

        Raises:
            SandboxImageError: it cannot be had.
            EngineError: nobody answers.
        """
        found = await engine.image(image.reference)
        if found is None:
            found = await asyncio.shield(self._pull_of(engine, image.reference))
        config = ImageConfig.parse(json.dumps({"config": found.get("Config")}).encode())
        return replace(image, image_id=str(found["Id"]), config=config)

    def _pull_of(self, engine: Engine, reference: str) -> asyncio.Task[dict[str, Any]]:
        """The one pull of an image that is under way."""
        task = self._pulls.get(reference)
        if task is None:
            task = self._pulls[reference] = asyncio.create_task(_pull(engine, reference))
            task.add_done_callback(lambda _: self._pulls.pop(reference, None))
        return task

    async def close(self) -> None:
        """Give up what is under way."""
        for task in [*self._pulls.values()]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _pull(engine: Engine, reference: str) -> dict[str, Any]:
    if id_prefix(reference) is not None:
        raise image_error("image_not_here", f"image {quoted(reference)}: the engine has none of this id")
    parsed = parse_oci_reference(reference)
    known = await find_credentials(parsed.registry, parsed.repository)
    auth = None if known is None else {"username": known.username, "password": known.password}
    if known is not None and known.identity_token is not None:
        auth = {"identitytoken": known.identity_token}
    try:
        await engine.pull(parsed.name, auth)
    except EngineError as error:
        if error.is_unreachable:
            raise
        raise pull_error(reference, error, has_credentials=auth is not None) from error
    found = await engine.image(parsed.name)
    if found is None:
        raise image_error("image_gone", f"image {quoted(reference)} has come, and somebody has removed it meanwhile")
    return found


def pull_error(reference: str, error: EngineError, *, has_credentials: bool) -> SandboxImageError:
    """What an engine's words about a pull mean."""
    said = error.message
    reason = reason_of(said, has_credentials=has_credentials, is_unknown=error.status == 404)
    return image_error(reason, f"image {quoted(reference)} could not be pulled by the engine: {said}; {REMEDIES[reason]}")
