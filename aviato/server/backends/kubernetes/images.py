"""Which images pods can have: whatever the nodes' engines can pull."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.server.images.engine_images import Refusals, named
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.oci_reference import parse_oci_reference
from aviato.server.images.pull_words import reason_of
from aviato.server.images.resolved import ResolvedImage

if TYPE_CHECKING:
    from aviato.exceptions import SandboxImageError
    from aviato.server.backends.kubernetes.pod_state import PodState
    from aviato.server.images.image_errors import Reason

REFUSALS = Refusals(
    backend="kubernetes",
    host="a pod has no files of the server's machine",
    directory="push an image of it",
    archive="has the images that its nodes can pull; push it to a registry of theirs",
)
REMEDIES = {
    "bad_reference": "look how the name is spelt",
    "image_not_here": "load it on the nodes, or name one that they can pull",
    "too_many_requests": "give credentials by --kubernetes-pull-secret, or a mirror to the nodes",
    "disk_full": "the node needs room for images",
    "wrong_platform": "name an image for the architecture of the nodes",
    "denied": "it is not there, or the Secret of --kubernetes-pull-secret does not open it",
    "needs_credentials": "it is not there, or --kubernetes-pull-secret names no Secret that opens it",
    "unknown_name": "look at the name and the tag",
    "registry_unreachable": "look whether the nodes reach the registry",
}
_DIGEST = re.compile(r"(?:docker-pullable://)?(?P<name>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")


class PodImages:
    """The images that sandboxes of one server had.

    What a name means is found once, by the first pod that runs: pods that are made later have the same image, whatever somebody
    pushes under that name meanwhile.

    Args:
        default: of sandboxes that name none.
    """

    def __init__(self, default: str) -> None:
        self._default = default
        self._found: dict[str, str] = {}

    def resolve(self, reference: str | None) -> ResolvedImage:
        """What a reference means.

        Raises:
            SandboxImageError: no pod can be made of it.
        """
        found = named(reference, self._default, REFUSALS, by_id=False)
        image_id = self._found.get(found, parse_oci_reference(found).name)
        return ResolvedImage(reference=found, kind="oci", image_id=image_id)

    def current(self, image: ResolvedImage) -> ResolvedImage:
        """The same by its digest, if that is known by now."""
        if image.lasting_id is not None:
            return image
        return replace(image, image_id=self._found.get(image.reference, image.image_id))

    def learn(self, image: ResolvedImage, state: PodState) -> None:
        """Take down which image a pod that runs has."""
        if (image_id := id_in(image, state)) is not None:
            self._found.setdefault(image.reference, image_id)


def id_in(image: ResolvedImage, state: PodState) -> str | None:
    """The image of a pod by its digest; None where its node says none, or one of another name."""
    match = _DIGEST.fullmatch(state.image_id or "")
    if match is None or image.image_id is None or _repository(image.image_id) != match["name"]:
        return None
    return f"{match['name']}@{match['digest']}"


def pull_failed(image: ResolvedImage, state: PodState, warning: str | None, *, has_credentials: bool) -> SandboxImageError:
    """The error of a pod whose image cannot be had, in the words of its node."""
    said = warning or state.message
    if state.is_final:
        reason: Reason = "bad_reference" if state.reason == "no_such_name" else "image_not_here"
    else:
        reason = reason_of(said, has_credentials=has_credentials)
    return image_error(
        reason, f"image {quoted(image.reference)} cannot be had by the node {state.node}: {said}; {REMEDIES[reason]}"
    )


def _repository(name: str) -> str:
    """Without tag and digest."""
    bare = name.partition("@")[0]
    head, slash, last = bare.rpartition("/")
    return head + slash + last.partition(":")[0]
