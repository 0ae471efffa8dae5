"""The contract of a backend: make a place for a process 1, give a byte stream to it, find it again, take the place away.

Everything a user sees inside a sandbox is process 1's protocol (`docs/protocol.md`), so a backend stays small.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aviato.exceptions import AviatoValidationError
from aviato.server.backends.capabilities import Capability, lacks
from aviato.server.images.resolved import ResolvedImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.packages import PackageDirectory
    from aviato.server.images.store import ImageStore
    from aviato.server.images.stored_image import StoredImage
    from aviato.server.link.link import Process1Link
    from aviato.server.link.port_channel import PortChannel

__all__ = ["Backend", "Capability", "Check", "Limit", "MountedFile", "ResolvedImage", "SandboxSpec", "Strength"]

Strength = Literal["hard", "watched", "none"]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of a sandbox: its value (None: unlimited) and how strongly it holds."""

    value: float | None
    strength: Strength


@dataclass(frozen=True, kw_only=True)
class MountedFile:
    """A file that a sandbox finds at an absolute path and can only read."""

    path: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What a backend needs to make one sandbox."""

    sandbox_id: str
    """Of its place: the backend knows it by this."""
    image: ResolvedImage
    host_name: str | None = None
    """What it calls itself; None: as its place is called."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More environment variables. Their values go to process 1 over its link and into no file, argument or log."""
    packages: str | None = None
    """What Python packages it sees beside those of its image: a registered name, or the path of a directory."""
    packages_at: PackageDirectory | None = None
    """Where they are. Put there by the backend, for as long as it makes the sandbox."""
    working_dir: str | None = None
    max_lifetime_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    orphan_timeout_seconds: float = 600.0
    mounted_files: tuple[MountedFile, ...] = ()
    exposes_ports: bool = False
    """Whether connections will be made into it, by `open_port_channel`."""
    egress_port: int | None = None
    """Where inside a proxy will listen, by `open_port_channel`; its variables are set for every command. None does for
    `internet` where the backend brings that about by its own means."""
    requests: Mapping[str, float] = field(default_factory=dict)
    """How much of each resource that it named it wants to be sure of: cores, bytes, or by count."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What it named as its limits."""
    network: str = "none"
    """The egress mode, for backends that bring it about by their own means."""
    runway_ids: tuple[str, ...] = ()
    """Pools, of which it is to be in one; with `Capability.PLACES`."""
    tower_ids: tuple[str, ...] = ()
    """Nodes, of which it is to be on one."""
    record: str | None = field(default=None, repr=False)
    """What another server has to know of the sandbox, for backends that have more than one; it may hold what is secret.

    It is kept beside `mounted_files`, whose contents are not in it."""
    tags: tuple[str, ...] = ()
    """Its labels, for backends whose own tools show them."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `aviato doctor`.

    Attributes:
        name: what was tried.
        ok: whether it works here.
        detail: what was found.
        remedy: the exact line that repairs it, or None.
        required: whether sandboxes cannot run without it.
    """

    name: str
    ok: bool
    detail: str
    remedy: str | None = None
    required: bool = True


class Backend(ABC):
    """One kind of place where sandboxes run."""

    name: str
    start_seconds: float = 60.0
    """How long a sandbox may be on its way."""
    shares_sandboxes = False
    """Whether other servers may have sandboxes of the same backend, which can be taken over."""
    brings_internet = False
    """Whether it brings egress mode `internet` about by its own means, and not by the server's proxy."""
    own_ports: frozenset[int] = frozenset()
    """Ports inside that are taken by what carries the sandbox, and cannot be exposed."""
    creates_at_once: int | None = None
    """How many sandboxes may be on their way at once; None: by this machine's processors."""
    capabilities: frozenset[Capability] = frozenset()
    """What it can do beyond commands and files. Calls that need another one are refused by its name. It may have fewer once it
    is open, by what the machine gives."""
    unkept_promises: tuple[str, ...] = ()
    """What the threat model promises and this backend does not keep on this machine, each a name and a sentence; known once
    it is open."""

    def require(self, capability: Capability, parameter: str) -> None:
        """Refuse by name what is not declared.

        Args:
            capability: which a call needs.
            parameter: of the call, or its name.

        Raises:
            AviatoValidationError: it is not one of `capabilities`.
        """
        if capability not in self.capabilities:
            why = lacks(self.name, capability)
            raise AviatoValidationError(f"{parameter}: {why}", field_violations={parameter: why})

    @abstractmethod
    async def open(self) -> None:
        """Get ready; called once before anything else.

        Raises:
            SandboxUnavailableError: sandboxes cannot run here; the message holds the remedy. The server stays up and
                answers every create with it.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of helpers; running sandboxes live on."""

    @abstractmethod
    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """The image that a reference means here.

        Raises:
            SandboxImageError: it is unknown; the message names what is there.
        """

    def has_layers(self, image: ResolvedImage) -> bool:
        """Whether what a sandbox of this image writes is in a layer of its own."""
        return False

    def has_written(self, place_id: str) -> bool:
        """Whether there may be anything in the layer of a place. Blocks for a moment."""
        return True

    def leaves_layer(self, place_id: str) -> bool:
        """Whether `leave_layer` can be asked for. Blocks for a moment."""
        return False

    async def leave_layer(self, place_id: str, new: NewSnapshot) -> StoredImage:
        """Kill what runs in a place, and make a snapshot of its layer, which is moved. It can be asked for again.

        Raises:
            SandboxImageError, OSError: there is none.
        """
        raise NotImplementedError

    @abstractmethod
    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """The limits that a sandbox will have, each with its strength."""

    async def fetch_image(self, image: ResolvedImage) -> ResolvedImage:
        """An image that `resolve_image` gave, once it is here.

        Raises:
            SandboxImageError: it cannot be had.
        """
        return image

    @property
    def image_store(self) -> ImageStore | None:
        """The images of registries that it keeps, once it is open, with `Capability.IMAGE_STORE`; else None."""
        return None

    async def check_packages(self, reference: str, image: ResolvedImage, *, registered: bool) -> None:
        """Say early which packages cannot be had in a sandbox of an image. Only with `Capability.PACKAGES`.

        Args:
            reference: a registered name, or the path of a directory.
            image: which has the Python that is to import them.
            registered: the caller may name registered ones only.

        Raises:
            AviatoValidationError: these, and why.
        """
        raise NotImplementedError

    def check(self, spec: SandboxSpec) -> None:  # noqa: B027
        """Say early what this backend cannot do for a sandbox.

        Raises:
            AviatoValidationError: what, and why.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Process1Link:
        """Make the place, start process 1 in it and connect. Cancelling it leaves nothing behind once `destroy` ran.

        Raises:
            AviatoError: what could not be done and why.
        """

    def claim(self, spec: SandboxSpec, link: Process1Link) -> None:
        """Give what `create` made for one of this kind to another.

        Its host name, environment, directory and times hold from here on. The image, packages, files, ports, proxy and
        resources are those that it was made with. Only with `Capability.POOLS`.
        """
        raise NotImplementedError

    @abstractmethod
    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        """Connect again to a sandbox that an earlier server made; None if its process 1 is gone.

        Raises:
            TimeoutError, AviatoError, OSError: it may live, and cannot be spoken to now.
        """

    async def open_port_channel(self, sandbox_id: str) -> PortChannel:
        """A way to the ports of a sandbox made with `exposes_ports` or `egress_port`; a newer one replaces the older.

        Only with `Capability.PORTS` or `Capability.EGRESS`.

        Raises:
            OSError: there is none (any more).
        """
        raise NotImplementedError

    async def record_elsewhere(self, sandbox_id: str) -> tuple[str, list[bytes]] | None:
        """Of a sandbox that another server made, by its own id: the `record` in its spec, and what its mounted files hold.

        None: there is none.

        Only where `shares_sandboxes`.

        Raises:
            AviatoError: it cannot be looked for now.
        """
        return None

    async def take_over(self, sandbox_id: str) -> bool:
        """Have such a sandbox; whether it is still there. The other server's link ends with the reason `taken`.

        Raises:
            AviatoError: it cannot be had now.
        """
        return False

    def is_taken(self, place_id: str) -> bool:
        """Whether another server has taken a place over."""
        return False

    def node_of(self, sandbox_id: str) -> str | None:
        """The node that a sandbox is on, where there is more than one."""
        return "local"

    def image_id_in(self, sandbox_id: str, reference: str) -> str | None:
        """What `ResolvedImage.lasting_id` is of an image whose sandbox runs, where only that tells."""
        return None

    def image_in(self, place_id: str) -> ResolvedImage | None:
        """What a place that was made here is made of: of an image that was removed just before, what its name means since.

        None: it is the one that was asked for, as far as is known.
        """
        return None

    def waits_for(self, sandbox_id: str) -> str | None:
        """Why a sandbox that is being made is not there yet, where that is known."""
        return None

    def too_long(self, sandbox_id: str) -> str:
        """Why a start that has taken `start_seconds` is given up, for people."""
        waits = self.waits_for(sandbox_id)
        return f"its start took longer than {self.start_seconds:g} s" + ("" if waits is None else f" ({waits})")

    @abstractmethod
    def how_ended(self, sandbox_id: str) -> str | None:
        """The reason that a process 1 left behind when it ended by itself (`lifetime`, `idle`, `orphaned`), or None."""

    def remember_end(self, sandbox_id: str, reason: str) -> None:
        """Have `how_ended` give this of a sandbox whose place is gone, until it is destroyed again. For a thread.

        Raises:
            OSError: it cannot be written.
        """
        raise NotImplementedError

    def leave_results(self, sandbox_id: str, path: str) -> bool:
        """Put the results that a process 1 left behind when it ended into a file; False if there are none. For a thread.

        Each is a line of JSON: `exec_id`, `exit` and `output`, an offset and base64 for each stream. Other lines mean nothing.
        """
        return False

    def shared_paths(self) -> list[str]:
        """The files and directories of this machine that sandboxes can read; asked before it is open, too."""
        return []

    def root_path(self, sandbox_id: str) -> str:
        """Of a sandbox without a root directory of its own, the folder that it has instead; else empty."""
        return ""

    @abstractmethod
    async def destroy(self, sandbox_id: str) -> None:
        """Kill what is left and take the place away. Idempotent; works for a half-made one and an unknown one."""

    def kill(self, sandbox_id: str) -> bool:
        """Kill all that is in a sandbox, without a wait for it; its link ends then. False: only `destroy` can do that."""
        return False

    async def destroy_all(self, sandbox_ids: Iterable[str]) -> list[str]:
        """`destroy` several that `kill` has killed; returns those that could not be."""
        ids = list(sandbox_ids)
        found = await asyncio.gather(*map(self.destroy, ids), return_exceptions=True)
        return [sandbox_id for sandbox_id, one in zip(ids, found, strict=True) if isinstance(one, BaseException)]

    @abstractmethod
    async def place_ids(self) -> list[str]:
        """Ids of all sandboxes whose place exists, half-made ones included, for reconciliation."""

    @abstractmethod
    async def probe(self) -> list[Check]:
        """What this machine gives, found by trying."""
