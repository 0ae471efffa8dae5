"""The local backend: sandboxes on this machine, out of namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from aviato.exceptions import AviatoValidationError, SandboxImageError, SandboxUnavailableError
from aviato.server.backends.base import Capability, Check, ResolvedImage, SandboxSpec
from aviato.server.backends.local import (
    binary,
    facts,
    filters,
    groups,
    host_tree,
    own_local,
    plan,
    probe,
    requests,
    rules,
    subordinate,
)
from aviato.server.backends.local.affinity import Affinity
from aviato.server.backends.local.base_roots import BaseRoots
from aviato.server.backends.local.directories import Directories
from aviato.server.backends.local.held import DEATH_SECONDS, Held, are_dead, await_deaths
from aviato.server.backends.local.left import LeftPlace, LeftPlaces, Lent
from aviato.server.backends.local.limits import groups_of
from aviato.server.backends.local.planned import PlannedBackend, host_name_of
from aviato.server.backends.local.room import room, too_much
from aviato.server.backends.local.starts import Starts
from aviato.server.backends.local.uids import UidPool, available
from aviato.server.backends.local.zygote import Zygote
from aviato.server.images.interpreters import find_interpreters
from aviato.server.images.packages import Packages
from aviato.server.images.packing import Packing
from aviato.server.images.resolve import LocalImages
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacking import Unpacking
from aviato.server.link.link import Process1Link, SandboxGone
from aviato.system.threads import in_thread, opened_in_thread
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.stored_image import StoredImage

log = logging.getLogger(__name__)

IMAGE_TRIES = 3
"""How often an image is fetched for a sandbox, if it is removed between that and its use."""
RECONNECT_SECONDS = 5.0
ROOM_BYTES = 16 << 20
"""What a snapshot whose layer is moved has to be able to write of itself: a full disk must cost no sandbox."""


class LocalBackend(PlannedBackend):
    """Sandboxes on this machine.

    Args:
        directory: holds `sandboxes/` and `trash/`.
        uid_base: first host uid for sandboxes, where the server is root.
        images: registered names → root directories.
        packages: registered names → directories of packages.
        private: directories that no sandbox may see.
        allow_any_directory: whether a caller may name any `dir:/absolute/path`.
        registry_mirrors: registry → where else its images are looked for, first.
        image_cache_bytes: so much images that nobody uses may take.
        shared: for what is the same for all servers of this user; default: `directory`.
    """

    name = "local"
    capabilities = frozenset(Capability) - {Capability.PLACES}
    ids = subordinate.IDS
    """So many a sandbox is to have, where there are as many for each."""

    def __init__(
        self,
        directory: Path,
        *,
        uid_base: int = 1_900_000_000,
        images: Mapping[str, Path] | None = None,
        packages: Mapping[str, str] | None = None,
        private: Iterable[str] = (),
        allow_any_directory: bool = False,
        registry_mirrors: Mapping[str, tuple[str, ...]] | None = None,
        image_cache_bytes: int | None = None,
        shared: Path | None = None,
    ) -> None:
        self._directories = Directories(directory)
        self._images_directory = (shared or directory) / "images"
        self._registry_mirrors = dict(registry_mirrors or {})
        self._image_cache_bytes = image_cache_bytes
        self._uid_base = uid_base
        self._registered = dict(images or {})
        self._allow_any_directory = allow_any_directory
        self._images = LocalImages([], self._registered, allow_any_directory)
        """With what the machine has, once it is open."""
        self._root = os.geteuid() == 0
        self._directories.ranges = subordinate.find() if self.ids > 1 else None
        self._packages = self._find_packages(packages or {}, private)
        self._modern = facts.kernel() >= (5, 12)
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._starts = Starts(self._make_start, self.destroy)
        self._held: dict[str, Held] = {}
        self._left = LeftPlaces(self._directories, lambda uid: self._uids.give_back(uid))
        self._affinity = Affinity()
        self._refusals = 0
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._checks: list[Check] = []
        self._filter = self._supervisor_filter = self._born_filter = b""
        self._base_roots = BaseRoots((shared or directory) / "skeletons")
        self._maps = self._layered = False

    def _find_packages(self, registered: Mapping[str, str], private: Iterable[str]) -> Packages:
        return Packages(registered, foreign=self._root, private=private)

    async def open(self) -> None:
        """See `Backend`."""
        program = await self._program_check()
        starting = asyncio.create_task(self._start_zygote()) if program.ok else None
        try:
            await self._look(program, early=True)
        finally:
            self._zygote = await starting if starting is not None else None
        if self.ids_each <= 1:
            self.capabilities -= {Capability.USERS}
        if Capability.IMAGE_STORE in self.capabilities:
            self._images.store = await asyncio.to_thread(self._open_store)
            self._images.has_users = self.ids_each > 1
        if self._zygote is not None:
            self._share_processors(
                self._zygote
            )  # Before anybody asks: sandboxes of an earlier server may end, and leave theirs.
        if (unable := probe.cannot_run(self._checks, "on this machine")) is not None:
            raise unable

    async def _program_check(self) -> Check:
        if (said := await asyncio.to_thread(binary.renew)) is not None:
            log.warning("%s", said)
        return probe.program_check(await asyncio.to_thread(binary.trouble))

    async def _look(self, program: Check, *, early: bool = False) -> None:
        compiling = asyncio.create_task(asyncio.to_thread(self._compile))
        base_root = await asyncio.to_thread(self._gather)
        if early and base_root is not None:
            self._base_roots.make_early(base_root)
        checks = [program, *await asyncio.to_thread(self._look_around), await compiling]
        self._checks = [*checks, *probe.other_backend(checks)]

    def _compile(self) -> Check:
        try:
            self._compile_filters()
        except filters.FilterUnavailable as error:
            return probe.filter_check(str(error), error.remedy)
        return probe.filter_check(None, None)

    def _compile_filters(self) -> None:
        self._filter = filters.compile_rules(rules.RULES)
        self._supervisor_filter, self._born_filter = map(filters.compile_rules, rules.of_born(rules.RULES))

    def _gather(self) -> host_tree.BaseRoot | None:
        """Find out what need not be tried; returns the base root that most sandboxes will have, if they can have one."""
        self._directories.make()
        self._directories.empty_trash()
        probe.clear(str(self._directories.sandboxes))
        self._facts = replace(facts.gather(), devices=self._base_roots.devices() if self._root and self._modern else None)
        self._directories.group_directories = groups.remember(self._directories.groups, dict(self._facts.groups))
        self._interpreters = find_interpreters()
        strange = facts.strangers(self._interpreters, plan.BASE_PATH.split(":"))
        self._facts = replace(self._facts, strange_tools=strange)
        self._images = LocalImages(self._interpreters, self._registered, self._allow_any_directory)
        if not self._modern:
            return None
        return host_tree.base_root(self._facts, self._interpreter(self._images.resolve(None)))

    def _look_around(self) -> list[Check]:
        choices = self._take_uids()
        directory = str(self._directories.sandboxes)
        trial_uid = random.choice(choices) if choices else None
        unified = dict(self._facts.groups).get(groups.UNIFIED)
        trial = {} if self._root and trial_uid is None else probe.run_trial(directory, trial_uid, unified)
        if unified and not trial.get("groups", {}).get("ok"):
            self._facts = replace(self._facts, groups=())
        around = probe.look_around(directory, choices, self._facts)
        self._upper_in_memory = not trial.get("overlay", {}).get("ok", True)
        self._maps = self._root and self._modern and bool(trial.get("idmapped", {}).get("ok"))
        can_map = self._maps or not self._root
        self._layered = self._modern and can_map and bool(trial.get("overlay", {}).get("ok"))
        return probe.explain(trial, around, self._interpreters)

    def _take_uids(self) -> range | None:
        """Those that sandboxes can have, but for the ones that are in use."""
        choices = self._uid_choices()
        self._uids = UidPool(choices)
        for uid in self._directories.uids():
            self._uids.keep(uid)
        return choices

    def _uid_choices(self) -> range | None:
        if not self._root:
            return None
        with open("/proc/self/uid_map") as file:
            try:
                return available(self._uid_base, file.read(), self.ids)
            except SandboxUnavailableError:
                return None

    async def close(self) -> None:
        """See `Backend`."""
        self._closed = True
        for held in self._held.values():
            if held.link is not None:
                held.link.detach()
            if held.pidfd is not None:
                os.close(held.pidfd)
        self._held.clear()
        await self._starts.close()
        await self._left.close()
        await self._base_roots.close()
        if self._zygote is not None:
            await self._zygote.close()

    def shared_paths(self) -> list[str]:
        """See `Backend`."""
        shared = plan.shared_paths(facts.gather(), find_interpreters())
        return [*shared, *map(str, self._registered.values()), *self._packages.shared]

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """See `Backend`."""
        return self._images.resolve(reference, fallback)

    def has_layers(self, image: ResolvedImage) -> bool:
        """See `Backend`."""
        return self._layered or not image.is_host

    async def fetch_image(self, image: ResolvedImage) -> ResolvedImage:
        """See `Backend`."""
        return image if image.is_here else await self._images.fetch(image)

    @property
    def image_store(self) -> ImageStore | None:
        """See `Backend`."""
        return self._images.store

    def _open_store(self) -> ImageStore:
        """The images of all servers of this user: layers have the owners that its sandboxes can have."""
        self._images_directory.mkdir(mode=0o700, exist_ok=True)
        owners, map_ids = self.ids_each > 1, self._map_ids if self._directories.ranges else None
        unpacking = Unpacking(binary.found, owners=owners, map_ids=map_ids)
        return ImageStore(
            self._images_directory / f"ids-{self.ids_each}",
            unpacking,
            count=unpacking.count,
            pack=Packing(binary.found, owners=owners, map_ids=map_ids),
            mirrors=self._registry_mirrors,
            most_bytes=self._image_cache_bytes,
            remove=self._remove_tree,
        )

    def _map_ids(self, asking: socket.socket, pid: int) -> None:
        assert self._directories.ranges is not None
        subordinate.serve(asking, pid, self._directories.ranges)

    async def _remove_tree(self, tree: Path) -> None:
        """Take a tree away, also of users that its sandboxes have."""
        await in_thread(self._directories.remove_tree, tree)

    def has_written(self, place_id: str) -> bool:
        """See `Backend`."""
        return not self._directories.has_empty_layer(place_id)

    def leaves_layer(self, place_id: str) -> bool:
        """See `Backend`."""
        if not self._directories.has_plain_root(place_id):
            return False
        upper = os.stat(f"{self._directories.path(place_id)}/upper")
        store = os.statvfs(self._images_directory)
        return upper.st_dev == os.stat(self._images_directory).st_dev and store.f_bavail * store.f_frsize >= ROOM_BYTES

    async def leave_layer(self, place_id: str, new: NewSnapshot) -> StoredImage:
        """See `Backend`."""
        assert self._images.store is not None
        held = await self._held_of(place_id)
        return await self._images.store.snapshot(await self._left_layer(place_id, held), new)

    async def _left_layer(self, place_id: str, held: Held) -> Path:
        """The layer of a place, once all that runs in it is dead."""
        await self._end(place_id, held)
        return Path(self._directories.path(place_id), "upper")

    async def _make_start(self, spec: SandboxSpec) -> Path:
        """The layer of a sandbox that nobody was in."""
        await self._create(spec, await self._live_zygote(), None, _lower(spec.image, None), None)
        return await self._left_layer(spec.sandbox_id, self._held[spec.sandbox_id])

    def check(self, spec: SandboxSpec) -> None:
        """See `Backend`."""
        if spec.requests or spec.limits:
            there = room(self._facts, str(self._directories.sandboxes), {*spec.requests, *spec.limits})
            problem = too_much(spec.requests, spec.limits, there)
            if problem is not None:
                raise AviatoValidationError(f"resources: {problem}", field_violations={"resources": problem})
        if not spec.mounted_files or not spec.image.is_host:
            return
        options = self._options(spec)
        for file in spec.mounted_files:
            problem = plan.unmountable(file.path, options)
            if problem is not None:
                text = f"mount_path {file.path!r}: {problem}"
                raise AviatoValidationError(f"mounted_files: {text}", field_violations={"mounted_files": text})

    async def check_packages(self, reference: str, image: ResolvedImage, *, registered: bool) -> None:
        """See `Backend`."""
        if registered:
            self._packages.check_registered(reference)
        async with self._packages.held(reference, self._images.interpreter_at(image.interpreter)):
            pass

    async def create(self, spec: SandboxSpec) -> Process1Link:
        """See `Backend`."""
        if spec.image.above and not self._layered:
            message = f"image {spec.image.reference!r} lies over the machine's files, which needs overlayfs"
            raise SandboxImageError(message, reason="no_layers")
        if spec.image.is_stored:
            spec = await self._holding_image(spec)
        try:
            if spec.packages is None:
                return await self._create_somewhere(spec)
            async with self._packages.held(spec.packages, self._images.interpreter_at(spec.image.interpreter)) as directory:
                return await self._create_somewhere(replace(spec, packages_at=directory))
        except BaseException:
            if spec.sandbox_id not in self._held:  # Else its image goes with its place.
                self._release_image(spec.image, spec.sandbox_id)
            raise

    async def _holding_image(self, spec: SandboxSpec) -> SandboxSpec:
        """The same, once its image is one that nobody removes as long as the sandbox has its place."""
        image, places = spec.image, str(self._directories.sandboxes)
        for _ in range(IMAGE_TRIES):
            image = await self.fetch_image(image)
            assert self._images.store is not None and image.image_id is not None
            try:
                self._images.store.use(image.image_id, spec.sandbox_id, places)
                if image.lacks_start and self._layered:
                    image = await self._starts.over(image, self._images.store)
                return spec if image is spec.image else replace(spec, image=image)
            except SandboxImageError as error:
                if error.reason != "image_gone" or image.is_snapshot:
                    raise
            image = replace(image, image_id=None)  # Somebody has removed it meanwhile.
        raise SandboxImageError(f"image {image.reference!r} is removed whenever it has come", reason="image_gone")

    def _share_processors(self, zygote: Zygote) -> None:
        if "cpu" in (shared := dict(self._facts.groups)):
            zygote.share_processors(shared["cpu"], groups.UNIFIED in shared)

    async def _create_somewhere(self, spec: SandboxSpec) -> Process1Link:
        """In a place of its own, or in one that was left."""
        zygote = await self._live_zygote()
        self._share_processors(zygote)
        below = await self._made_below(spec)
        lower = _lower(spec.image, below) if self._lends(spec) else None
        place = None if lower is None else self._left.take(lower, zygote)
        if place is not None:
            try:
                link = await self._create(spec, zygote, below, lower, place)
                self._refusals = 0
                return link
            except SandboxUnavailableError as error:
                log.warning("the place of %s could not be had by %s: %s", place.sandbox_id, spec.sandbox_id, error)
                self._refusals += 1
                if (held := self._held.get(spec.sandbox_id)) is not None:
                    held.image = None  # The use of its image is that of the next one.
                await self.destroy(spec.sandbox_id)
                zygote = await self._live_zygote()
        return await self._create(spec, zygote, below, lower, None)

    async def _create(
        self, spec: SandboxSpec, zygote: Zygote, below: str | None, lower: str | None, place: LeftPlace | None
    ) -> Process1Link:
        held = self._held[spec.sandbox_id] = Held(self._uids.take()[0] if place is None else place.uid, place=place)
        held.image = spec.image
        held.grouped = bool(groups_of(spec.requests, spec.limits, self._facts))
        held.cpu = spec.limits.get("cpu")
        held.processors = self._affinity.take(held.cpu)
        usual = self._usual_request(spec, below, held.uid, place, held.processors)
        request = usual or self._request(spec, self._options(spec, below, processors=held.processors), held.uid)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        try:
            with theirs, _content(spec) as content:
                held.asked = zygote.ask(request, theirs, content)
            if lower is not None and usual is not None and usual.lends:
                held.lent = Lent(zygote, zygote.number, lower)
            held.link = await Process1Link.connect(spec.sandbox_id, ours, self._configured(spec))
            _, held.pidfd = await asyncio.shield(held.asked)
            held.asked = None  # The number may mean something else once it was closed.
        except SandboxGone as gone:
            assert held.asked is not None
            await asyncio.shield(held.asked)  # What the zygote could not do says more.
            message = f"process 1 of {spec.sandbox_id} ended while it started: {gone}"
            raise SandboxUnavailableError(message, sandbox_id=spec.sandbox_id, reason="start_failed") from gone
        except BaseException:
            if held.link is None:
                ours.close()
            else:
                held.link.detach()
            raise
        return held.link

    def image_in(self, place_id: str) -> ResolvedImage | None:
        """See `Backend`."""
        held = self._held.get(place_id)
        return None if held is None else held.image

    def claim(self, spec: SandboxSpec, link: Process1Link) -> None:
        """See `Backend`."""
        link.configure(self._configured(spec), host_name_of(spec))

    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        """See `Backend`."""
        sock = await opened_in_thread(self._directories.connect, sandbox_id)
        if sock is None:
            return None
        sock.setblocking(False)
        held = self._held.setdefault(sandbox_id, Held(uid=await asyncio.to_thread(self._directories.owner, sandbox_id)))
        try:
            held.link = await asyncio.wait_for(Process1Link.connect(sandbox_id, sock), RECONNECT_SECONDS)
        except SandboxGone:
            return None
        return held.link

    async def destroy(self, sandbox_id: str) -> None:
        """See `Backend`."""
        if (task := self._destroying.get(sandbox_id)) is not None:
            await asyncio.shield(task)
            if sandbox_id not in self._held:
                return  # Else it resisted when it was one of many.
        task = self._destroying.get(sandbox_id)
        if task is None:
            task = self._destroying[sandbox_id] = asyncio.create_task(self._destroy(sandbox_id))
            task.add_done_callback(lambda _: self._destroying.pop(sandbox_id, None))
        await asyncio.shield(task)

    def kill(self, sandbox_id: str) -> bool:
        """See `Backend`."""
        held = self._held.get(sandbox_id)
        if held is None or held.pidfd is None or held.link is None or sandbox_id in self._destroying:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(held.pidfd, signal.SIGKILL)
        held.killed = True
        return True

    async def destroy_all(self, sandbox_ids: Iterable[str]) -> list[str]:
        """See `Backend`; those that were killed in one turn of a thread."""
        ids = list(sandbox_ids)
        killed = {one: held for one in ids if (held := self._held.get(one)) and held.killed and one not in self._destroying}
        task = asyncio.create_task(self._remove_killed(killed))
        for sandbox_id in killed:
            self._destroying[sandbox_id] = task
        left = await super().destroy_all(one for one in ids if one not in killed)
        await asyncio.shield(task)
        return left + [sandbox_id for sandbox_id in killed if sandbox_id in self._held]

    async def place_ids(self) -> list[str]:
        """See `Backend`."""
        return await asyncio.to_thread(self._directories.ids)

    async def probe(self) -> list[Check]:
        """See `Backend`."""
        if not self._checks:
            await self._look(await self._program_check())
        return self._checks

    def describe_plan(self, image: ResolvedImage) -> list[str]:
        """The steps that a sandbox of this image would take, for people."""
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
        base_root = self._below(spec)
        path = None if base_root is None else self._base_roots.path(base_root)
        return plan.describe(plan.make_plan(self._options(spec, path)))

    async def recorded(self, image: ResolvedImage) -> bytes:
        """What the zygote would be asked for one sandbox of this image, for benchmarks."""
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
        options = replace(self._options(spec, await self._made_below(spec)), lends=False)
        return requests.example(self._request(spec, options, self._uids.take()[0])).message(0)

    # -- inside ---------------------------------------------------------------------------------------------------------

    async def _live_zygote(self) -> Zygote:
        """The zygote; a new one if it has died."""
        if self._zygote is not None and self._zygote.alive:
            return self._zygote
        async with self._starting:
            if self._closed:
                raise SandboxUnavailableError("the backend is closed")
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    await self._zygote.close()
                self._zygote = await self._start_zygote()
            return self._zygote

    async def _start_zygote(self) -> Zygote:
        zygote = await Zygote.start(self._directories.ranges)
        if zygote.ids == 1:
            self._directories.ranges = None
        return zygote

    async def _made_below(self, spec: SandboxSpec) -> str | None:
        below = self._below(spec)
        if below is not None and self._layered and self._base_roots.is_due(below):
            local = await asyncio.to_thread(own_local.find)
            if local != self._facts.local:  # Somebody has installed something on the machine.
                self._facts = replace(self._facts, local=local)
                below = self._below(spec)
        return None if below is None else await self._base_roots.ready(below)

    async def _destroy(self, sandbox_id: str) -> None:
        held = await self._held_of(sandbox_id)
        await self._end(sandbox_id, held)
        await self._kill_rest(held.uid)
        if not await self._left.bury(self._zygote, [(sandbox_id, held.uid, held.lent)]):
            await asyncio.to_thread(self._remove_place, sandbox_id, held)
            self._uids.give_back(held.uid)
        self._forget(sandbox_id)

    async def _held_of(self, sandbox_id: str) -> Held:
        return self._held.get(sandbox_id) or Held(uid=await asyncio.to_thread(self._directories.owner, sandbox_id))

    async def _end(self, sandbox_id: str, held: Held) -> None:
        """Kill its process 1, with all that is in its namespaces."""
        if held.asked is not None:
            with contextlib.suppress(Exception):
                _, held.pidfd = await held.asked
            held.asked = None
        if held.pidfd is None:
            held.pidfd = await asyncio.to_thread(self._directories.find, sandbox_id)
            if held.place is not None:
                await asyncio.to_thread(self._left.remove, [held.place.sandbox_id])
        if held.link is not None and held.link.ended() is None:
            held.link.detach()
        if held.pidfd is not None:
            await self._kill(held.pidfd)
            os.close(held.pidfd)
            held.pidfd = None

    def _forget(self, sandbox_id: str) -> Held | None:
        """It is gone, and others may run where it did."""
        held = self._held.pop(sandbox_id, None)
        if held is not None:
            self._affinity.give_back(held.processors, held.cpu)
            self._release_image(held.image, sandbox_id)
        return held

    def _release_image(self, image: ResolvedImage | None, sandbox_id: str) -> None:
        if image is not None and image.image_id is not None and self._images.store is not None:
            self._images.store.release(image.image_id, sandbox_id)

    async def _remove_killed(self, killed: Mapping[str, Held]) -> None:
        """Take away the places of sandboxes whose process 1 was killed; what resists stays held."""
        try:
            dead = killed if are_dead(killed.values()) else await asyncio.to_thread(await_deaths, killed)
            left = await self._left.bury(self._zygote, [(one, held.uid, held.lent) for one, held in dead.items()])
            gone = {sandbox_id: held for sandbox_id, held in dead.items() if sandbox_id not in left}
            removed = await asyncio.to_thread(self._remove_places, gone) if gone else []
            for sandbox_id in (*left, *removed):
                held = dead[sandbox_id]
                if self._forget(sandbox_id) is None:
                    continue  # Closed meanwhile, with what it held.
                assert held.pidfd is not None
                os.close(held.pidfd)
                if sandbox_id not in left:
                    self._uids.give_back(held.uid)
        finally:
            for sandbox_id in killed:
                del self._destroying[sandbox_id]

    def _remove_place(self, sandbox_id: str, held: Held) -> None:
        self._directories.remove(sandbox_id, grouped=held.grouped)

    def _remove_places(self, dead: Mapping[str, Held]) -> list[str]:
        """Take away the places of sandboxes that are dead; returns those that are gone."""
        removed = []
        for sandbox_id, held in dead.items():
            try:
                self._remove_place(sandbox_id, held)
            except OSError as error:
                log.warning("the place of sandbox %s cannot be taken away yet: %r", sandbox_id, error)
            else:
                removed.append(sandbox_id)
        return removed

    async def _kill_rest(self, uid: int) -> None:
        """Kill what the end of process 1 does not end; nothing in namespaces."""

    async def _kill(self, pidfd: int) -> None:
        """Kill process 1, and with it everything in its namespaces; returns when they are gone."""
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        loop.add_reader(pidfd, dead.set)
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            async with asyncio.timeout(DEATH_SECONDS):
                await dead.wait()
        finally:
            loop.remove_reader(pidfd)


def _lower(image: ResolvedImage, below: str | None) -> str:
    """What tells the directories below a writable layer from others, also from later ones of the same names.

    A root that is kept holds on to its directories, so that no others have their numbers.
    """
    names = [below or ""]
    for layer in (*image.layers, *image.above):
        with contextlib.suppress(OSError):  # The zygote says what is missing.
            names.append(f"{layer} {os.stat(layer).st_ino}")
    return "\n".join(names)


@contextlib.contextmanager
def _content(spec: SandboxSpec) -> Iterator[IO[bytes] | None]:
    """What the read-only files hold, one behind the other, in memory."""
    if not spec.mounted_files:
        yield None
        return
    with open(os.memfd_create("mounted", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        for mounted in spec.mounted_files:
            left = memoryview(mounted.content)
            while left:
                left = left[file.write(left) :]
        yield file
