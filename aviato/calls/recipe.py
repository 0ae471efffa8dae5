"""Images that have to be made before a sandbox of them can be asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.core.client import Client
    from aviato.core.lease import Lease


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
    async def _built(
        self, client: Client, lease: Lease, create: dict[str, Any], on_step: Callable[[bool], None] | None = None
    ) -> str:
        """Have it made, unless it is there.

        Args:
            client: of the server.
            lease: of the sandboxes in which that happens.
            create: the fields of the sandbox that is to be.
            on_step: is told of each step that is done, whether it was there.

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
        on_step: is told of each step, as of `Recipe`, where this one begins the build.
    """

    status_reason = "building"

    def __init__(
        self,
        recipe: Recipe,
        client: Client,
        lease: Lease,
        create: dict[str, Any],
        on_step: Callable[[bool], None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._client = client
        self._lease = lease
        self._create = create
        self._on_step = on_step

    async def taken(self) -> str:
        """The image, once it is there."""
        from aviato.core.shared import SharedTask

        builds = self._lease.builds
        task = builds.get(self._recipe)
        if task is None or task.error() is not None:
            work = self._recipe._built(self._client, self._lease, self._create, self._on_step)
            task = builds[self._recipe] = SharedTask(work, "build an image")
        return await task.outcome()

    def begun(self) -> None:
        """Nothing waits for that."""
