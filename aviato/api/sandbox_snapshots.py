"""What a sandbox has written, for others to begin with: snapshots and forks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from aviato import defaults as checks
from aviato.calls import sandbox_config
from aviato.calls.sandbox_state import SandboxState, begin, call
from aviato.values.parameters import suggests
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from typing import Unpack

    from aviato.bridge.operation import OperationRef
    from aviato.calls.forking import ForkOptions
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.core.lifecycle import SandboxHandle
    from aviato.core.snapshots import Fork
    from aviato.defaults import SandboxDefaults
    from aviato.results import Snapshot

_T = TypeVar("_T")
_Snapshots = list["Snapshot"]
_Children = list[_T]
"""In `Sandbox` `list` is a method."""


class SandboxSnapshots:
    """Part of `Sandbox`."""

    _state: SandboxState

    if TYPE_CHECKING:

        @classmethod
        def _of(cls, state: SandboxState, *, let_go: bool = False) -> Self: ...

    def snapshot(self, name: str | None = None, expires_after_seconds: float | None = None) -> OperationRef[Snapshot]:
        """Make an image of what it has written: files, and no processes.

        Where nothing runs in it, that takes milliseconds, and its files lie in a layer below from then on. Else its commands
        stand still until all has been copied. What they hold open and have not written is not in it.

        Args:
            name: of the image, as images of registries have them: `NAME` or `NAME:TAG`. It then means this one.
            expires_after_seconds: when the server removes it; None: when you do.

        Raises (from the handle):
            SandboxSnapshotError: it could not be taken; its `reason` says why.
            SandboxError: the sandbox ended.
        """
        from aviato.calls import forking

        name = forking.name(name)
        seconds = None if expires_after_seconds is None else checks.seconds("expires_after_seconds", expires_after_seconds)
        self._state.used = True

        async def work(handle: SandboxHandle) -> Snapshot:
            from aviato.core import snapshots

            taken = await snapshots.take(handle, name, seconds)
            self._count()
            return taken

        return self._state.begin(work, f"snapshot of {self._state.sandbox_id}")

    def reset(self, to: str | Snapshot | None = None) -> OperationRef[None]:
        """Let it begin anew: with the files, processes, environment and network that it had just after its start.

        It keeps its id, ports, tags and what is left of its lifetime. All that ran in it is killed, and whoever waits for a
        command of it gets `SandboxExecutionError` with reason `reset`. It is made anew and not cleaned, so that nothing of
        before can be left.

        Args:
            to: a snapshot that it begins with, by id, name or what `snapshot()` gave; None: as just after its start.

        Raises (from the handle):
            SandboxImageError: the server does not know the snapshot.
            AviatoValidationError: `to` is no snapshot, or the sandbox has a main command.
            SandboxError: the sandbox ended.
        """
        from aviato.calls import forking

        wanted = forking.snapshot_meant(to, "to")
        self._state.used = True

        async def work(handle: SandboxHandle) -> None:
            from aviato.core import resets

            await resets.reset(handle, wanted)
            if self._state.metrics is not None:
                self._state.metrics.was_reset()

        return self._state.begin(work, f"reset {self._state.sandbox_id}")

    def fork(self, n: int = 1, **overrides: Unpack[ForkOptions]) -> _Children[Self]:
        """Sandboxes that begin with what this one has written by now, and share its data on disk until they change it.

        They start in the background, each with an id, a name, a network and limits of its own; one that fails is that one's
        error. Files go along, and processes do not, nor the main command: a child lives until it is stopped.

        Args:
            n: how many, 1 to 10,000.
            overrides: `environment_variables`, `tags`, `resources` and `network` of the children. Variables and tags are added
                to those of this sandbox, and limits take the place of those of the same name. What another process has made
                a sandbox with is not known here, and children of that one have the built-in defaults.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant; it is named.
        """
        from aviato.calls import forking
        from aviato.core import snapshots

        fork = snapshots.Fork(self._state.handle, forking.count(n))
        parent = self._state.config
        create = forking.fields(parent.create, fork.image, overrides)
        self._state.used = True
        begin(fork.begin(), f"fork of {self._state.sandbox_id}", shared=True)
        owned = self._state.sibling is not None and not create["detached"]
        children = [_child(self._state, replace(parent, create=create), fork) for _ in range(n)]
        return [type(self)._of(child, let_go=owned) for child in children]

    def _stop_with_snapshot(self, grace_seconds: float) -> OperationRef[Snapshot]:
        self._state.used = True

        async def work(handle: SandboxHandle) -> Snapshot:
            from aviato.core import snapshots

            taken = await snapshots.take(handle, None, None)
            self._count()
            self._state.stopped = True
            await handle.stop(grace_seconds)
            return taken

        return self._state.begin(work, f"stop {self._state.sandbox_id} with a snapshot", shared=True)

    def _count(self) -> None:
        if self._state.metrics is not None:
            self._state.metrics.snapshot_taken()

    @classmethod
    @suggests
    def list_snapshots(
        cls,
        *,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[_Snapshots]:
        """The snapshots of a server, the newest first.

        Args:
            defaults: for its server only.
            base_url: the server.
            request_timeout_seconds: how long one request may take.
        """
        connection = sandbox_config.connection(defaults, base_url, request_timeout_seconds)

        async def work(client: Client, _: Lease) -> _Snapshots:
            from aviato.core import snapshots

            return await snapshots.found(client)

        return begin(call(connection, work), "list snapshots")

    @classmethod
    @suggests
    def delete_snapshot(
        cls,
        snapshot_id: str,
        *,
        missing_ok: bool = False,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[None]:
        """Remove a snapshot. Sandboxes that began with it go on; its data goes with the last of them.

        Raises (from the handle):
            SandboxSnapshotError: the server does not know it (`not_found`), unless `missing_ok`.
        """
        from aviato.calls import forking

        connection = sandbox_config.connection(defaults, base_url, request_timeout_seconds)
        wanted = forking.snapshot_id(snapshot_id)

        async def work(client: Client, _: Lease) -> None:
            await client.delete_snapshot(wanted, missing_ok=missing_ok)

        return begin(call(connection, work), f"delete {snapshot_id}")


def _child(parent: SandboxState, config: sandbox_config.SandboxConfig, fork: Fork) -> SandboxState:
    if parent.metrics is not None:
        parent.metrics.forked()
    if parent.sibling is not None:
        return parent.sibling(config, fork)
    state = SandboxState(new_sandbox_id(), config, metrics=parent.metrics)
    state.fork = fork
    begin(state.start_in_background(), f"start {state.sandbox_id}", shared=True)
    return state
