"""Sandbox: one isolated place to run commands in, as a handle for blocking and for async code."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from aviato import defaults as checks
from aviato.api.sandbox_commands import SandboxCommands
from aviato.api.sandbox_files import SandboxFiles
from aviato.api.sandbox_ports import SandboxPorts
from aviato.api.sandbox_properties import SandboxProperties
from aviato.api.sandbox_snapshots import SandboxSnapshots
from aviato.calls import sandbox_config
from aviato.calls.sandbox_config import SandboxConfig
from aviato.calls.sandbox_state import SandboxState, begin, call, hold_too
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxNotFoundError, SandboxTimeoutError
from aviato.log import logger
from aviato.options import SandboxStatus
from aviato.values.parameters import Suggesting, suggests
from aviato.values.text import line
from aviato.wire.ids import SANDBOX_ID, new_sandbox_id

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Unpack

    from aviato.api.session import Session
    from aviato.bridge.operation import OperationRef
    from aviato.calls.recipe import Recipe
    from aviato.calls.sandbox_config import Connection, RunOptions
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.core.lifecycle import SandboxHandle
    from aviato.defaults import SandboxDefaults
    from aviato.options import NetworkOptions, ResourceOptions, Secret
    from aviato.policy.metrics import Metrics
    from aviato.results import Snapshot
    from aviato.wire.sandboxes import SandboxInfo

ABANDON_SECONDS = 5.0
"""How long an interrupted start waits for its clean-up."""


class Sandbox(SandboxCommands, SandboxFiles, SandboxPorts, SandboxSnapshots, SandboxProperties, Suggesting):
    """An isolated place for commands. Making the object does no I/O; the sandbox starts at its first use.

    Use it with `with` or `async with` (stopped at the end), `await` it (started, and running), or make it through a
    `Session`. Whatever this process made is stopped when the process ends, unless `detached=True`. A forked child uses it and
    does not own it: the block's end there leaves it to the parent.
    """

    @suggests
    def __init__(
        self,
        *,
        command: str | None = None,
        args: Sequence[str] | None = None,
        defaults: SandboxDefaults | None = None,
        container_image: str | Recipe | None = None,
        packages: str | os.PathLike[str] | None = None,
        tags: Sequence[str] | None = None,
        base_url: str | None = None,
        exec_timeout_seconds: float | None = None,
        request_timeout_seconds: float | None = None,
        max_lifetime_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        resources: ResourceOptions | Mapping[str, Any] | None = None,
        strict_limits: bool = False,
        mounted_files: Sequence[Mapping[str, Any]] | None = None,
        ports: Sequence[int] | None = None,
        network: NetworkOptions | None = None,
        secrets: Sequence[Secret] | None = None,
        environment_variables: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        annotations: Mapping[str, str] | None = None,
        detached: bool = False,
        runtime: str | None = None,
        runway_ids: Sequence[str] | None = None,
        tower_ids: Sequence[str] | None = None,
    ) -> None:
        """Describe a sandbox.

        Args:
            command: program of the main command, whose end ends the sandbox; None keeps it alive until it is stopped.
            args: arguments of `command`.
            defaults: what holds where nothing is given here; tags add up, environment variables merge.
            container_image: `host`, `python:3.N`, `dir:NAME`, or an image of a registry, a layout or an archive
                (`ghcr.io/org/name:tag`, `oci:DIR`, `docker-archive:FILE`), which the server fetches where it is not there yet;
                None is the server's default. Or an `Image`, which is built first where it is not there.
            packages: Python packages that code inside can import, and not change: a virtual environment of the sandbox's
                Python, or a directory that packages were installed to. Its path on the server's machine, for callers on the
                server's Unix socket, the embedded server's among them; or a name that the server's operator registered.
            tags: text of 1 to 256 characters each, for `Sandbox.list`.
            base_url: the server; see `SandboxDefaults`.
            exec_timeout_seconds: limit of commands that do not state their own; `math.inf` is none.
            request_timeout_seconds: how long one request may take.
            max_lifetime_seconds: the sandbox ends after so long.
            idle_timeout_seconds: the sandbox ends after so long without use. A command that runs is use, and so is a call that
                reaches inside; looking at it from outside (`get_status`, `wait`, a listing) is not, nor is what a finished
                command left behind.
            environment_variables: of every command.
            working_dir: absolute; where commands start. It is made if it is not there.
            annotations: kept on record and returned.
            mounted_files: files that are there before the main command starts and that nothing inside can change: a list of
                `{"mount_path": "/absolute/path", "file_content": "text" or b"bytes"}`, up to 64 of 8 MiB together.
            detached: lives on when this process ends.
            ports: up to 64 ports of programs inside that anyone on the server's machine may connect to, at `service_urls`.
            network: a `NetworkOptions`: the same ports, and what programs inside may connect to.
            resources: limits as Kubernetes quantities, `{"memory": "512Mi", "processes": 64, "disk": "1Gi", "cpu": 1}`, or
                `ResourceOptions`. What is left out has the server's default. A limit that the server cannot keep is refused by
                name, but for `cpu`, which `limits` then shows as not enforced.
            strict_limits: refuse `cpu` too where it cannot be kept.
            secrets: up to 64 `Secret`, which the server sets as environment variables of every command. Their values are in no
                listing, log, record or pickle. In a `grade`, the new sandboxes have none.
            runtime: not available yet; refused when given.
            runway_ids: pools it may be placed in; None is any. The local backend has one, `local`.
            tower_ids: nodes it may be placed on; None is any. The local backend has one, `local`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant; it is named.
        """
        options: Any = dict(locals())
        del options["self"]
        self._init(SandboxState(new_sandbox_id(), sandbox_config.config(options)))

    def _init(self, state: SandboxState) -> None:
        self._state = state
        self._start_ref: OperationRef[None] | None = None
        self._running_ref: OperationRef[None] | None = None

    @classmethod
    def _of(cls, state: SandboxState, *, let_go: bool = False) -> Self:
        """The object of a state; with `let_go`, the server may be told when the caller has dropped it."""
        self = cls.__new__(cls)
        self._init(state)
        if let_go:
            state.hold(self)
        return self

    @classmethod
    def _seen(cls, info: SandboxInfo, connection: Connection, metrics: Metrics | None = None) -> Self:
        """The object of a sandbox that exists."""
        state = SandboxState(info.sandbox_id, SandboxConfig(connection=connection), metrics=metrics)
        state.info = info
        sandbox = cls._of(state)
        hold_too(info.sandbox_id, sandbox)
        return sandbox

    # -- making and finding

    @classmethod
    def run(cls, *command: str | os.PathLike[str], **options: Unpack[RunOptions]) -> Self:
        """Make a sandbox and start it; blocking. It has been accepted by the server when this returns.

        Args:
            command: the main command, argument by argument; none keeps the sandbox alive until it is stopped.
            options: as the constructor's.
        """
        arguments = checks.texts("command", command)
        given: Any = dict(options)
        if arguments:
            given["args"] = [*arguments[1:], *checks.texts("args", options.get("args") or ())]
            given["command"] = arguments[0]
        return cls(**given).__enter__()

    @classmethod
    def session(cls, defaults: SandboxDefaults | None = None) -> Session:
        """A `Session` with these defaults."""
        from aviato.api.session import Session

        return Session(defaults)

    @classmethod
    @suggests
    def list(
        cls,
        *,
        tags: Sequence[str] | None = None,
        status: SandboxStatus | str | Iterable[SandboxStatus | str] | None = None,
        include_stopped: bool = False,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[list[Sandbox]]:
        """All sandboxes that match, oldest first.

        Args:
            tags: all of them must be there.
            status: one or several; a terminal one implies `include_stopped`.
            include_stopped: also the ended ones, which stay on record for 24 hours.
            defaults: for its server only.
            base_url: the server.
            request_timeout_seconds: how long one request may take.

        Raises:
            AviatoValidationError: an unknown status; the message names the valid ones.
        """
        connection = sandbox_config.connection(defaults, base_url, request_timeout_seconds)
        wanted = sandbox_config.statuses(status)
        all_of = checks.tags(tags or ())
        stopped = include_stopped or any(one.is_terminal for one in wanted)

        async def work(client: Client, _: Lease) -> list[Sandbox]:
            found = await client.list_sandboxes(tags=all_of, status=wanted, include_stopped=stopped)
            return [cls._seen(info, connection) for info in found]

        return begin(call(connection, work), "list sandboxes")

    @classmethod
    @suggests
    def from_id(
        cls,
        sandbox_id: str,
        *,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[Sandbox]:
        """A sandbox that exists, by its id; it is used, not owned.

        Raises (from the handle):
            SandboxNotFoundError: the server does not know it.
        """
        connection = sandbox_config.connection(defaults, base_url, request_timeout_seconds)
        return begin(find(sandbox_id, connection), f"find {sandbox_id}")

    @classmethod
    @suggests
    def delete(
        cls,
        sandbox_id: str,
        *,
        missing_ok: bool = False,
        defaults: SandboxDefaults | None = None,
        base_url: str | None = None,
        request_timeout_seconds: float | None = None,
    ) -> OperationRef[None]:
        """End a sandbox by its id; fine if it has ended already.

        Raises (from the handle):
            SandboxNotFoundError: the server does not know it, unless `missing_ok`.
        """
        connection = sandbox_config.connection(defaults, base_url, request_timeout_seconds)

        async def work(client: Client, _: Lease) -> None:
            if SANDBOX_ID.fullmatch(sandbox_id) is None:
                if missing_ok:
                    return
                raise _unknown(sandbox_id)
            await client.delete(sandbox_id, missing_ok=missing_ok)

        return begin(call(connection, work), f"delete {sandbox_id}")

    # -- life

    def start(self) -> OperationRef[None]:
        """Start it; resolves when the server, or its session's own queue, has accepted it. A second call joins the first."""
        self._state.used = True
        if self._start_ref is None or _failed(self._start_ref):
            self._start_ref = self._state.begin(lambda handle: handle.accept(), f"start {self.sandbox_id}", shared=True)
        return self._start_ref

    @suggests
    def wait(self, timeout: float | None = None) -> Self:
        """Start it and wait until it runs or has ended; blocking.

        Raises:
            OperationTimeoutError: `timeout` seconds were not enough; the start goes on. Its `status_reason` says what it waits
                for: the server is asked that then, for a second at most.
            SandboxError: it ended without ever having run.
        """
        self._waitable().result(timeout)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._waitable().__await__()
        return self

    def _waitable(self) -> OperationRef[Any]:
        """The operation that stands for this sandbox in `aviato.wait`: that it runs."""
        self._state.used = True
        if self._running_ref is None or _failed(self._running_ref):
            self._running_ref = self._state.begin(_wait_running, f"wait for {self.sandbox_id}", shared=True)
        return self._running_ref

    @suggests
    def wait_until_complete(self, timeout: float | None = None, *, raise_on_termination: bool = True) -> OperationRef[Sandbox]:
        """Wait until it has ended; a main command that failed is an end like another: look at `returncode`.

        Args:
            timeout: seconds; None waits as long as it takes.
            raise_on_termination: raise if it was stopped, or ended by a limit or by the server.

        Raises (from the handle):
            SandboxTimeoutError: it still lives after `timeout` seconds.
            SandboxFailedError: it failed without a returncode.
            SandboxTerminatedError, SandboxNotRunningError: with `raise_on_termination`.
        """
        limit = None if timeout is None else checks.seconds("timeout", timeout)
        self._state.used = True

        async def work(handle: SandboxHandle) -> Sandbox:
            await _wait_ended(handle, limit, raise_on_termination)
            return self

        return self._state.begin(work, f"wait for the end of {self.sandbox_id}", shared=True)

    @overload
    def stop(
        self, graceful_shutdown_seconds: float = 10.0, *, missing_ok: bool = False, snapshot_on_stop: Literal[False] = False
    ) -> OperationRef[None]: ...
    @overload
    def stop(
        self, graceful_shutdown_seconds: float = 10.0, *, missing_ok: bool = False, snapshot_on_stop: Literal[True]
    ) -> OperationRef[Snapshot]: ...
    @suggests
    def stop(
        self, graceful_shutdown_seconds: float = 10.0, *, missing_ok: bool = False, snapshot_on_stop: bool = False
    ) -> OperationRef[Any]:
        """End it: SIGTERM to what runs, SIGKILL after the grace. Works without waiting for it; twice is fine.

        Args:
            graceful_shutdown_seconds: the grace.
            missing_ok: fine if the server does not know it.
            snapshot_on_stop: make a snapshot first, which is the result. If that fails, the sandbox goes on.

        Raises (from the handle):
            SandboxNotFoundError: the server does not know it, unless `missing_ok`.
        """
        grace = float(graceful_shutdown_seconds)
        if not 0 <= grace < float("inf"):
            raise AviatoValidationError(
                f"graceful_shutdown_seconds must be 0 or more, got {graceful_shutdown_seconds!r}",
                field_violations={"graceful_shutdown_seconds": "negative or not finite"},
            )
        if snapshot_on_stop:
            return self._stop_with_snapshot(grace)
        return self._state.stop(grace, missing_ok=missing_ok)

    def __enter__(self) -> Self:
        try:
            self.start().result()
        except BaseException as error:
            abandoned = self._abandon()
            if isinstance(error, KeyboardInterrupt):  # waits for the clean-up, for a while; a second one leaves
                with contextlib.suppress(AviatoError):
                    abandoned.result(ABANDON_SECONDS)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._state.is_of_this_process:
            return
        try:
            self.stop(missing_ok=True).result()
        except Exception as failure:
            if error is None:
                raise
            logger.warning("stopping %s failed as well: %s", self.sandbox_id, failure)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException as error:
            await self._abandon_async(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._state.is_of_this_process:
            return
        try:
            await self.stop(missing_ok=True)
        except Exception as failure:
            if error is None:
                raise
            logger.warning("stopping %s failed as well: %s", self.sandbox_id, failure)

    def _abandon(self) -> OperationRef[None]:
        """Entering failed or was interrupted: nobody will call exit."""
        abandoned = self.stop(missing_ok=True)
        abandoned._when_done(lambda ref: ref.exception())
        return abandoned

    async def _abandon_async(self, error: BaseException) -> None:
        import asyncio

        abandoned = self._abandon()
        if isinstance(error, asyncio.CancelledError):  # whoever did that may go on once nothing is left
            with contextlib.suppress(AviatoError, TimeoutError):
                async with asyncio.timeout(ABANDON_SECONDS):
                    await abandoned

    # -- what is known

    def get_status(self) -> SandboxStatus:
        """Ask the server; blocking.

        Raises:
            SandboxNotFoundError: the server does not know it.
        """
        return self._state.begin(lambda handle: handle.ask_status(), f"status of {self.sandbox_id}").result()

    def __repr__(self) -> str:
        why = self.status_reason
        return f"<Sandbox {self.sandbox_id} {self.status}{f' ({line(why)})' if why else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Id and configuration, never a key; the copy connects at its first use and owns no clean-up."""
        self._state.keep()
        return (_copy, (type(self), self.sandbox_id, self._state.config, self._state.is_accepted))


async def find(sandbox_id: str, connection: Connection, metrics: Metrics | None = None) -> Sandbox:
    """The object of a sandbox that the server knows."""
    if SANDBOX_ID.fullmatch(sandbox_id) is None:
        raise _unknown(sandbox_id)
    return Sandbox._seen(await call(connection, lambda client, _: client.get(sandbox_id)), connection, metrics)


def _copy(cls: type[Sandbox], sandbox_id: str, config: SandboxConfig, accepted: bool) -> Sandbox:
    return cls._of(SandboxState(sandbox_id, config, accepted=accepted))


def _unknown(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(f"{sandbox_id!r} is not the id of a sandbox", sandbox_id=sandbox_id)


def _failed(ref: OperationRef[Any]) -> bool:
    return ref.done() and ref.exception() is not None


async def _wait_running(handle: SandboxHandle) -> None:
    await handle.wait_running()


async def _wait_ended(handle: SandboxHandle, limit: float | None, raise_on_termination: bool) -> None:
    import asyncio

    from aviato.calls.pending import why_pending
    from aviato.core.sandbox_endings import ending_error

    try:
        async with asyncio.timeout(limit):
            info = await handle.wait_ended()
    except TimeoutError as error:
        if isinstance(error, AviatoError):
            raise
        reason = await why_pending(handle)
        pending = "" if reason is None else f" (pending: {reason})"
        raise SandboxTimeoutError(
            f"sandbox {handle.sandbox_id} has not ended within {limit:g} s{pending}",
            sandbox_id=handle.sandbox_id,
            reason="wait_timeout",
            is_infrastructure=not handle.may_have_run,
        ) from None
    ending = ending_error(info)
    failed = info.status is SandboxStatus.FAILED and info.returncode is None
    terminated = info.status is SandboxStatus.TERMINATED and raise_on_termination
    if ending is not None and (failed or terminated):
        raise ending
