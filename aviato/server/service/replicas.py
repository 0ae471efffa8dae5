"""Sandboxes that another server of the same backend has: whoever is asked for one takes it over."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.options import SandboxStatus
from aviato.server.store import SandboxRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.service.recovery import Recovery
    from aviato.server.service.registry import Registry

log = logging.getLogger(__name__)


class Replicas:
    """Finds them, where the backend has more servers than this one.

    Args:
        backend: knows which sandboxes there are.
        registry: of those that are here.
        recovery: takes up what an earlier server had, as what another one has.
    """

    def __init__(self, backend: Backend, registry: Registry, recovery: Recovery) -> None:
        self._backend = backend
        self._registry = registry
        self._recovery = recovery
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def locate(self, sandbox_id: str, caller: Caller) -> None:
        """Have a sandbox here if it is anywhere and the caller sees it; else nothing happens.

        Raises:
            SandboxUnavailableError: it is somewhere, and cannot be had now.
        """
        if sandbox_id not in self._under_way:  # Else it is on record already, and not there yet.
            if self._registry.unable is not None or self._is_here(sandbox_id):
                return
            record = await self._record_elsewhere(sandbox_id)
            # Whose it is not could have it go from server to server, and break off what is connected to its ports.
            if record is None or not caller.sees(record.owner):
                return
            if sandbox_id not in self._under_way:
                task = self._under_way[sandbox_id] = asyncio.create_task(self._take_over(record))
                task.add_done_callback(lambda _: self._under_way.pop(sandbox_id, None))
        await asyncio.shield(self._under_way[sandbox_id])

    def _is_here(self, sandbox_id: str) -> bool:
        return self._registry.find_record(sandbox_id) is not None

    async def _record_elsewhere(self, sandbox_id: str) -> SandboxRecord | None:
        if (found := await self._backend.record_elsewhere(sandbox_id)) is None:
            return None
        record = read_record(*found)
        if record is None or record.sandbox_id != sandbox_id:
            raise SandboxUnavailableError(f"the record of sandbox {sandbox_id} cannot be read", sandbox_id=sandbox_id)
        return record

    async def _take_over(self, record: SandboxRecord) -> None:
        sandbox_id = record.sandbox_id
        if self._is_here(sandbox_id) or not await self._backend.take_over(sandbox_id):
            return
        log.info("sandbox %s is taken over from another server", sandbox_id)
        self._registry.store.add_sandbox(record)
        try:
            await self._recovery.take_up(record)
        except SandboxUnavailableError:
            self._registry.forget(sandbox_id)
            raise


def record_text(record: SandboxRecord) -> str:
    """What another server has to know of a sandbox, beside the files that are mounted in it: their contents are large."""
    said = asdict(record)
    body = json.loads(record.body or "{}")
    for file in body.get("mounted_files", ()):
        file["file_content"] = ""
    return _compact({**said, "body": _compact(body)})


def read_record(text: str, mounted: Sequence[bytes]) -> SandboxRecord | None:
    """The same; None if it cannot be read.

    Args:
        text: see `record_text`.
        mounted: the contents of its mounted files, in their order.
    """
    try:
        said = json.loads(text)
        body = json.loads(said["body"] or "{}")
        for file, content in zip(body.get("mounted_files", ()), mounted, strict=True):
            file["file_content"] = base64.b64encode(content).decode("ascii")
        return SandboxRecord(
            **{
                **said,
                "body": _compact(body),
                "status": SandboxStatus(said["status"]),
                "tags": tuple(said["tags"]),
                "unkept_promises": tuple(said["unkept_promises"]),
                "ports": {int(port): None for port in said["ports"]},
                "begun": True,
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _compact(said: object) -> str:
    return json.dumps(said, separators=(",", ":"))
