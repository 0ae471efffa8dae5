"""Resets: a sandbox goes on in another place, as it was just after its start or as a snapshot has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError, SandboxImageError
from aviato.server.backends.capabilities import Capability
from aviato.server.service.images import check_image, image_before, note_image
from aviato.server.service.registry import running
from aviato.wire.ids import RESET_ID, derived_place_id

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.service.departures import Departures
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry
    from aviato.server.service.secrets import Secrets
    from aviato.server.service.slots import Slots
    from aviato.wire.sandboxes import ResetSandbox


class Resets:
    """What is asked of sandboxes that are to begin anew.

    Nothing of what ran is kept and looked at: the place is another one, so whatever was done in the one before is out of reach.

    Args:
        backend: has the images.
        registry: of the sandboxes.
        departures: let them go from one place to another.
        slots: are told that one is in use meanwhile.
        secrets: that they have.
    """

    def __init__(self, backend: Backend, registry: Registry, departures: Departures, slots: Slots, secrets: Secrets) -> None:
        self._backend = backend
        self._registry = registry
        self._departures = departures
        self._slots = slots
        self._secrets = secrets

    async def reset(self, sandbox_id: str, reset_id: str, request: ResetSandbox, caller: Caller) -> LiveSandbox:
        """Let a sandbox begin anew, and return when it runs.

        Args:
            sandbox_id: which.
            reset_id: made by the client; who comes again with it joins the first.
            request: what it begins with.
            caller: who asks.

        Raises:
            AviatoValidationError: the id is none, it has a main command, its secrets cannot be had, or `to` is no snapshot.
            SandboxImageError: there is no such snapshot, or not for this caller.
            SandboxError: the sandbox has ended, or does meanwhile.
        """
        if RESET_ID.fullmatch(reset_id) is None:
            raise AviatoValidationError(f"{reset_id!r} is not the id of a reset", field_violations={"reset_id": "no id"})
        place_id = derived_place_id(sandbox_id, reset_id)
        sandbox = self._registry.find(sandbox_id)
        with self._slots.use(sandbox):
            if not _had(sandbox, place_id):
                await self._reset(sandbox, place_id, request, caller)
            await running(sandbox)
        return sandbox

    async def _reset(self, sandbox: LiveSandbox, place_id: str, request: ResetSandbox, caller: Caller) -> None:
        if sandbox.request.command is not None:
            message = f"sandbox {sandbox.sandbox_id} has a main command, which cannot be begun twice; make another sandbox"
            raise AviatoValidationError(message, field_violations={"sandbox_id": "has a main command"})
        image = await self._own(sandbox, caller) if request.to is None else self._snapshot(request.to, caller)
        secrets = await self._secrets.find(sandbox.request.secrets, request.secret_values)
        await running(sandbox)
        # What waits for a moment may find that another reset was quicker, and the same one, too.
        if not _had(sandbox, place_id):
            self._departures.reset(sandbox, place_id, image, secrets)

    async def _own(self, sandbox: LiveSandbox, caller: Caller) -> ResolvedImage:
        """The image that it began with, here."""
        named = self._backend.resolve_image(sandbox.request.image, fallback=sandbox.request.image_fallback)
        note_image(self._backend, sandbox)
        first = sandbox.record.first_image_id
        image = image_before(self._backend, named, first)
        check_image(image, caller, named.reference)
        is_found = image is not named
        if not image.is_here:
            image = await self._backend.fetch_image(image)
        if first is not None and not is_found and image.lasting_id != first:
            message = (
                f"image {named.reference!r} is another one by now than sandbox {sandbox.sandbox_id} began with, and that one is"
                " not here any more; make another sandbox, or reset this one to a snapshot"
            )
            raise SandboxImageError(message, reason="image_gone")
        return replace(image, reference=named.reference)

    def _snapshot(self, to: str, caller: Caller) -> ResolvedImage:
        self._backend.require(Capability.SNAPSHOTS, "to")
        image = self._backend.resolve_image(to)
        check_image(image, caller, to)
        if not image.is_snapshot:
            raise AviatoValidationError(f"to: {to!r} is no snapshot", field_violations={"to": "no snapshot"})
        return image


def _had(sandbox: LiveSandbox, place_id: str) -> bool:
    """Whether it is in a place, or was: that may be on its way out, and nobody is put there again."""
    return place_id == sandbox.place_id or place_id in sandbox.places_before
