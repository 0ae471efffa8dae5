"""A connection to a container engine, by aiodocker, which is imported with the first."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxUnavailableError
from aviato.installation import extra_command
from aviato.server.backends.docker.containers import CLAIM, SANDBOX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
    from typing import TypeVar

    T = TypeVar("T")

SECONDS = 120.0
"""So long an engine may take for one answer; a machine with hundreds of containers on their way is slow."""
REMOVAL_SECONDS, AGAIN_SECONDS = 10.0, 0.02
UNREACHABLE = 900
"""The status that aiodocker has for an engine that does not answer."""
NOT_FOUND = 404
SCHEME = "unix://"


class EngineError(Exception):
    """What an engine refused, or that nobody answers.

    Attributes:
        status: of HTTP; `UNREACHABLE` where there is no answer, 0 for what came within an answer.
        message: in the engine's words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def is_unreachable(self) -> bool:
        """Whether nobody answers."""
        return self.status == UNREACHABLE

    def as_unavailable(self, what: str, sandbox_id: str | None = None) -> SandboxUnavailableError:
        """The error for callers: the engine is part of the machine, so no sandbox's code is to blame."""
        reason = "engine_unreachable" if self.is_unreachable else "engine"
        return SandboxUnavailableError(f"{what}: {self.message}", sandbox_id=sandbox_id, reason=reason)


class NoLibrary(Exception):
    """Aiodocker is not installed."""

    remedy: str

    def __init__(self) -> None:
        super().__init__("the Python package aiodocker is not installed")
        self.remedy = extra_command("docker")


def find_address(given: str | None, environment: Mapping[str, str], uid: int) -> str:
    """Where the engine listens: what was given, else `DOCKER_HOST`, else the first usual socket that is there.

    Args:
        given: by a setting.
        environment: of this process.
        uid: of this process.
    """
    if address := given or environment.get("DOCKER_HOST"):
        return address
    runtime = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    own = (f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock")
    usual = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")
    paths = (*usual, *own) if uid == 0 else (*own, *usual)
    return SCHEME + next((path for path in paths if os.path.exists(path)), usual[1])


class Engine:
    """One engine.

    Args:
        address: as `DOCKER_HOST` has it.

    Raises:
        NoLibrary: aiodocker is not installed.
    """

    def __init__(self, address: str) -> None:
        try:
            import aiodocker
            import aiohttp
        except ImportError as error:
            raise NoLibrary from error
        self.address = address
        self._refusal = aiodocker.DockerError
        self._broken = (aiohttp.ClientError,)
        self._docker = aiodocker.Docker(url=address)

    async def close(self) -> None:
        """Let go of its connections."""
        await self._docker.close()

    async def about(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it says of its version and of its machine.

        Raises:
            EngineError: it does not answer.
        """
        return await self._asked(self._docker.version()), dict(await self._asked(self._docker.system.info()))

    async def create(self, name: str, body: dict[str, Any]) -> None:
        """Make a container, and start it.

        Raises:
            EngineError: it cannot.
        """
        made = await self._asked(self._docker.containers.create(body, name=name))
        await self._asked(made.start())

    async def remove(self, name: str) -> None:
        """Kill a container with all that is in it, and take it away with what the engine made for it; none is no error.

        Raises:
            EngineError: it cannot.
        """
        container = self._docker.containers.container(name)
        deadline = time.monotonic() + REMOVAL_SECONDS
        while True:
            try:
                return await self._asked(container.delete(force=True, v=True))
            except EngineError as error:
                if error.status == NOT_FOUND:
                    return None
                # Somebody else removes it, or it ends by itself in this moment: no engine tells when that is over.
                if error.is_unreachable or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def until_ended(self, name: str) -> str:
        """Wait until a container has ended; gives what it said last.

        Raises:
            EngineError: there is none, or nobody answers.
        """
        container = self._docker.containers.container(name)
        with self._errors():
            ended = await container.wait()
        said = await self._asked(container.log(stdout=True, stderr=True, tail=5))
        return "".join(said).strip() or f"its process 1 ended with status {ended.get('StatusCode')}"

    async def sandboxes(self, claim: str) -> list[str]:
        """The sandboxes of a server that have a container, running or not.

        Raises:
            EngineError: nobody answers.
        """
        filters = json.dumps({"label": [f"{CLAIM}={claim}"]})
        found = await self._asked(self._docker.containers.list(all=1, filters=filters))
        return [str(one["Labels"][SANDBOX]) for one in found if SANDBOX in (one["Labels"] or {})]

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What the engine says of an image; None if it has none.

        Raises:
            EngineError: nobody answers.
        """
        try:
            return await self._asked(self._docker.images.inspect(reference))
        except EngineError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def pull(self, name: str, auth: dict[str, str] | None) -> None:
        """Have the engine fetch an image.

        Args:
            name: in full, with its registry.
            auth: user and password, or None.

        Raises:
            EngineError: it cannot.
        """
        pieces: AsyncIterator[dict[str, Any]] = self._docker.images.pull(name, auth=auth, stream=True)
        with self._errors():
            async for piece in pieces:
                if "error" in piece:
                    raise EngineError(0, str(piece["error"]))

    async def _asked(self, call: Awaitable[T]) -> T:
        with self._errors():
            async with asyncio.timeout(SECONDS):
                return await call

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What goes wrong with an answer, and what goes wrong in the middle of one."""
        try:
            yield
        except self._refusal as error:
            raise EngineError(error.status, error.message) from error
        except TimeoutError as error:
            raise EngineError(UNREACHABLE, f"the engine at {self.address} has not answered for {SECONDS:.0f} s") from error
        except (*self._broken, OSError, ValueError) as error:
            said = f"the engine at {self.address} has broken off its answer: {error or type(error).__name__}"
            raise EngineError(UNREACHABLE, said) from error
