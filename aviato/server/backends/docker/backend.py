"""The docker backend: sandboxes as containers of an engine on this machine that speaks Docker's API."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.server.backends.base import Capability
from aviato.server.backends.docker import containers, plan, probe, profile
from aviato.server.backends.docker.engine import Engine, EngineError, NoLibrary, find_address
from aviato.server.backends.docker.images import EngineImages
from aviato.server.backends.docker.limits import NOT_COUNTED, Kept, container_limits, host_config
from aviato.server.backends.docker.readiness import Readiness
from aviato.server.backends.local import binary, bounds, facts, filters, rules, way_out
from aviato.server.backends.local import probe as local_probe
from aviato.server.backends.local.directories import Directories
from aviato.server.backends.local.placed import PlacedBackend
from aviato.server.backends.local.plan import BASE_ENVIRONMENT
from aviato.server.backends.local.room import too_much
from aviato.server.backends.own_name import own_name
from aviato.server.link.link import Configuration, Process1Link, SandboxGone
from aviato.system.threads import in_thread, opened_in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from aviato.server.backends.base import Check, Limit, ResolvedImage, SandboxSpec

log = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.12-slim"
DEFAULT_WORKING_DIR = "/workspace"
IMAGE_TRIES = 3
RECONNECT_SECONDS = 5.0
UNKEPT = (
    "disk: what a sandbox writes is not limited, and neither is how many files it makes",
    "mounted files: code inside can rename the directories above them, so that they are found elsewhere",
)
ROOT_USERS = (None, "", "0", "root", "0:0", "root:root")


class DockerBackend(PlacedBackend):
    """Sandboxes as containers, each with aviato-init as its process 1 and no network but its own.

    Args:
        directory: for the sandboxes' places; the engine's containers see theirs.
        default_image: of sandboxes that name none.
        address: of the engine, as `DOCKER_HOST` has it; None: see `find_address`.
    """

    name = "docker"
    capabilities = frozenset(Capability) - {
        *(Capability.PLACES, Capability.PACKAGES, Capability.IMAGE_STORE, Capability.SNAPSHOTS)
    }
    unkept_promises = UNKEPT

    def __init__(self, directory: Path, *, default_image: str = DEFAULT_IMAGE, address: str | None = None) -> None:
        self._directory = directory / "docker"
        self._directories = Directories(self._directory)
        self._images = EngineImages(default_image)
        self._default_image = default_image
        self._address = find_address(address, os.environ, os.geteuid())
        self._engine: Engine | None = None
        self._claim = ""
        self._kept = Kept(memory=False, cpu=False, processes=False)
        self._security: list[str] = []
        self._own_filter = b""
        self._making: dict[str, asyncio.Task[None]] = {}
        self._made_of: dict[str, ResolvedImage] = {}
        """Images of the containers that were made here, by place."""
        self._links: dict[str, Process1Link] = {}

    # -- the engine -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """See `Backend`."""
        if (error := local_probe.cannot_run(await self._look(), "in containers here")) is not None:
            raise error
        self._claim = await in_thread(self._claimed)

    async def close(self) -> None:
        """See `Backend`."""
        for link in self._links.values():
            link.detach()
        self._links.clear()
        await self._images.close()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    async def probe(self) -> list[Check]:
        """See `Backend`."""
        was_open = self._engine is not None
        try:
            return await self._look()
        finally:
            if not was_open:
                await self.close()

    async def _look(self) -> list[Check]:
        if (said := await asyncio.to_thread(binary.renew)) is not None:
            log.warning("%s", said)
        checks = [local_probe.program_check(await asyncio.to_thread(binary.trouble)), await asyncio.to_thread(self._prepare)]
        try:
            self._engine = self._engine or Engine(self._address)
        except NoLibrary as error:
            return [*checks, probe.library_check(error.remedy)]
        except ValueError as error:
            return [*checks, probe.unreachable(self._address, str(error))]
        checks.append(probe.library_check(None))
        try:
            version, info = await self._engine.about()
            checks += probe.explain(self._address, version, info, platform.release())
            image = await self._engine.image(self._default_image)
        except EngineError as error:
            return [*checks, probe.unreachable(self._address, error.message)]
        self._kept = probe.kept_limits(info)
        # Docker takes the profile itself, podman the name of a file.
        path = self._directory / "seccomp.json"
        given = str(path) if probe.is_podman(version) else await asyncio.to_thread(path.read_text)
        self._security = [f"seccomp={given}"]
        return [*checks, probe.default_image(self._default_image, image is not None)]

    def _prepare(self) -> Check:
        """What is on this machine's side: the places, what is known of the machine, and the filter."""
        self._directories.make()
        # Containers' places are open to whatever id their root has on the machine; the way to them is not.
        os.chmod(self._directories.sandboxes, 0o700)
        self._directories.empty_trash()
        self._facts = facts.gather(grouped=False)
        engine_rules, own_rules = profile.split(rules.RULES)
        (self._directory / "seccomp.json").write_text(profile.profile(engine_rules))
        try:
            self._own_filter = filters.compile_rules(own_rules)
        except filters.FilterUnavailable as error:
            return local_probe.filter_check(str(error), error.remedy)
        return local_probe.filter_check(None, None)

    def _claimed(self) -> str:
        """By which the containers of this state directory are told from those of others."""
        return own_name(self._directory / "claim")

    def _live_engine(self) -> Engine:
        if self._engine is None:
            raise SandboxUnavailableError("the backend is closed")
        return self._engine

    # -- what can be had ------------------------------------------------------------------------------------------------

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """See `Backend`."""
        return self._images.resolve(reference)

    async def fetch_image(self, image: ResolvedImage) -> ResolvedImage:
        """See `Backend`."""
        try:
            return await self._images.fetch(self._live_engine(), image)
        except EngineError as error:
            raise error.as_unavailable(f"image {image.reference!r} cannot be looked for") from error

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """See `Backend`."""
        return container_limits(spec.requests, spec.limits, self._facts, self._kept)

    def check(self, spec: SandboxSpec) -> None:
        """See `Backend`."""
        refused: dict[str, str] = {}
        for name in (*NOT_COUNTED, "gpu"):
            if name in spec.limits or name in spec.requests:
                refused["resources"] = f"the backend 'docker' cannot give or limit {name!r}"
        there: dict[str, float] = {"memory": self._facts.memory_bytes, "cpu": self._facts.processors}
        if "resources" not in refused and (problem := too_much(spec.requests, spec.limits, there)) is not None:
            refused["resources"] = problem
        for file in spec.mounted_files:
            if (why := containers.unmountable(file.path)) is not None:
                refused["mounted_files"] = f"mount_path {file.path!r}: {why}"
        if refused:
            text = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
            raise AviatoValidationError(text, field_violations=refused)

    # -- a sandbox ------------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> Process1Link:
        """See `Backend`."""
        engine, sandbox_id = self._live_engine(), spec.sandbox_id
        image = spec.image if spec.image.is_here else await self.fetch_image(spec.image)
        place = self._directories.path(sandbox_id)
        with await in_thread(self._make_place, spec, place) as ready:
            image = self._made_of[sandbox_id] = await self._begin(engine, replace(spec, image=image), place, ready)
        sock = await opened_in_thread(self._directories.connect, sandbox_id)
        if sock is None:
            raise _did_not_start(sandbox_id, "it let go of its socket")
        sock.setblocking(False)
        try:
            link = await Process1Link.connect(sandbox_id, sock, self._configuration(replace(spec, image=image)))
        except SandboxGone as gone:
            raise _did_not_start(sandbox_id, str(gone)) from gone
        self._links[sandbox_id] = link
        return link

    async def _begin(self, engine: Engine, spec: SandboxSpec, place: str, ready: Readiness) -> ResolvedImage:
        """Have the engine make the container, until its process 1 can be connected to; what it is made of in the end."""
        name = containers.name_of(spec.sandbox_id)
        for attempt in range(IMAGE_TRIES):
            # What an engine has been asked for it goes on making, whoever waits: `destroy` waits for that.
            making = asyncio.create_task(engine.create(name, self._container(spec, place)))
            self._making[spec.sandbox_id] = making
            making.add_done_callback(lambda _, sandbox_id=spec.sandbox_id: self._making.pop(sandbox_id, None))  # type: ignore[misc]
            try:
                await asyncio.shield(making)
                break
            except EngineError as error:
                if error.status != 404 or attempt + 1 == IMAGE_TRIES:
                    raise error.as_unavailable("the engine could not make the container", spec.sandbox_id) from error
            # Somebody has removed the image meanwhile: whoever asked is told what its name means now, see `image_in`.
            spec = replace(spec, image=await self.fetch_image(replace(spec.image, image_id=None)))
        ended = asyncio.create_task(engine.until_ended(name))
        told = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait((ended, told), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                raise _did_not_start(spec.sandbox_id, _said(ended))
        finally:
            for task in (ended, told):
                task.cancel()
            await asyncio.gather(ended, told, return_exceptions=True)
        return spec.image

    def image_in(self, place_id: str) -> ResolvedImage | None:
        """See `Backend`."""
        return self._made_of.get(place_id)

    def _make_place(self, spec: SandboxSpec, place: str) -> Readiness:
        """Its directory, with what process 1 reads there."""
        os.mkdir(place, 0o700)
        os.chmod(place, 0o777)
        held = self.limits(spec)
        processes = int(held["processes"].value or 0) if facts.kernel() >= (5, 14) else 0
        ports = spec.exposes_ports or spec.egress_port is not None
        told = plan.told(self._facts, processes, self._own_filter, ports=ports, grouped=self._kept.memory)
        with open(f"{place}/plan", "w", encoding="utf-8") as file:
            json.dump(told, file, separators=(",", ":"))
        if spec.mounted_files:
            os.mkdir(f"{place}/{containers.MOUNTED}", 0o755)
        for number, mounted in enumerate(spec.mounted_files):
            path = f"{place}/{containers.MOUNTED}/{number}"
            with open(path, "wb") as content:
                content.write(mounted.content)
            os.chmod(path, 0o444)
        return Readiness(f"{place}/ready")

    def _container(self, spec: SandboxSpec, place: str) -> dict[str, Any]:
        assert spec.image.image_id is not None
        return containers.container(
            image_id=spec.image.image_id,
            labels=containers.labels(self._claim, spec.sandbox_id, spec.tags),
            host_name=spec.host_name or spec.sandbox_id,
            place=place,
            program=binary.found(),
            security=self._security,
            mounted=spec.mounted_files,
            limits=host_config(self.limits(spec), self._kept),
        )

    def _configuration(self, spec: SandboxSpec) -> Configuration:
        held, config = self.limits(spec), spec.image.config
        said = {} if config is None else dict(config.environment)
        working_dir = (config.working_dir if config is not None else None) or DEFAULT_WORKING_DIR
        return Configuration.of(
            {
                "environment": {
                    **BASE_ENVIRONMENT,
                    **said,
                    **way_out.environment(spec.egress_port, spec.host_name or spec.sandbox_id),
                    **spec.environment,
                    **spec.secrets,
                },
                "working_dir": os.path.join(os.path.normpath(f"/{working_dir.lstrip('/')}"), spec.working_dir or ""),
                "user": None if config is None or config.user in ROOT_USERS else config.user,
                "nice": 0,
                "limits": {
                    **{name: limit.value for name, limit in held.items() if limit.strength == "watched"},
                    "open_files": self._facts.open_files,
                    "watches": self._facts.watches,
                    "filters": bounds.LIMIT_FILTERS,
                    **dict(self._facts.sockets),
                    "group_memory": held["memory"].value,
                    "swap": self._facts.swap and not self._kept.memory,
                },
                "orphan_timeout_seconds": spec.orphan_timeout_seconds,
                "max_lifetime_seconds": spec.max_lifetime_seconds,
                "idle_timeout_seconds": spec.idle_timeout_seconds,
            }
        )

    def claim(self, spec: SandboxSpec, link: Process1Link) -> None:
        """See `Backend`. Labels stay as they were made: no engine changes those of a container."""
        link.configure(self._configuration(spec), spec.host_name or spec.sandbox_id)

    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        """See `Backend`."""
        sock = await opened_in_thread(self._directories.connect, sandbox_id)
        if sock is None:
            return None
        sock.setblocking(False)
        try:
            link = await asyncio.wait_for(Process1Link.connect(sandbox_id, sock), RECONNECT_SECONDS)
        except SandboxGone:
            return None
        self._links[sandbox_id] = link
        return link

    async def destroy(self, sandbox_id: str) -> None:
        """See `Backend`."""
        if (link := self._links.pop(sandbox_id, None)) is not None and link.ended() is None:
            link.detach()
        self._made_of.pop(sandbox_id, None)
        if (making := self._making.get(sandbox_id)) is not None:
            await asyncio.gather(asyncio.shield(making), return_exceptions=True)
        try:
            await self._live_engine().remove(containers.name_of(sandbox_id))
        except EngineError as error:
            raise error.as_unavailable("the engine could not remove the container", sandbox_id) from error
        await asyncio.to_thread(self._directories.remove, sandbox_id, grouped=False)

    async def place_ids(self) -> list[str]:
        """See `Backend`."""
        try:
            there = await self._live_engine().sandboxes(self._claim)
        except EngineError as error:
            raise error.as_unavailable("the engine's containers cannot be listed") from error
        return sorted({*there, *await asyncio.to_thread(self._directories.ids)})


def _did_not_start(sandbox_id: str, why: str) -> SandboxUnavailableError:
    message = f"process 1 of {sandbox_id} ended while it started: {why}"
    return SandboxUnavailableError(message, sandbox_id=sandbox_id, reason="start_failed")


def _said(ended: asyncio.Task[str]) -> str:
    error = ended.exception()
    return ended.result() if error is None else str(error)
