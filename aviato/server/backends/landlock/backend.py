"""The landlock backend: sandboxes on a machine that forbids user namespaces, by Landlock, filters and rlimits."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.server.backends.base import Capability, Check, Limit, ResolvedImage, SandboxSpec
from aviato.server.backends.landlock import plan, probe, promises, remains, rules
from aviato.server.backends.local import facts, filters, syscalls
from aviato.server.backends.local import landlock_calls as calls
from aviato.server.backends.local import plan as local_plan
from aviato.server.backends.local.backend import LocalBackend
from aviato.server.backends.local.limits import limits_of
from aviato.server.backends.local.probe import etc_check
from aviato.server.images.interpreters import find_interpreters
from aviato.server.images.packages import Packages
from aviato.server.images.reference import parse
from aviato.server.images.resolve import LocalImages
from aviato.server.link.link import Configuration
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)


class LandlockBackend(LocalBackend):
    """Sandboxes without namespaces, each in a folder of its own; arguments as `LocalBackend`, images being refused.

    What it does not keep of the threat model is in `unkept_promises`.
    """

    name = "landlock"
    capabilities = frozenset({Capability.PACKAGES, Capability.POOLS})
    ids = 1

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self._abi = calls.abi()
        self._root = self._root and probe.may_change_ids()
        self._command_filter = b""
        self._asks = probe.may_ask()
        """See `rules.supervisor_rules`."""

    def _find_packages(self, registered: Mapping[str, str], private: Iterable[str]) -> Packages:
        return Packages(registered, foreign=self._root and probe.may_change_ids(), by_path=True, private=private)

    @property
    def _exact(self) -> bool:
        """Whether the kernel keeps a supervisor's signals within its sandbox."""
        return self._root or self._abi >= calls.SCOPES_ABI

    async def open(self) -> None:
        """See `Backend`."""
        await super().open()
        # Whoever has the server's uid could look into it, where Landlock did not stand in front of that.
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        for line in self.unkept_promises:
            log.warning("the landlock backend does not promise: %s", line)

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """See `Backend`."""
        if reference in self._registered or parse(reference).kind not in ("host", "python"):
            self.require(Capability.IMAGES, f"image {reference!r}")
        return super().resolve_image(reference, fallback=fallback)

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """See `Backend`."""
        held = limits_of(spec.requests, spec.limits, self._facts)
        shared = Limit(value=None, strength="none")  # /dev/shm is the machine's, and nobody comes there.
        return {**held, "shm": shared, "processes": replace(held["processes"], strength="watched")}

    def shared_paths(self) -> list[str]:
        """See `Backend`."""
        return [*plan.shared_paths(facts.gather(grouped=False), find_interpreters()), *self._packages.shared]

    def root_path(self, sandbox_id: str) -> str:
        """See `Backend`."""
        return f"{self._directories.path(sandbox_id)}/{plan.ROOT}"

    def kill(self, sandbox_id: str) -> bool:
        """See `Backend`: what is inside has to be looked for first."""
        return False

    def describe_plan(self, image: ResolvedImage) -> list[str]:
        """See `LocalBackend`."""
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
        return local_plan.describe(plan.make_plan(self._own_options(spec, self._uids.take()[0])))

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _compile_filters(self) -> None:
        self._filter = filters.compile_rules(rules.supervisor_rules(self._abi, self._asks))
        self._command_filter = filters.compile_rules(rules.command_rules())

    def _gather(self) -> None:
        """Sandboxes have no base root; all else is in `_look_around`."""

    def _look_around(self) -> list[Check]:
        self._directories.make()
        self._directories.empty_trash()
        # Processes are counted by looking; a group of its own would take a thread of process 1, which it could be hit by.
        self._facts = replace(facts.gather(grouped=False), limit_processes=True)
        found = find_interpreters()
        interpreters = [one for one in found if probe.is_open(one.executable)] if self._root else found
        self._facts = replace(self._facts, strange_tools=facts.strangers(interpreters, plan.PATH.split(":")))
        self._images = LocalImages(interpreters, {}, False)
        choices = self._take_uids()
        if choices is None:
            self._root = False
        self._upper_in_memory = False
        unkept = promises.unkept(self._abi, self._root)
        self.unkept_promises = tuple(f"{name}: {text}" for name, text in unkept.items())
        uids = len(choices) if choices else None
        where, granted = str(self._directories.sandboxes), plan.readable(interpreters)
        checks = probe.explain(self._abi, where, granted, uids, interpreters, self._asks, unkept, self._usual())
        return [*checks, etc_check(self._facts)]

    def _usual(self) -> dict[str, Limit]:
        return self.limits(SandboxSpec(sandbox_id=new_sandbox_id(), image=ResolvedImage(reference="host", kind="host")))

    def _own_options(self, spec: SandboxSpec, uid: int) -> plan.PlanOptions:
        interpreter = self._images.interpreter_at(spec.image.interpreter)
        return plan.PlanOptions(
            place=self._directories.path(spec.sandbox_id),
            abi=self._abi,
            facts=self._facts,
            interpreter=(interpreter.prefix, interpreter.executable, interpreter.minor) if interpreter else None,
            packages=spec.packages_at,
            ids=(uid, uid) if self._root else None,
            processes=int(self.limits(spec)["processes"].value or 0) if self._root else None,
            asks=self._asks,
        )

    def _usual_request(self, *_: Any) -> None:
        """None is known from another one: its ids are in its plan."""

    def _request(self, spec: SandboxSpec, options: local_plan.PlanOptions, uid: int) -> dict[str, Any]:
        processors = () if options.seen is None else options.seen.processors
        return {
            **super()._request(spec, options, uid),
            "owned": [plan.ROOT],
            "plan": plan.make_plan(replace(self._own_options(spec, uid), processors=processors)),
            "trees": [],
            "lower": (),
            "ports": False,
            "groups": [],
            "born_filter": "",
            "descent": {
                "filter": self._command_filter.hex(),
                "exact": self._exact,
                "asks": rules.second_arguments() if self._asks else None,
            },
        }

    def _environment(self, spec: SandboxSpec) -> dict[str, str]:
        interpreter = self._images.interpreter_at(spec.image.interpreter)
        return plan.environment(self._directories.path(spec.sandbox_id), interpreter.prefix if interpreter else None)

    def _configured(self, spec: SandboxSpec) -> Configuration:
        return Configuration.of(self._configuration(spec))  # Its folder is in it.

    def _configuration(self, spec: SandboxSpec) -> dict[str, Any]:
        usual = super()._configuration(spec)
        return {
            **usual,
            "working_dir": f"{self.root_path(spec.sandbox_id)}/{plan.WORKSPACE}",
            "limits": {**usual["limits"], "machines_root": True},
        }

    async def _kill(self, pidfd: int) -> None:
        pid = remains.pid_of(pidfd)
        if pid is not None:
            await asyncio.to_thread(remains.kill_descendants, pid)
        await super()._kill(pidfd)

    async def _kill_rest(self, uid: int) -> None:
        if self._root and uid > 0:
            await asyncio.to_thread(remains.kill_uid, uid)
