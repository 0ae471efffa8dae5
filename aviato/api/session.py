"""Session: many sandboxes with one set of defaults, counted together and stopped together."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar

from aviato import defaults as checks
from aviato.api.closing import Closing
from aviato.api.sandbox import Sandbox, find
from aviato.calls import sandbox_config
from aviato.calls.sandbox_config import SandboxConfig
from aviato.calls.sandbox_state import SandboxState, begin, call
from aviato.exceptions import AviatoValidationError
from aviato.policy.metrics import Metrics
from aviato.policy.reporting import Reporting
from aviato.values.parameters import suggests
from aviato.values.representation import cut
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Unpack

    from aviato.api.pool import Pool
    from aviato.bridge.operation import OperationRef
    from aviato.calls.sandbox_config import Connection, SandboxOptions
    from aviato.core.client import Client
    from aviato.core.concurrency_slots import ConcurrencySlots
    from aviato.core.lease import Lease
    from aviato.core.snapshots import Fork
    from aviato.defaults import SandboxDefaults
    from aviato.functions.remote import RemoteFunction
    from aviato.options import Serialization
    from aviato.results import ImageInfo

_ASK_FIRST = 16
"""From so many sandboxes on, closing asks which still live before it stops them one by one."""

_Images = list["ImageInfo"]
"""Within the class `list` is its method."""
Report = dict[str, float | int]
P = ParamSpec("P")
T = TypeVar("T")


class Session(Closing):
    """Makes sandboxes, counts what they do, and stops them at its end.

    Use it with `with` or `async with`, or make it once for a module: what is left is stopped when the process ends. Only the
    process that made a session cleans up; a forked child that uses it owns what it makes itself.
    """

    @suggests
    def __init__(
        self,
        defaults: SandboxDefaults | None = None,
        report_to: Sequence[str] | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        """Begin a session; no I/O.

        Args:
            defaults: of its sandboxes.
            report_to: None logs metrics to W&B whenever a run is active in this process, begun before or after the session;
                `["wandb"]` does the same, and warns once by `logging` where there was no run; `[]` reports to nobody. Other
                names are reporters of other packages.
            max_concurrency: at most so many sandboxes of this session at once, adopted and detached ones included; further
                ones wait in order, with status `pending`. A sandbox that was let go makes room by itself. None is no limit.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant.
        """
        self._slots = _slots(max_concurrency)
        self._defaults = defaults
        self._reporting = Reporting(report_to)
        self._connection = sandbox_config.connection(defaults)
        self._metrics = Metrics(reported=not self._reporting.is_off)
        self._reset_here()

    def _reset_here(self) -> None:
        """Begin empty, in the process that calls."""
        self._pid = os.getpid()
        self._lock = threading.RLock()  # what is made while another thread closes is closed too, or refused
        self._step: int | None = None
        self._made: dict[str, Connection] = {}
        self._states: weakref.WeakValueDictionary[str, SandboxState] = weakref.WeakValueDictionary()
        self._adopted: dict[str, SandboxState] = {}
        self._closing: OperationRef[None] | None = None
        self._exit_registered = False
        self._pools: weakref.WeakSet[Pool] = weakref.WeakSet()

    # -- sandboxes

    def sandbox(self, *, start: bool = True, **options: Unpack[SandboxOptions]) -> Sandbox:
        """A sandbox of this session. It starts in the background, so a list of them starts in parallel.

        Under pressure the server may end one whose object was let go, once its commands have ended.

        Args:
            start: False leaves the start to its first use.
            options: as the constructor of `Sandbox`; `defaults` in place of the session's.
        """
        return self._sandbox(self._config(options), start=start)

    def _config(self, options: SandboxOptions) -> SandboxConfig:
        """What a sandbox with these options is made from, one or many.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant, or the session is closed.
        """
        self._enter_process()
        if options.get("defaults") is None:
            options["defaults"] = self._defaults
        return sandbox_config.config(options, releasable=True)

    def _sandbox(self, config: SandboxConfig, *, start: bool = True) -> Sandbox:
        """As `sandbox`."""
        return Sandbox._of(self._state(config, start=start), let_go=not _detached(config))

    def _child(self, config: SandboxConfig, fork: Fork) -> SandboxState:
        """A child of a sandbox of this session."""
        return self._state(config, start=True, fork=fork)

    def _state(self, config: SandboxConfig, *, start: bool, fork: Fork | None = None) -> SandboxState:
        """A sandbox of this session, without the object by which a caller holds it."""
        self._enter_process()
        state = SandboxState(new_sandbox_id(), config, metrics=self._metrics)
        state.slots, state.fork, state.sibling, state.on_ended = self._slots, fork, self._child, self._forget
        with self._lock:
            self._check_open()
            if not _detached(config):
                self._made[state.sandbox_id] = config.connection
                self._states[state.sandbox_id] = state
                self._close_at_exit()
            if start:
                begin(state.start_in_background(), f"start {state.sandbox_id}", shared=True)
        self._metrics.sandbox_created()
        return state

    def pool(self, size: int, *, warmup: Sequence[str | Sequence[str]] = (), **options: Unpack[SandboxOptions]) -> Pool:
        """Have the server keep sandboxes ready, for `sandbox()` of what this gives.

        Args:
            size: how many, 1 to 1000. They are made off the way, fewer where the machine has no room or nobody takes them.
            warmup: commands that are run in each before it is handed out: text for `sh -c`, or words. They have its
                environment and network.
            options: as the constructor of `Sandbox`; those of one sandbox can be given to `sandbox()`.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant, or the session is closed.
        """
        from aviato.api.pool import Pool
        from aviato.calls import pooling

        commands = pooling.warmup(warmup)
        fields = {"warmup": commands} if commands else {}
        made = Pool(pooling.size(size), fields, options, self._config, self._sandbox, self._metrics)
        self._pools.add(made)
        return made

    def function(
        self,
        *decorated: Never,
        serialization: Serialization | str = "json",
        temp_dir: str | None = None,
        result_types: Iterable[type] = (),
        **options: Unpack[SandboxOptions],
    ) -> Callable[[Callable[P, T]], RemoteFunction[P, T]]:
        """Decorate a function so that each of its calls runs in a fresh sandbox of this session.

        What the function reads goes along: closure variables, defaults, globals of its module and of your other modules that
        are not installed. Modules are imported inside, so they must be in the image.

        Args:
            *decorated: nothing; `@session.function` without parentheses is refused.
            serialization: how arguments and results cross; `Serialization.JSON` turns tuples into lists and the keys of dicts
                into text, `Serialization.PICKLE` keeps Python's own data types.
            temp_dir: where the files of a call are inside; None is that of the defaults, `/tmp`.
            result_types: dataclasses and enums that a pickled result may hold beside built-in data, `datetime` and `Decimal`.
            options: as the constructor of `Sandbox`; `exec_timeout_seconds` limits a call.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant.
            AsyncFunctionError, FunctionError: when it decorates an `async def`, or a generator function.
        """
        from aviato.functions.options import check_function, check_options
        from aviato.functions.remote import RemoteFunction

        if decorated:
            raise TypeError("session.function() is called to make the decorator: write @session.function()")
        checked = check_options(serialization, temp_dir, result_types, options, self._defaults)

        def decorate(function: Callable[P, T]) -> RemoteFunction[P, T]:
            check_function(function)
            return RemoteFunction(self, function, checked)

        return decorate

    def list(
        self,
        *,
        tags: Sequence[str] | None = None,
        status: Any = None,
        include_stopped: bool = False,
        adopt: bool = False,
    ) -> OperationRef[list[Sandbox]]:
        """Sandboxes that have the tags of the session's defaults, and these.

        Args:
            tags: more tags that must be there.
            status: one or several; a terminal one implies `include_stopped`.
            include_stopped: also the ended ones.
            adopt: take those that live into this session, which then stops them.
        """
        self._enter_process()
        wanted = self._defaults.merge_tags(tags) if self._defaults is not None else tags
        found = Sandbox.list(tags=wanted, status=status, include_stopped=include_stopped, **self._same_server())
        if not adopt:
            return found

        async def work() -> list[Sandbox]:
            sandboxes = await found
            for sandbox in sandboxes:
                if not sandbox.status.is_terminal:
                    self.adopt(sandbox)
            return sandboxes

        return begin(work(), "list and adopt sandboxes")

    def from_id(self, sandbox_id: str, adopt: bool = True) -> OperationRef[Sandbox]:
        """A sandbox that exists, by its id; with `adopt` this session counts it and stops it at its end."""
        self._enter_process()

        async def work() -> Sandbox:
            sandbox = await find(sandbox_id, self._connection)
            if adopt:
                self.adopt(sandbox)
            return sandbox

        return begin(work(), f"find {sandbox_id}")

    def adopt(self, sandbox: Sandbox) -> None:
        """Take a sandbox into this session: its commands are counted here from now on, and it is stopped at the end."""
        self._enter_process()
        if not isinstance(sandbox, Sandbox):
            raise TypeError(f"adopt() takes a Sandbox, not {type(sandbox).__name__}")
        with self._lock:
            self._check_open()
            sandbox._state.metrics = self._metrics
            self._adopted[sandbox.sandbox_id] = sandbox._state
            self._close_at_exit()
        if self._slots is not None:
            begin(_take_slot(sandbox._state, self._slots), f"adopt {sandbox.sandbox_id}", shared=True)

    def prefetch(self, images: Iterable[str], *, refresh: bool = False) -> OperationRef[_Images]:
        """Have the server fetch images, four at a time, such as the column of a data set, before sandboxes need them.

        Args:
            images: references of registries, `oci:PATH[:TAG]` or `docker-archive:PATH[:NAME]`; each is pulled once.
            refresh: ask registries although images are there, since a tag may mean another one by now.

        Returns:
            Each different one in the order of `images`; one that cannot be had has the status `failed` and a message.

        Raises:
            TypeError, AviatoValidationError: an argument that cannot be meant, or the session is closed.
        """
        from aviato.calls.image_arguments import image_references

        self._enter_process()
        references = image_references(images)

        async def work(client: Client, _: Lease) -> _Images:
            from aviato.core.images import prefetch

            found = await prefetch(client, references, refresh=refresh)
            for info in found:
                self._metrics.image_prefetched(info)
            return found

        return begin(call(self._connection, work), "prefetch images")

    def _forget(self, sandbox_id: str) -> None:
        """A sandbox has ended: nothing is left to do about it."""
        self._made.pop(sandbox_id, None)

    @property
    def sandbox_count(self) -> int:
        """How many sandboxes this session will stop at its end: made or adopted, and not known to have ended."""
        if self._pid != os.getpid():
            return 0
        found: Any = [*map(self._states.get, list(self._made)), *self._adopted.values()]
        return sum(state is None or not state.is_over for state in found)

    def _enter_process(self) -> None:
        """A forked child begins with an empty session of its own."""
        if self._pid != os.getpid():
            self._reset_here()
        self._check_open()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise AviatoValidationError("this session is closed; make a new one")

    def _close_at_exit(self) -> None:
        if self._exit_registered:
            return
        self._exit_registered = True
        from aviato.bridge.loop import register_exit

        here = weakref.ref(self)

        async def at_exit() -> None:
            session = here()
            if session is not None:
                await session._leave()

        register_exit(at_exit)

    def _same_server(self) -> dict[str, Any]:
        return {
            "base_url": self._connection.base_url,
            "request_timeout_seconds": self._connection.request_timeout_seconds,
            "defaults": self._defaults,
        }

    def __repr__(self) -> str:
        count = self.sandbox_count
        state = "closed, " if self._pid == os.getpid() and self._closing is not None else ""
        most = "" if self._slots is None else f", at most {self._slots.limit} at once"
        return cut(f"<Session of {self._connection.server}: {state}{count} sandbox{'' if count == 1 else 'es'}{most}>")

    # -- metrics

    def get_metrics(self) -> Report:
        """What was counted since the last reset, each key with the prefix `aviato/`."""
        return dict(self._metrics.snapshot())

    def log_metrics(self, step: int | None = None, reset: bool = True) -> bool:
        """Log the metrics as a row of the active W&B run, with `aviato/step` as their axis; no network of its own.

        The run is not moved on by it, so nobody's row is lost, whoever logs there and in whatever order. The row goes out with
        the next one that the trainer logs. Until then rows of other steps wait: one is taken at each later call that finds that
        the run has moved on, and the rest when the run ends. What is logged at a step whose row still waits is added up in it.

        Args:
            step: of the training run, in any order. None is that of the last row if it is not out yet, else the run's own.
            reset: begin to count anew, if they were logged.

        Returns:
            Whether a run took them or a row waits for it; without an active run they are kept.

        Raises:
            TypeError: a step that is no whole number.
        """
        if step is not None:
            step = _whole(step)
        if self._pid != os.getpid():
            self._reset_here()
        if step is not None:
            self._step = step
        return self._reporting.log(self._metrics, step, reset=reset)

    def _log_rest(self) -> None:
        self._reporting.log(self._metrics, self._step, reset=True, rest=True)

    # -- the end

    def close(self) -> OperationRef[None]:
        """Log what is left to log and stop every sandbox that is not detached; a second call joins the first."""
        if self._pid != os.getpid():
            self._reset_here()
        with self._lock:
            if self._closing is None:
                self._log_rest()
                for state in [*self._states.values(), *self._adopted.values()]:
                    state.stopped = True
                self._closing = begin(self._end(), "close session", shared=True)
            return self._closing

    async def _end(self) -> None:
        try:
            await self._stop_all()
        finally:
            self._log_rest()  # Commands that ran until now were cancelled, or have failed with the server.

    async def _stop_all(self) -> None:
        import asyncio

        if self._slots is not None:
            self._slots.close()
        made = dict(self._made)  # What ends meanwhile is forgotten.
        ids = set(made)
        pools = await asyncio.gather(*(pool.close() for pool in self._pools), return_exceptions=True)
        if len(ids) > _ASK_FIRST:
            # Those that the server has not accepted yet are in no list of its, and may be there a moment later.
            starting = {name for name, state in self._states.items() if not state.is_accepted}
            living = await call(self._connection, _living) | starting
            ids = {name for name in ids if name in living or made[name] != self._connection}
        stops = [_stop(self._states.get(name) or SandboxState(name, SandboxConfig(connection=made[name]))) for name in ids]
        stops += [_stop(state) for state in self._adopted.values()]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        self._made, self._adopted = {}, {}
        failures += [error for error in pools if error is not None]
        if failures:
            raise failures[0]

    async def _leave(self) -> None:
        """At exit: the lease takes what was made here with it; what was adopted has none of ours."""
        import asyncio

        if self._closing is None and self._pid == os.getpid():
            self._log_rest()
            if self._slots is not None:
                self._slots.close()
            await asyncio.gather(
                *map(_stop, self._adopted.values()), *(pool.close() for pool in self._pools), return_exceptions=True
            )


def _slots(max_concurrency: int | None) -> ConcurrencySlots | None:
    """The slots of a session with a limit.

    Raises:
        TypeError, AviatoValidationError: it can be no limit.
    """
    if max_concurrency is None:
        return None
    checks.count("max_concurrency", max_concurrency)
    from aviato.core.concurrency_slots import ConcurrencySlots

    return ConcurrencySlots(max_concurrency)


def _detached(config: SandboxConfig) -> bool:
    return config.create is not None and bool(config.create["detached"])


def _whole(step: int) -> int:
    """A step, also one that a library counts with integers of its own."""
    try:
        return operator.index(None if isinstance(step, bool) else step)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"step must be an int or None, not {type(step).__name__}") from None


async def _take_slot(state: SandboxState, slots: ConcurrencySlots) -> None:
    """Count an adopted sandbox among those of the session; one that waits in another's queue stays there."""
    handle = state.handle()
    if handle.slots is slots or handle.queued:
        return
    if handle.slots is not None:
        handle.slots.leave(handle)
    state.slots = handle.slots = slots
    if handle.begun and not state.is_over:
        slots.hold(handle)


async def _living(client: Client, lease: Lease) -> set[str]:
    """Ids of the sandboxes that live by this process's lease."""
    return {info.sandbox_id for info in await client.list_sandboxes(lease_id=lease.lease_id)}


async def _stop(state: SandboxState) -> None:
    await state.do(lambda handle: handle.stop(missing_ok=True))
