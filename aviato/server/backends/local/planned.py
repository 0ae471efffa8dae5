"""What the zygote is asked for one sandbox of this machine's, and what its process 1 is told."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import (
    bounds,
    groups,
    host_tree,
    own_local,
    plan,
    requests,
    syscalls,
    way_out,
)
from aviato.server.backends.local.limits import groups_of, limits_of, seen_of
from aviato.server.backends.local.placed import PlacedBackend
from aviato.server.backends.local.remembered import Remembered
from aviato.server.link.link import Configuration
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from aviato.server.backends.base import Limit, ResolvedImage, SandboxSpec
    from aviato.server.backends.local.left import LeftPlace
    from aviato.server.backends.local.uids import UidPool
    from aviato.server.images.resolve import LocalImages

DEFAULT_WORKING_DIR = "/workspace"
NICE = 10
"""Commands' niceness while no control group shares the processors out, so that the server answers."""
MOST_REFUSALS = 3
"""In a row, of places that were left: whatever it is on this machine that refuses them, each costs a create some time."""
_EXAMPLE, _NAME_EXAMPLE, _EARLIER_EXAMPLE = (new_sandbox_id() for _ in range(3))
"""In the place of ids; by their random part nothing else is taken for them."""


class PlannedBackend(PlacedBackend):
    """A backend whose sandboxes a zygote makes by a plan.

    What it says of one depends on its `SandboxSpec` and on what the machine was found to have. What many have in common is
    made once.
    """

    _facts: plan.HostFacts
    _images: LocalImages
    _uids: UidPool
    _root: bool
    _modern: bool
    _refusals: int
    _filter: bytes
    _supervisor_filter: bytes
    _born_filter: bytes
    _remembered: Remembered | None = None
    _maps: bool
    """Whether sandboxes see their directories by mounts that make the ids of a store their own."""
    _layered: bool
    """Whether the writable layers of `host` sandboxes can lie on a base root."""
    _upper_in_memory: bool

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """See `Backend`."""
        in_memory = not spec.image.is_host and self._upper_in_memory
        return self._known().limits.get(
            (tuple(spec.requests.items()), tuple(spec.limits.items()), in_memory),
            lambda: limits_of(spec.requests, spec.limits, self._facts, layer_in_memory=in_memory),
        )

    def _interpreter(self, image: ResolvedImage) -> tuple[str, str, int] | None:
        found = self._images.interpreter_at(image.interpreter)
        return (found.prefix, found.executable, found.minor) if found else None

    def _below(self, spec: SandboxSpec) -> host_tree.BaseRoot | None:
        """What lies below its writable layer, or the copies that it has a mount of; None: it has an image."""
        if not spec.image.is_host:
            return None
        if not self._layered:
            return self._known().base_roots.get(None, lambda: host_tree.copies(self._facts))
        port = spec.egress_port if self._facts.jvm_networks else None
        kind = self._interpreter(spec.image), spec.packages is not None, port
        return self._known().base_roots.get(kind, lambda: host_tree.base_root(self._facts, *kind))

    def _known(self) -> Remembered:
        if self._remembered is None or not self._remembered.is_of(self._facts, self._filter):
            self._remembered = Remembered(self._facts, self._filter)
        return self._remembered

    def _group_settings(self, spec: SandboxSpec) -> list[dict[str, Any]]:
        limits = self.limits(spec)
        return groups.settings(
            spec.sandbox_id,
            groups_of(spec.requests, spec.limits, self._facts),
            int(limits["memory"].value or 0),
            spec.limits.get("cpu"),
            spec.requests.get("cpu"),
            int(limits["processes"].value or 0) or None,
        )

    def _options(
        self, spec: SandboxSpec, below: str | None = None, *, merged: bool = False, processors: tuple[int, ...] = ()
    ) -> plan.PlanOptions:
        interpreter = self._interpreter(spec.image)
        limits = self.limits(spec)
        seen = seen_of(spec.limits, limits, self._facts, processors)
        return plan.PlanOptions(
            host_name=host_name_of(spec),
            place=self._directories.path(spec.sandbox_id),
            facts=self._facts,
            interpreter=interpreter,
            packages=spec.packages_at,
            layers=spec.image.layers,
            above=spec.image.above,
            working_dir=working_dir_of(spec.image),
            strange=spec.image.strange,
            top=spec.image.top,
            base_root=below if self._layered else None,
            copies=None if self._layered else below,
            upper_in_memory=self._upper_in_memory,
            merged=merged,
            lends=self._lends(spec),
            root=self._root,
            mapped=self._maps and bool(spec.image.layers or (self._layered and below)),
            ids=self.ids_each,
            mounted=tuple((file.path, len(file.content)) for file in spec.mounted_files),
            processes=int(limits["processes"].value or 0),
            memory_bytes=int(limits["memory"].value or 0),
            shared_bytes=int(limits["shm"].value or 0),
            seen=seen,
            groups=groups.shown(self._group_settings(spec)) if seen is not None else (),
            disk_bytes=int(limits["disk"].value or 0),
        )

    def _lends(self, spec: SandboxSpec) -> bool:
        """Whether another sandbox may have its place, and it that of another."""
        has_start = spec.image.is_host or (spec.image.image_id is not None and spec.image.top is None)
        if not (self._layered and has_start) or self._refusals >= MOST_REFUSALS:
            return False
        return not (spec.mounted_files or has_ports(spec) or groups_of(spec.requests, spec.limits, self._facts))

    def _usual_request(
        self, spec: SandboxSpec, below: str | None, uid: int, place: LeftPlace | None = None, processors: tuple[int, ...] = ()
    ) -> requests.Request | None:
        """What is asked for it, where that is known from another one: the plans of both differ in ids alone."""
        if not self._modern or spec.mounted_files:
            return None
        asked = (tuple(spec.requests.items()), tuple(spec.limits.items()))
        ways = (has_ports(spec), place is None, self._lends(spec), self.ids_each)
        key = (spec.image, spec.packages_at, below, asked, processors, *ways)

        def made() -> requests.Request:
            example = replace(spec, sandbox_id=_EXAMPLE, host_name=_NAME_EXAMPLE)
            options = self._options(example, below, merged=place is not None, processors=processors)
            return requests.example(self._request(example, options, uid))

        usual = self._known().requests.get(key, made)
        ids = {_EXAMPLE: spec.sandbox_id, _NAME_EXAMPLE: host_name_of(spec)}
        if place is not None:
            ids[_EARLIER_EXAMPLE] = place.sandbox_id
        return usual.renamed(ids, *self._ids(uid), 0 if place is None else place.lent.number)

    def _ids(self, uid: int) -> tuple[int, int]:
        """A sandbox's uid and gid as the zygote has them: the server's own are 0 where it gives others, too."""
        return (uid, uid if self._root else os.getegid()) if self._directories.ranges is None else (0, 0)

    def _request(self, spec: SandboxSpec, options: plan.PlanOptions, uid: int) -> dict[str, Any]:
        trees: list[tuple[str, str, int, tuple[int, int]]] = []
        if self._root and self._modern and options.interpreter is not None and host_tree.own_prefix(options.interpreter[0]):
            # Made by the real root: the sandbox's id may not be able to look into the home that it lies in.
            trees.append(("interpreter", options.interpreter[0], syscalls.MOUNT_ATTR_RDONLY | 6, (0, 0)))
        if self._root and self._modern and options.packages is not None:
            path, *known = options.packages
            trees.append((plan.PACKAGES, path, syscalls.MOUNT_ATTR_RDONLY | 6, (known[0], known[1])))
        own = self._ids(uid)
        return {
            "place": options.place,
            "owned": plan.owned_directories(options),
            "uid": own[0],
            "gid": own[1],
            "ids": options.ids,
            "plan": plan.make_plan(options),
            "trees": trees,
            "earlier": self._directories.left_path(_EARLIER_EXAMPLE) if options.merged else None,
            "lends": options.lends,
            "mapped": options.mapped,
            "lower": plan.below(options) if self._root and not options.merged else (),
            "modern": self._modern,
            "descent": None,
            "ports": has_ports(spec),
            "filter": (self._supervisor_filter if self._unified(spec) else self._filter).hex(),
            "born_filter": self._born_filter.hex() if self._unified(spec) else "",
            "groups": self._group_settings(spec),
        }

    def _unified(self, spec: SandboxSpec) -> bool:
        """Whether control groups of version 2 limit it."""
        return groups.UNIFIED in groups_of(spec.requests, spec.limits, self._facts)

    def _environment(self, spec: SandboxSpec) -> dict[str, str]:
        """What every command finds set, whoever asked for it."""
        interpreter = self._images.interpreter_at(spec.image.interpreter)
        layered = self._layered and self._facts.local is not None
        local = None if not spec.image.is_host else own_local.LOCAL if layered else own_local.HOME
        said = {} if spec.image.config is None else dict(spec.image.config.environment)
        return plan.environment(interpreter.prefix if interpreter else None, local, self.ids_each) | said

    def _configured(self, spec: SandboxSpec) -> Configuration:
        """What its process 1 is told, kept where nothing of it is the caller's own."""
        if spec.environment or spec.secrets or spec.egress_port is not None:  # Its own name is in the variables.
            return Configuration.of(self._configuration(spec))
        times = (spec.orphan_timeout_seconds, spec.max_lifetime_seconds, spec.idle_timeout_seconds)
        asked = (tuple(spec.requests.items()), tuple(spec.limits.items()))
        key = (spec.image, spec.working_dir, times, asked)
        return self._known().configurations.get(key, lambda: Configuration.of(self._configuration(spec)))

    def _configuration(self, spec: SandboxSpec) -> dict[str, Any]:
        limits = self.limits(spec)
        return {
            "environment": {
                **self._environment(spec),
                **way_out.environment(spec.egress_port, host_name_of(spec)),
                **spec.environment,
                **spec.secrets,
            },
            "working_dir": os.path.join(working_dir_of(spec.image), spec.working_dir or ""),
            "user": spec.image.config.user if spec.image.config is not None and self.ids_each > 1 else None,
            "nice": NICE,
            "limits": {
                **{name: limit.value for name, limit in limits.items() if limit.strength == "watched"},
                "open_files": None if self._root else self._facts.open_files,
                "watches": self._facts.watches,
                "filters": bounds.LIMIT_FILTERS,
                **dict(self._facts.sockets),
                "group_memory": limits["memory"].value,
                "swap": self._facts.swap,
                "layer_in_memory": not spec.image.is_host and self._upper_in_memory,
            },
            "orphan_timeout_seconds": spec.orphan_timeout_seconds,
            "max_lifetime_seconds": spec.max_lifetime_seconds,
            "idle_timeout_seconds": spec.idle_timeout_seconds,
        }

    @property
    def ids_each(self) -> int:
        """How many users and groups a sandbox has."""
        return self._uids.each if self._directories.ranges is None else 1 + self._directories.ranges.size


def host_name_of(spec: SandboxSpec) -> str:
    """What it calls itself."""
    return spec.host_name or spec.sandbox_id


def has_ports(spec: SandboxSpec) -> bool:
    """Whether descriptors of its sockets are passed on."""
    return spec.exposes_ports or spec.egress_port is not None


def working_dir_of(image: ResolvedImage) -> str:
    """Where its commands begin, unless they say otherwise."""
    said = None if image.config is None else image.config.working_dir
    return os.path.normpath(f"/{said}").replace("//", "/") if said else DEFAULT_WORKING_DIR
