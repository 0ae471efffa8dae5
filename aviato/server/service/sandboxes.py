"""Sandboxes: create or join, look, wait, list, stop."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    SandboxResourceExhaustedError,
    SandboxUnavailableError,
)
from aviato.server.admission import RETRY_DELAY_SECONDS
from aviato.server.backends.capabilities import Capability, lacks
from aviato.server.callers import OPERATOR
from aviato.server.service.images import check_image, note_image
from aviato.server.service.limits import check_limits
from aviato.server.service.live_sandbox import LiveSandbox, info_of
from aviato.server.states import TAKEN, State
from aviato.server.store import SandboxRecord
from aviato.server.store.listing import Query
from aviato.system.threads import in_thread
from aviato.wire.errors import RequestConflictError
from aviato.wire.mounts import check_mounts
from aviato.wire.sandboxes import SandboxInfo, SandboxPage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aviato.options import SandboxStatus
    from aviato.server.backends.base import Backend, Limit, ResolvedImage
    from aviato.server.callers import Caller
    from aviato.server.peers import Peer
    from aviato.server.service.leases import Lease, Leases
    from aviato.server.service.lifecycle import Lifecycle
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.service.ports import Ports
    from aviato.server.service.registry import Registry
    from aviato.server.service.secrets import Secrets
    from aviato.server.service.slots import Slots
    from aviato.server.settings import ServerSettings
    from aviato.wire.sandboxes import CreateSandbox


_NEWER = ("egress_mode", "secrets", "packages")
"""Without these a body has the hash that an earlier version has on record for it, so that a create can be repeated after it."""
_NOT_BODY = {"lease_id", "secret_values"}
_OF_BODY = "b:"
"""What a hash begins with that is of the body as it is put on record."""
PULLING = "pulling"
"""Why a sandbox is pending: its image is on its way here."""
SOON_SECONDS = 0.5
"""When a place is about to be free."""


class Accepted(NamedTuple):
    """A sandbox that was asked for.

    Attributes:
        sandbox: None: it has ended.
        record: as it was put on record.
        is_new: a repeat joins the first.
    """

    sandbox: LiveSandbox | None
    record: SandboxRecord
    is_new: bool


class Sandboxes:
    """Every sandbox of this server, living or on record."""

    def __init__(
        self,
        settings: ServerSettings,
        backend: Backend,
        registry: Registry,
        lifecycle: Lifecycle,
        slots: Slots,
        leases: Leases,
        long_polls: LongPolls,
        ports: Ports,
        secrets: Secrets,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._registry = registry
        self._lifecycle = lifecycle
        self._slots = slots
        self._leases = leases
        self._long_polls = long_polls
        self._ports = ports
        self._secrets = secrets

    async def accept(
        self, request: CreateSandbox, peer: Callable[[], Peer | None], caller: Caller = OPERATOR, *, for_one_run: bool = False
    ) -> Accepted:
        """As `create`, with the secrets and packages that it names.

        Raises:
            AviatoValidationError: there are none of that name, or not for this caller.
        """
        request = _of(caller, request)
        if request.packages is not None and self._registry.find_record(request.sandbox_id) is None:
            self._check(request)
            await self._check_packages(request, request.packages, caller)
        if not request.secrets and not request.secret_values:
            return self.create(request, peer, caller, for_one_run=for_one_run)
        found: Mapping[str, str] = {}
        if self._registry.find_record(request.sandbox_id) is None:
            self._check(request)
            caller.check_secrets([(one.store, one.name) for one in request.secrets])
            found = await self._secrets.find(request.secrets, request.secret_values)
        # From here on nobody holds the request that has the values in it.
        bare = request.model_copy(update={"secret_values": {}})
        return self.create(bare, peer, caller, found, for_one_run=for_one_run)

    def create(
        self,
        request: CreateSandbox,
        peer: Callable[[], Peer | None],
        caller: Caller = OPERATOR,
        secrets: Mapping[str, str] | None = None,
        *,
        for_one_run: bool = False,
    ) -> Accepted:
        """Accept a sandbox: it is on record when this returns, and starts by itself.

        Args:
            request: what is wanted; without values of secrets, since it is put on record.
            peer: tells the process that asks.
            caller: whose it will be.
            secrets: environment variables that are kept out of the record.
            for_one_run: whether it is made for one command.

        Raises:
            RequestConflictError: the id was used with another body.
            AviatoValidationError: something in the request cannot be honoured.
            SandboxImageError: the image is unknown.
            SandboxResourceExhaustedError: the queue is full, the caller has as many as it may, or no port can be opened.
        """
        if request.sandbox_id not in self._registry.live:
            try:
                return self._create(request, peer, caller, secrets or {}, for_one_run)
            except AviatoError:
                # Next to all ids are new, so nobody has looked whether this one is. A repeat is refused nothing.
                if self._registry.find_record(request.sandbox_id) is None:
                    raise
        known = self._registry.live.get(request.sandbox_id)
        record = self._registry.record(request.sandbox_id)
        if not _is_of(record, request) or not caller.sees(record.owner):
            raise RequestConflictError(f"{request.sandbox_id} was used before with another body")
        if record.ended_at is None and request.lease_id is not None and not request.detached:
            self._leases.renew(request.lease_id, peer, caller)
        return Accepted(known, record, is_new=False)

    def _create(
        self,
        request: CreateSandbox,
        peer: Callable[[], Peer | None],
        caller: Caller,
        secrets: Mapping[str, str],
        for_one_run: bool,
    ) -> Accepted:
        """As `create`, of an id that is taken for new; whatever is raised, the id may have been on record."""
        image = self.check(request, caller)
        client = _process(peer) if request.detached or request.lease_id is None else ""
        body = _body(request)
        self._slots.check_room(caller.tenant, request.lease_id or client, len(body))
        self._check_share(caller)
        lease = None
        if not request.detached and request.lease_id is not None:
            lease = self._leases.renew(request.lease_id, peer, caller)
        now = time.time()
        record = SandboxRecord(
            sandbox_id=request.sandbox_id,
            created_at=now,
            status_updated_at=now,
            body_hash=_hash(request, body),
            detached=request.detached,
            lease_id=None if lease is None else lease.lease_id,
            owner=caller.tenant,
            image=image.reference,
            image_note=image.note,
            image_id=image.lasting_id,
            first_image_id=image.lasting_id,
            tags=tuple(dict.fromkeys(request.tags)),
            annotations=request.annotations,
            egress=request.egress_mode or "none",
            unkept_promises=self._backend.unkept_promises,
            for_one_run=for_one_run,
            body=body,
        )
        sandbox = LiveSandbox(
            record=record,
            request=request,
            lifecycle=self._lifecycle,
            holder=_holder(lease),
            client=client,
            image=image,
            secrets=dict(secrets),
        )
        sandbox.spec = spec = self._lifecycle.spec(sandbox)
        self._backend.check(spec)
        limits = self._backend.limits(spec)
        check_limits(request, limits)
        sandbox.record = record = record.but(limits=_on_record(tuple(limits.items())))
        addresses = self._ports.open(sandbox.sandbox_id, dict.fromkeys(request.ports))
        sandbox.record = record = record.but(ports={**addresses})
        self._registry.live[sandbox.sandbox_id] = sandbox
        self._slots.join(sandbox)
        # One that need not wait begins at once, which then is on record from the first.
        if sandbox.place.done():
            sandbox.record = record = record.but(begun=True)
            if spec.record is not None:
                sandbox.spec = self._lifecycle.spec(sandbox)  # What other servers read of it has its limits and ports, too.
        else:
            sandbox.spec = None  # It can hold files a second time.
        try:
            self._registry.store.add_sandbox(record)
        except sqlite3.Error as error:
            del self._registry.live[sandbox.sandbox_id]
            self._slots.gone(sandbox)
            self._ports.close(sandbox.sandbox_id)
            raise SandboxUnavailableError(f"the server's store cannot be written: {error}", reason="store") from error
        if lease is not None:
            self._leases.attach(lease, sandbox)
        self._lifecycle.begin(sandbox)
        return Accepted(sandbox, record, is_new=True)

    def check(self, request: CreateSandbox, caller: Caller) -> ResolvedImage:
        """See what can be seen of a request before it is accepted; returns its image.

        Raises:
            AviatoValidationError: something in it cannot be honoured.
            SandboxImageError: the image is unknown, or not for this caller.
        """
        self._check(request)
        image = self._backend.resolve_image(request.image, fallback=request.image_fallback)
        check_image(image, caller, image.reference)
        return image

    async def check_pool(self, request: CreateSandbox, caller: Caller) -> CreateSandbox:
        """See whether sandboxes of a pool can be had; returns what they are made with.

        Raises:
            AviatoError: as for a create.
        """
        lasting: dict[str, Any] = {"detached": True, "lease_id": None, "max_lifetime_seconds": None, "secrets": []}
        bare = _of(caller, request).model_copy(update={**lasting, "secret_values": {}, "idle_timeout_seconds": None})
        self.check(bare, caller)
        if bare.command is not None:
            message = "sandboxes of a pool have no main command"
            raise AviatoValidationError(message, field_violations={"command": message})
        if bare.packages is not None:
            await self._check_packages(bare, bare.packages, caller)
        return bare

    def info(self, accepted: Accepted) -> SandboxInfo:
        """What its caller is told: how it is by now. One whose place was ready runs after the first turn of its life."""
        return self._info(accepted.sandbox, accepted.record if accepted.sandbox is None else accepted.sandbox.record)

    async def get(
        self, sandbox_id: str, wait: Literal["running", "ended"] | None = None, timeout_seconds: float = 0.0
    ) -> SandboxInfo:
        """A sandbox as it is; with `wait`, when it runs (or has ended) or has ended, at the latest after the timeout.

        Raises:
            SandboxNotFoundError: it is not known.
            SandboxUnavailableError: it has not ended, and this server cannot reach it.
        """
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is not None and wait is not None:
            await self._long_polls.wait(sandbox.ready if wait == "running" else sandbox.gone, timeout_seconds)
            if sandbox.state >= State.ENDED:
                # Its place is being taken away: that is bounded, and the answer then is its end.
                await self._long_polls.wait(sandbox.gone, max(timeout_seconds, 1.0))
            _check_here(sandbox)
            return self._info(sandbox, sandbox.record)
        if sandbox is None and wait is not None:
            return self._info(None, self._registry.ended(sandbox_id))
        return self._info(sandbox, self._registry.record(sandbox_id))

    async def list(
        self,
        *,
        tags: Iterable[str] = (),
        statuses: Iterable[SandboxStatus] = (),
        include_stopped: bool = False,
        lease_id: str | None = None,
        owners: Sequence[str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SandboxPage:
        """One page of a listing, oldest first: sandboxes that have all `tags` and one of `statuses`.

        Without statuses those that have not ended, or all with `include_stopped`; a terminal status implies it.
        """
        query = Query(
            tags=tuple(tags),
            statuses=tuple(statuses),
            include_stopped=include_stopped,
            lease_id=lease_id,
            owners=None if owners is None else tuple(owners),
            limit=limit,
            cursor=cursor,
        )
        self._registry.save_again()
        records, cursor = await in_thread(self._registry.store.list_sandboxes, query)
        live = self._registry.live
        return SandboxPage(
            sandboxes=[self._info(live.get(record.sandbox_id), record) for record in records], next_cursor=cursor
        )

    async def stop(self, sandbox_id: str, grace_seconds: float) -> SandboxInfo:
        """End a sandbox by its caller's wish; returns when it has ended. One that has ended already is fine.

        Raises:
            SandboxNotFoundError: it is not known.
            SandboxUnavailableError: it has not ended, and this server cannot reach it.
        """
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is None:
            return self._info(None, self._registry.ended(sandbox_id))
        sandbox.ask_to_end("stopped", grace_seconds)
        await self._long_polls.wait(sandbox.gone, None)
        _check_here(sandbox)
        return self._info(sandbox, sandbox.record)

    async def release(self, sandbox_id: str) -> SandboxInfo:
        """End a sandbox that was let go and that nothing uses, since its client needs the place; leave any other as it is.

        Raises:
            SandboxNotFoundError: it is not known.
            SandboxUnavailableError: it has not ended, and this server cannot reach it.
        """
        sandbox = self._registry.live.get(sandbox_id)
        if sandbox is None:
            return self._info(None, self._registry.ended(sandbox_id))
        if sandbox.releasable:
            sandbox.ask_to_end("released")
        if sandbox.state >= State.STOPPING:
            await self._long_polls.wait(sandbox.gone, None)
        return self._info(sandbox, sandbox.record)

    def _info(self, sandbox: LiveSandbox | None, record: SandboxRecord) -> SandboxInfo:
        if sandbox is not None and sandbox.record is record:
            note_image(self._backend, sandbox)
            record = sandbox.record
        info = info_of(record, None if sandbox is None else self._slots.queue_of(sandbox))
        here: dict[str, Any] = {
            "root_path": self._backend.root_path(record.place_id or record.sandbox_id),
            "local_sockets": Capability.LOCAL_SOCKETS in self._backend.capabilities,
            "tower_id": self._backend.node_of(record.place_id or record.sandbox_id),
            "was_ready": sandbox is not None and sandbox.was_ready,
            "image_pull": None if sandbox is None else sandbox.image_pull,
        }
        if sandbox is not None and sandbox.waits_for_image:
            here["status_reason"] = PULLING
        elif sandbox is not None and sandbox.state is State.STARTING:
            here["status_reason"] = self._backend.waits_for(sandbox.place_id)
        return info.model_copy(update=here)

    def _check_share(self, caller: Caller) -> None:
        """Hold a tenant to its number of sandboxes; one that was let go makes room for the next try."""
        if caller.max_sandboxes is None:
            return
        own = [
            sandbox for sandbox in self._registry.live.values() if sandbox.record.owner == caller.tenant and not sandbox.is_dead
        ]
        if len(own) < caller.max_sandboxes:
            return
        soon = any(sandbox.state >= State.STOPPING for sandbox in own)
        if not soon and (let_go := [sandbox for sandbox in own if sandbox.releasable]):
            min(let_go, key=lambda sandbox: sandbox.record.created_at).ask_to_end("released")
            soon = True
        raise SandboxResourceExhaustedError(
            f"this API key has {len(own)} sandboxes and may have {caller.max_sandboxes} at once",
            reason="key_limit",
            retry_delay_seconds=SOON_SECONDS if soon else RETRY_DELAY_SECONDS,
        )

    async def _check_packages(self, request: CreateSandbox, packages: str, caller: Caller) -> None:
        """Look at them before the sandbox is accepted, without holding others up: their disk may be a slow one."""
        image = self._backend.resolve_image(request.image, fallback=request.image_fallback)
        # Whoever comes by the Unix socket has the server's own rights, or more.
        registered = caller.tenant is not None
        await self._backend.check_packages(packages, image, registered=registered)

    def _network_of(self, request: CreateSandbox) -> Capability:
        """What the backend needs for its way out."""
        return Capability.INTERNET if request.egress_mode == "internet" else Capability.EGRESS

    def _check(self, request: CreateSandbox) -> None:
        violations: dict[str, str] = {}
        if not request.detached and request.lease_id is None:
            violations["lease_id"] = "required unless detached"
        if request.working_dir is not None and not request.working_dir.startswith("/"):
            violations["working_dir"] = f"must be absolute, got {request.working_dir!r}"
        if request.args and request.command is None:
            violations["args"] = "there is no command that they belong to"
        longest = self._settings.max_detached_lifetime
        if request.detached and (request.max_lifetime_seconds or 0.0) > longest:
            violations["max_lifetime_seconds"] = f"at most {longest:g} for a detached sandbox on this server"
        if Capability.PLACES not in self._backend.capabilities:
            for name, wanted in (("runway_ids", request.runway_ids), ("tower_ids", request.tower_ids)):
                if wanted and "local" not in wanted:
                    violations[name] = f"none of {wanted!r} is here: {lacks(self._backend.name, Capability.PLACES)}"
        if request.mounted_files:
            check_mounts([(file.mount_path, file.size_bytes) for file in request.mounted_files])
        if len(set(request.ports)) < len(request.ports):
            violations["ports"] = f"each once, got {request.ports}"
        if own := self._backend.own_ports.intersection(request.ports):
            violations["ports"] = f"{min(own)} is taken in sandboxes of the backend {self._backend.name!r}; expose another one"
        for name, capability, asked in (
            ("ports", Capability.PORTS, bool(request.ports)),
            ("egress_mode", self._network_of(request), request.egress_mode not in (None, "none")),
            ("mounted_files", Capability.MOUNTED_FILES, bool(request.mounted_files)),
            ("working_dir", Capability.WORKING_DIR, request.working_dir is not None),
            ("packages", Capability.PACKAGES, request.packages is not None),
            ("pool", Capability.POOLS, request.pool_id is not None or bool(request.warmup)),
        ):
            if asked and capability not in self._backend.capabilities:
                violations[name] = lacks(self._backend.name, capability)
        variables = [secret.env_var for secret in request.secrets]
        twice = {name for name in variables if variables.count(name) > 1 or name in request.environment_variables}
        if twice:
            violations["secrets"] = f"the variable {min(twice)} is set twice"
        if violations:
            text = "; ".join(f"{name}: {problem}" for name, problem in violations.items())
            raise AviatoValidationError(text, field_violations=violations)


def _check_here(sandbox: LiveSandbox) -> None:
    """What another server has taken over has not ended."""
    if sandbox.ending is not None and sandbox.ending.reason == TAKEN:
        raise sandbox.error()


def _body(request: CreateSandbox) -> str:
    """What is put on record of it. What is not said has the default of the server that reads it."""
    return request.model_dump_json(exclude=_NOT_BODY, exclude_defaults=True)


def _hash(request: CreateSandbox, body: str) -> str:
    """To tell a repeat. A version that knows more fields has the same for a request without them."""
    if len(request.environment_variables) > 1 or len(request.annotations) > 1:
        body = json.dumps(json.loads(body), sort_keys=True)  # Their order says nothing.
    return _OF_BODY + hashlib.sha256(body.encode()).hexdigest()


def _is_of(record: SandboxRecord, request: CreateSandbox) -> bool:
    """Whether this create is the one that is on record."""
    earlier = not record.body_hash.startswith(_OF_BODY)
    return record.body_hash == (_earlier_hash(request) if earlier else _hash(request, _body(request)))


def _earlier_hash(request: CreateSandbox) -> str:
    """As earlier versions made it."""
    body: dict[str, Any] = request.model_dump(mode="json", exclude={"lease_id", "secret_values"})
    for name in _NEWER:
        if not body[name]:
            del body[name]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@functools.lru_cache(maxsize=64)
def _on_record(limits: tuple[tuple[str, Limit], ...]) -> dict[str, dict[str, Any]]:
    """For the store; held once for all sandboxes that have the same."""
    return {name: {**vars(limit)} for name, limit in limits}


def _of(caller: Caller, request: CreateSandbox) -> CreateSandbox:
    """A request with what its image means of its caller's."""
    if request.image is None or (meant := caller.image(request.image)) == request.image:
        return request
    return request.model_copy(update={"image": meant})


def _process(peer: Callable[[], Peer | None]) -> str:
    """What the queue calls the process that asks; over TCP all of a tenant's are one."""
    found = peer()
    if found is None:
        return ""
    if found.pidfd is not None:
        os.close(found.pidfd)
    return f"pid {found.pid}"


def _holder(lease: Lease | None) -> str:
    return "detached" if lease is None else lease.holder
