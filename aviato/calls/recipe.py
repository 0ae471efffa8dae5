"""Images that have to be made before a sandbox of them can be asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from aviato.exceptions import SandboxImageError

if TYPE_CHECKING:
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.core.shared import SharedTask
    from aviato.exceptions import AviatoError
    from aviato.results import ImageInfo
    from aviato.wire.images import ImagePull

GONE = frozenset({"image_not_here", "image_gone"})
"""Reasons for which an image that was there is there no more."""


class BuildCounts(Protocol):
    """What counts builds: `policy.metrics.Metrics` does."""

    def build_step(self, is_cached: bool) -> None:
        """A step is done, or was there."""
        ...

    def image_prefetched(self, info: ImageInfo) -> None:
        """The image that a build begins with is there."""
        ...

    def image_used(self, pull: ImagePull | None) -> None:
        """It cannot be had, where this is None."""
        ...


class Recipe(ABC):
    """What an image is to be. Equal ones are the same image; they can be hashed and pickled."""

    __slots__ = ()

    @property
    def stand_in(self) -> str:
        """In the place of the image that is not there yet: as different as what it is to be, and no reference of any image."""
        import hashlib

        said = repr(sorted(vars(self).items())).encode(errors="backslashreplace")
        return f"to be built: {hashlib.sha256(said).hexdigest()}"

    @abstractmethod
    async def _built(self, client: Client, lease: Lease, create: dict[str, Any], counts: BuildCounts | None = None) -> str:
        """Have it made, unless it is there.

        Args:
            client: of the server.
            lease: of the sandboxes in which that happens.
            create: the fields of the sandbox that is to be.
            counts: is told of each step, and of the image that it begins with.

        Returns:
            What it is called there.

        Raises:
            SandboxImageError: it cannot be made.
        """


class Building:
    """What a sandbox of a recipe waits for: a build, which all that ask for the same one share.

    Args:
        recipe: what is built.
        client: of the server.
        lease: of this process there.
        create: the fields of the sandbox.
        counts: is told of what is done, as of `Recipe`, where this one begins the build.
    """

    status_reason = "building"

    def __init__(
        self,
        recipe: Recipe,
        client: Client,
        lease: Lease,
        create: dict[str, Any],
        counts: BuildCounts | None = None,
    ) -> None:
        self._recipe = recipe
        self._client = client
        self._lease = lease
        self._create = create
        self._counts = counts
        self._task: SharedTask[str] | None = None

    async def taken(self) -> str:
        """The image, once it is there."""
        from aviato.core.shared import SharedTask

        builds = self._lease.builds
        task = builds.get(self._recipe)
        if task is None or task.error() is not None:
            work = self._recipe._built(self._client, self._lease, self._create, self._counts)
            task = builds[self._recipe] = SharedTask(work, "build an image")
        self._task = task
        return await task.outcome()

    def is_lost(self, error: AviatoError) -> bool:
        """Whether somebody has removed it, such as a prune between two sandboxes; then it is built anew."""
        if not isinstance(error, SandboxImageError) or error.reason not in GONE:
            return False
        if self._lease.builds.get(self._recipe) is self._task:  # Else somebody has begun anew already.
            self._lease.builds.pop(self._recipe, None)
        return True

    def begun(self) -> None:
        """Nothing waits for that."""
