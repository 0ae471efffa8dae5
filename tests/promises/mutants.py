"""Backends that say what they do not do: each has one thing wrong, most the small one of `tests/bubblewrap_backend`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from aviato.server.backends.base import Capability, Limit, ResolvedImage, SandboxSpec
from aviato.server.backends.local.backend import LocalBackend
from aviato.server.link.link import Process1Link
from tests import bubblewrap_backend
from tests.bubblewrap_backend import BubblewrapBackend


class SaysNoEnd(BubblewrapBackend):
    """Nobody is told why a process 1 has ended."""

    def how_ended(self, sandbox_id: str) -> str | None:
        return None


class LeavesPlaces(BubblewrapBackend):
    """What is destroyed is still listed."""

    async def destroy(self, sandbox_id: str) -> None:
        await super().destroy(sandbox_id)
        (self._sandboxes / sandbox_id).mkdir()


class ListsNothing(BubblewrapBackend):
    """There is never a place."""

    async def place_ids(self) -> list[str]:
        return []


class LyingLimits(BubblewrapBackend):
    """Limits are told and not kept."""

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        return super().limits(spec) | {"memory": Limit(value=spec.limits.get("memory", 1 << 30), strength="hard")}


class OtherLimits(BubblewrapBackend):
    """Limits are not those that were asked for."""

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        return super().limits(spec) | {"processes": Limit(value=4096, strength="hard")}


class WithoutSecrets(BubblewrapBackend):
    """Secrets come nowhere."""

    async def create(self, spec: SandboxSpec) -> Process1Link:
        return await super().create(replace(spec, secrets={}))


class WithoutVariables(BubblewrapBackend):
    """Variables come nowhere."""

    async def create(self, spec: SandboxSpec) -> Process1Link:
        return await super().create(replace(spec, environment={}))


class WithoutFiles(BubblewrapBackend):
    """Mounted files are declared and come nowhere."""

    capabilities = BubblewrapBackend.capabilities | {Capability.MOUNTED_FILES}


class AnyImage(BubblewrapBackend):
    """Whatever image is asked for, there is one, which is always the same."""

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        return super().resolve_image(None)


class FindsNothingAgain(BubblewrapBackend):
    """A new server loses what an earlier one had."""

    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        return None


class _OtherRoot(BubblewrapBackend):
    more: tuple[str, ...] = ()

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        bubblewrap_backend.ROOT += self.more


class OneNetwork(_OtherRoot):
    """Sandboxes have the machine's network."""

    more = ("--share-net",)


class OneDirectory(_OtherRoot):
    """Sandboxes have one directory in common."""

    def __init__(self, directory: Path, **options: Any) -> None:
        common = directory / "common"
        os.makedirs(common, exist_ok=True)
        self.more = ("--bind", str(common), "/workspace")
        super().__init__(directory, **options)


class ClaimsNothing(LocalBackend):
    """What was ready is handed out as it is."""

    def claim(self, spec: SandboxSpec, link: Process1Link) -> None:
        pass


class OneProc(_OtherRoot):
    """Sandboxes see the machine's processes."""

    more = ("--ro-bind", "/proc", "/proc")
