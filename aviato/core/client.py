"""The calls of one server, each a coroutine: what is sent, how it is retried, what comes back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode

import pydantic
from pydantic_core import PydanticSerializationError, to_json

from aviato.exceptions import (
    AviatoError,
    AviatoValidationError,
    SandboxImageError,
    SandboxNotFoundError,
    SandboxSnapshotError,
    SandboxUnavailableError,
)
from aviato.wire.errors import ErrorBody, from_wire
from aviato.wire.ids import new_sandbox_id
from aviato.wire.images import (
    ImageInfo,
    ImageList,
    PinImage,
    PrunedImages,
    PruneImages,
    PullImage,
    PushImage,
    PushInfo,
    RemovedImage,
    RemoveImage,
)
from aviato.wire.pools import MakePool, PoolInfo
from aviato.wire.sandboxes import MOST_RECEIVED, CreateSandbox, LeaseInfo, ResetSandbox, SandboxInfo, SandboxPage, StopSandbox
from aviato.wire.snapshots import SnapshotInfo, SnapshotList, TakeSnapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from pydantic import BaseModel

    from aviato.core.acknowledgements import Told
    from aviato.transport.http import HttpTransport

T = TypeVar("T")
M = TypeVar("M", bound=pydantic.BaseModel)

NEVER_REACHED_SECONDS = 5.0
"""How long a server that has never answered is tried."""

LONG_POLL_SECONDS = 30.0
REMOVAL_SECONDS = 600.0
"""So long the removal of images may take: they have a million files."""
RESET_SECONDS = 120.0
"""So long a reset may take: it is a start, and the server bounds that."""
SNAPSHOT_SECONDS = 600.0
"""So long a snapshot may take: all that a sandbox has written is copied."""
EXPORT_SECONDS = 3600.0
"""So long a server may be silent while it packs a layer of an image."""
_PAGE = 500
_KEPT_BYTES = 64 << 10
_ANY_ID = f"sb-{'0' * 26}"
_ANY_BEGINNING = f'{{"sandbox_id":"{_ANY_ID}",'.encode()
_common: tuple[dict[str, Any], bytes] | None = None
"""The fields that were encoded last, and what they are as JSON."""


class Retrying(Protocol):
    """How a call is repeated; `policy.retry` has the policy."""

    async def call(self, attempt: Callable[[], Awaitable[T]], *, budget_seconds: float, operation: str) -> T:
        """Return what `attempt` returns, trying again within the budget."""
        ...


class Client:
    """Requests to one server.

    Args:
        transport: how they travel.
        retry: how they are repeated.
        reconnect_timeout_seconds: how long to try a server that was reached before.
    """

    def __init__(self, transport: HttpTransport, retry: Retrying, *, reconnect_timeout_seconds: float) -> None:
        self.transport = transport
        self._retry = retry
        self._reconnect_timeout_seconds = reconnect_timeout_seconds

    @property
    def budget_seconds(self) -> float:
        """How long a call may be repeated now."""
        return self._reconnect_timeout_seconds if self.transport.server.reached else NEVER_REACHED_SECONDS

    async def repeat(self, attempt: Callable[[], Awaitable[T]], operation: str) -> T:
        """Run an attempt, and repeat it by the policy only if the first one failed: the usual case pays nothing."""
        try:
            return await attempt()
        except AviatoError as error:
            if not error.retryable:
                raise
            first: AviatoError | None = error

        async def again() -> T:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            return await attempt()

        return await self._retry.call(again, budget_seconds=self.budget_seconds, operation=operation)

    async def call(
        self,
        operation: str,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        silence_seconds: float | None = None,
        once: bool = False,
    ) -> bytes:
        """Send a request that may be repeated, and read its answer; with `once` a repeat has no further effect."""
        key = new_key() if once else None
        return await self.repeat(
            lambda: self.transport.request(method, path, body, silence_seconds=silence_seconds, key=key), operation
        )

    # -- sandboxes

    async def create(self, body: bytes) -> SandboxInfo:
        """Create a sandbox, or join the creation of this id."""
        return decode(SandboxInfo, await self.call("create sandbox", "POST", "/v1/sandboxes", body))

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """A sandbox as the server sees it."""
        return decode(SandboxInfo, await self.call("get sandbox", "GET", f"/v1/sandboxes/{sandbox_id}"))

    async def poll(self, sandbox_id: str, until: str) -> SandboxInfo:
        """The sandbox once it is `running` or `ended`, or as it is after the long poll's time."""
        path = f"/v1/sandboxes/{sandbox_id}?wait={until}&timeout_seconds={LONG_POLL_SECONDS:g}"
        silence = LONG_POLL_SECONDS + self.transport.request_timeout_seconds
        return decode(SandboxInfo, await self.call(f"wait for sandbox {sandbox_id}", "GET", path, silence_seconds=silence))

    async def list_sandboxes(
        self,
        *,
        tags: Iterable[str] = (),
        status: Iterable[str] = (),
        include_stopped: bool = False,
        lease_id: str | None = None,
    ) -> list[SandboxInfo]:
        """All sandboxes that match, however many pages they fill."""
        query: list[tuple[str, str]] = [("tag", tag) for tag in tags]
        query += [("status", name) for name in status]
        query.append(("limit", str(_PAGE)))
        if include_stopped:
            query.append(("include_stopped", "true"))
        if lease_id is not None:
            query.append(("lease_id", lease_id))
        found: dict[str, SandboxInfo] = {}
        cursor: str | None = None
        while True:
            items = query if cursor is None else [*query, ("cursor", cursor)]
            body = await self.call("list sandboxes", "GET", f"/v1/sandboxes?{urlencode(items)}")
            page = decode(SandboxPage, body)
            found.update((info.sandbox_id, info) for info in page.sandboxes)
            cursor = page.next_cursor
            if cursor is None:
                return list(found.values())

    async def stop(
        self, sandbox_id: str, grace_seconds: float, *, missing_ok: bool = False, received: Sequence[str] = ()
    ) -> SandboxInfo | None:
        """Stop a sandbox and wait until it has ended; None if the server does not know it and that is fine.

        `received` are commands whose results have arrived, so that the server need not keep them.
        """
        path = f"/v1/sandboxes/{sandbox_id}/stop"

        async def stop(**also: list[str]) -> SandboxInfo | None:
            body = encode(StopSandbox, graceful_shutdown_seconds=grace_seconds, **also)
            return await self._end("POST", path, body, grace_seconds, missing_ok)

        return await _saying_received(stop, received)

    async def release(self, sandbox_id: str) -> SandboxInfo | None:
        """End a sandbox that was let go, with reason `released`, unless something uses it; None if it is not known."""
        body = encode(StopSandbox, release=True)
        return await self._end("POST", f"/v1/sandboxes/{sandbox_id}/stop", body, 10.0, True)

    async def delete(self, sandbox_id: str, *, missing_ok: bool = False) -> SandboxInfo | None:
        """End a sandbox with the usual grace; None if the server does not know it and that is fine."""
        return await self._end("DELETE", f"/v1/sandboxes/{sandbox_id}", None, 10.0, missing_ok)

    async def _end(self, method: str, path: str, body: bytes | None, grace: float, missing_ok: bool) -> SandboxInfo | None:
        silence = grace + self.transport.request_timeout_seconds
        answer = await self._removal("stop sandbox", method, path, body, silence, _is_unknown, missing_ok=missing_ok)
        return None if answer is None else decode(SandboxInfo, answer)

    async def _removal(
        self,
        operation: str,
        method: str,
        path: str,
        body: bytes | None,
        silence_seconds: float,
        is_gone: Callable[[AviatoError], bool],
        *,
        missing_ok: bool,
    ) -> bytes | None:
        """Send a request to take something away; None where it is gone already, and that is fine."""
        attempts = 0

        async def attempt() -> bytes | None:
            nonlocal attempts
            attempts += 1
            try:
                return await self.transport.request(method, path, body, silence_seconds=silence_seconds)
            except AviatoError as error:
                # An earlier attempt of this very call, whose answer was lost, may have done the work.
                if is_gone(error) and (missing_ok or attempts > 1):
                    return None
                raise

        return await self.repeat(attempt, operation)

    async def cancel_all(self, sandbox_id: str) -> None:
        """Kill all commands of a sandbox but the main one, and what they left behind; returns when they are dead."""
        await self.call("end the commands", "POST", f"/v1/sandboxes/{sandbox_id}/execs/cancel")

    # -- images

    async def pull_image(self, reference: str, *, refresh: bool, timeout_seconds: float, name: str | None = None) -> ImageInfo:
        """An image once it is here or has failed, or how far its pull is after a time."""
        path = f"/v1/images/pull?timeout_seconds={timeout_seconds:g}"
        body = encode(PullImage, reference=reference, refresh=refresh, name=name)
        silence = timeout_seconds + self.transport.request_timeout_seconds
        return decode(ImageInfo, await self.call(f"pull image {reference}", "POST", path, body, silence_seconds=silence))

    async def list_images(self) -> list[ImageInfo]:
        """The images that are here or on their way."""
        return decode(ImageList, await self.call("list images", "GET", "/v1/images")).images

    async def inspect_image(self, reference: str) -> ImageInfo:
        """One image."""
        path = f"/v1/images/inspect?{urlencode({'reference': reference})}"
        return decode(ImageInfo, await self.call("inspect image", "GET", path))

    async def remove_image(self, reference: str, *, force: bool) -> list[str]:
        """Remove a name, or an image; returns the names that went."""
        body = encode(RemoveImage, reference=reference, force=force)
        path = "/v1/images/remove"
        answer = await self._removal("remove image", "POST", path, body, REMOVAL_SECONDS, _is_no_image, missing_ok=False)
        return [] if answer is None else decode(RemovedImage, answer).names

    async def prune_images(self, *, most_bytes: int, unused_seconds: float) -> int:
        """Remove images that nobody uses; returns the bytes that this frees."""
        body = encode(PruneImages, most_bytes=most_bytes, unused_seconds=unused_seconds)
        answer = await self.call("prune images", "POST", "/v1/images/prune", body, silence_seconds=REMOVAL_SECONDS)
        return decode(PrunedImages, answer).freed_bytes

    async def pin_image(self, reference: str, *, pinned: bool) -> ImageInfo:
        """Let an image stay whatever is pruned, or no longer."""
        body = encode(PinImage, reference=reference, pinned=pinned)
        return decode(ImageInfo, await self.call("pin image", "POST", "/v1/images/pin", body))

    async def push_image(self, reference: str, destination: str | None, *, timeout_seconds: float, key: str) -> PushInfo:
        """How far a push is, once it has ended or after a time; who comes again with its key joins it."""
        path = f"/v1/images/push?timeout_seconds={timeout_seconds:g}"
        body = encode(PushImage, reference=reference, destination=destination)
        silence = timeout_seconds + self.transport.request_timeout_seconds
        answer = await self.repeat(
            lambda: self.transport.request("POST", path, body, silence_seconds=silence, key=key), f"push image {reference}"
        )
        return decode(PushInfo, answer)

    @staticmethod
    def export_path(reference: str, form: str) -> str:
        """Where an image is read as an archive."""
        return f"/v1/images/export?{urlencode({'reference': reference, 'form': form})}"

    # -- snapshots

    async def take_snapshot(self, sandbox_id: str, snapshot_id: str, **wanted: Any) -> SnapshotInfo:
        """Make an image of what a sandbox has written, as `TakeSnapshot` has it; a repeat joins the first."""
        path = f"/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}"
        body = encode(TakeSnapshot, **wanted)
        return decode(SnapshotInfo, await self.call("take snapshot", "PUT", path, body, silence_seconds=SNAPSHOT_SECONDS))

    async def reset_sandbox(self, sandbox_id: str, reset_id: str, received: Sequence[str], **wanted: Any) -> SandboxInfo:
        """Let one begin anew; returns when it runs. `received` as in `stop`."""
        path = f"/v1/sandboxes/{sandbox_id}/resets/{reset_id}"

        async def reset(**also: list[str]) -> SandboxInfo:
            body = encode(ResetSandbox, **wanted, **also)
            return decode(SandboxInfo, await self.call("reset sandbox", "PUT", path, body, silence_seconds=RESET_SECONDS))

        return await _saying_received(reset, received)

    async def keep_pool(self, pool_id: str, size: int, create: dict[str, Any]) -> PoolInfo:
        """Have a pool for another while."""
        body = encode(MakePool, size=size, sandbox={**create, "sandbox_id": new_sandbox_id(), "detached": True})
        return decode(PoolInfo, await self.call("keep pool", "PUT", f"/v1/pools/{pool_id}", body))

    async def remove_pool(self, pool_id: str) -> None:
        """Have it no longer."""
        await self.call("remove pool", "DELETE", f"/v1/pools/{pool_id}")

    async def list_snapshots(self) -> list[SnapshotInfo]:
        """Those that are there, the newest first."""
        return decode(SnapshotList, await self.call("list snapshots", "GET", "/v1/snapshots")).snapshots

    async def delete_snapshot(self, snapshot_id: str, *, missing_ok: bool) -> None:
        """Remove one; sandboxes that were made of it go on."""
        path = f"/v1/snapshots/{snapshot_id}"
        await self._removal("delete snapshot", "DELETE", path, None, REMOVAL_SECONDS, _is_no_snapshot, missing_ok=missing_ok)

    # -- leases and acknowledgements

    async def put_lease(self, lease_id: str) -> LeaseInfo:
        """Make or renew a lease."""
        return decode(LeaseInfo, await self.call("renew lease", "PUT", f"/v1/leases/{lease_id}"))

    async def end_lease(self, lease_id: str, *, again: bool) -> None:
        """End a lease and all its sandboxes; `again` repeats a request that came to nothing."""
        path = f"/v1/leases/{lease_id}"
        await (self.call("end lease", "DELETE", path) if again else self.transport.request("DELETE", path))

    async def acknowledge(self, told: Told) -> None:
        """Tell the server what has arrived and who was let go."""
        # What a field has by default is nothing, and need not be said.
        execs = [{name: value for name, value in ack._asdict().items() if value} for ack in told.execs]
        body = to_json({"execs": execs, "let_go": told.let_go})
        await self.call("acknowledge", "POST", "/v1/acknowledgements", body)


async def _saying_received(call: Callable[..., Awaitable[T]], received: Sequence[str]) -> T:
    """Call with the commands whose results have arrived; a server of an earlier version is not told."""
    try:
        return await call(received=list(received[:MOST_RECEIVED]))
    except AviatoValidationError as error:
        if "received" not in error.field_violations:
            raise
    return await call()


def _is_unknown(error: AviatoError) -> bool:
    return isinstance(error, SandboxNotFoundError)


def _is_no_image(error: AviatoError) -> bool:
    return isinstance(error, SandboxImageError) and error.reason == "image_not_here"


def _is_no_snapshot(error: AviatoError) -> bool:
    return isinstance(error, SandboxSnapshotError) and error.reason == "not_found"


def new_key() -> str:
    """What tells the server that a call is the same one again."""
    return os.urandom(12).hex()


def decode(model: type[M], body: bytes) -> M:
    """What a body or the payload of a frame says.

    Raises:
        SandboxUnavailableError: it cannot be read.
    """
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        raise SandboxUnavailableError(
            f"the server sent what is no {model.__name__} ({error.error_count()} faults)", reason="protocol", retryable=False
        ) from error


def encode(model: type[BaseModel], **values: Any) -> bytes:
    """The JSON of a request.

    Raises:
        AviatoValidationError: a value that the wire does not allow; pydantic's own error never goes up.
    """
    try:
        return model(**values).model_dump_json(exclude_defaults=True).encode()
    except pydantic.ValidationError as error:
        violations = {".".join(map(str, item["loc"])): item["msg"] for item in error.errors(include_input=False)}
        text = "; ".join(f"{name}: {message}" for name, message in violations.items())
        raise AviatoValidationError(f"wrong value: {text}", field_violations=violations) from None
    except (pydantic.PydanticUserError, ValueError) as error:
        raise AviatoValidationError(f"a value cannot be sent as text: {error}") from None


def encode_create(fields: dict[str, Any], **own: Any) -> bytes:
    """The JSON of a create.

    Args:
        fields: what it may have in common with others. The items of a batch share theirs, and are encoded once.
        own: what is only this sandbox's, made by this client: its id, its lease, values of its secrets.

    Raises:
        AviatoValidationError: as `encode`.
    """
    global _common
    if _common is None or _common[0] is not fields:
        body = encode(CreateSandbox, sandbox_id=_ANY_ID, **fields)
        _common = fields, b"," + body.removeprefix(_ANY_BEGINNING) if len(body) > len(_ANY_BEGINNING) + 1 else b"}"
    common = _common[1]
    if len(common) > _KEPT_BYTES:
        _common = None
    return to_json(own)[:-1] + common


def encode_exec(values: dict[str, Any]) -> bytes:
    """The JSON of an exec, whose values the facade has checked already: no model on the hot path.

    Raises:
        AviatoValidationError: text that is no Unicode.
    """
    given = values.get("input")
    if given is not None:
        values = {name: value for name, value in values.items() if name != "input"}
    try:
        body = to_json(values)
        # Base64 needs no escapes, and is most of the body: an encoder that looked for them would take longer than all the rest.
        return body if given is None else b'%b,"input":"%b"}' % (body[:-1], given.encode())
    except PydanticSerializationError:
        raise AviatoValidationError("the command, its cwd or its environment holds text that is not Unicode") from None


def error_of(payload: bytes) -> AviatoError:
    """The error that an ERROR frame carries."""
    return from_wire(decode(ErrorBody, payload))
