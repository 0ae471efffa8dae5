"""What is asked of a snapshot: as the store of images takes it, and on record while a sandbox moves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.server.images.image_config import ImageSettings
from aviato.server.images.image_index import RecordedSnapshot
from aviato.server.images.image_snapshots import NewSnapshot
from aviato.server.images.platforms import this_platform
from aviato.wire.snapshots import TakeSnapshot

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend
    from aviato.server.images.resolved import ResolvedImage

Below = tuple[str | None, "ResolvedImage | None"]
"""The id of the store's image that a sandbox lies on, or what is this machine's own."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """One snapshot that is to be.

    Attributes:
        snapshot_id: made by the client.
        sandbox_id: whose files it is to have.
        image: that the sandbox was made of, as its record has it.
        owner: the tenant who will have it; None: the server's own user.
        body: what else was said.
    """

    snapshot_id: str
    sandbox_id: str
    image: str
    owner: str | None
    body: TakeSnapshot

    def new(self, image_id: str | None, image: ResolvedImage | None) -> NewSnapshot:
        """The same for the store, over what the sandbox lies on."""
        body = self.body
        return NewSnapshot(
            recorded=RecordedSnapshot(
                snapshot_id=self.snapshot_id,
                sandbox_id=self.sandbox_id,
                image=self.image,
                owner=self.owner,
                base=None if image is None else image.reference,
                interpreter=None if image is None else image.interpreter,
                name=body.name,
                kind=body.kind,
            ),
            image_id=image_id,
            names=(self.snapshot_id,) if body.name is None else (self.snapshot_id, body.name),
            architecture=this_platform().architecture,
            expires_after_seconds=body.expires_after_seconds,
            settings=ImageSettings(
                environment=tuple(body.environment.items()),
                working_dir=body.working_dir,
                user=body.user,
                entrypoint=None if body.entrypoint is None else tuple(body.entrypoint),
                command=None if body.command is None else tuple(body.command),
                labels=tuple(body.labels.items()),
                shell=None if body.shell is None else tuple(body.shell),
            ),
        )

    def below(self, backend: Backend, place_id: str) -> Below:
        """What a place lies on, which may be one of an earlier server's. Blocks."""
        store = backend.image_store
        image_id = None if store is None else store.used_by(place_id)
        return (None, backend.resolve_image(self.image)) if image_id is None else (image_id, None)

    def to_json(self, leaves: str) -> str:
        """For the record of a sandbox that leaves this place."""
        ids = {"snapshot_id": self.snapshot_id, "sandbox_id": self.sandbox_id, "image": self.image, "owner": self.owner}
        return json.dumps({"leaves": leaves, **ids, "body": self.body.model_dump(mode="json")})

    @classmethod
    def from_json(cls, text: str) -> tuple[SnapshotRequest, str]:
        """What `to_json` wrote down, and the place.

        Raises:
            ValueError, LookupError, TypeError: it did not.
        """
        said = json.loads(text)
        leaves, body = said.pop("leaves"), TakeSnapshot.model_validate(said.pop("body"))
        return cls(**said, body=body), leaves
