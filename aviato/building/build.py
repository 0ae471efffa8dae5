"""How an image is built: from the last step that is there, each next one in a sandbox of its own, whose layer it is."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.aio.async_sandbox import AsyncSandbox
from aviato.building import placing
from aviato.building.copy_files import CopyFiles
from aviato.building.dockerfile_stage import PATH, SHELL, Commands, DockerfileStage
from aviato.building.downloaded import Downloads
from aviato.building.fetching import fetched
from aviato.building.steps import Copy, Run, Setting
from aviato.calls.recipe import GONE
from aviato.core.images import have
from aviato.core.lifecycle import SandboxHandle
from aviato.core.sandbox_endings import IMAGE_PULL_FAILED
from aviato.core.snapshots import taken
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxImageError
from aviato.log import logger
from aviato.system.threads import in_thread
from aviato.trees.errors import TreeError
from aviato.values.text import line
from aviato.wire.ids import new_sandbox_id, new_snapshot_id
from aviato.wire.images import BUILT, is_machines_own

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from aviato.building.copy_files import Found
    from aviato.building.steps import Source, Step
    from aviato.calls.recipe import BuildCounts
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.results import ImageInfo

    Part = list[Step]

FORM = 4
"""Of what steps are cached by; another one makes all anew."""
SHOWN_CHARACTERS = 2000
MOST_LOSSES = 10
"""So often steps of one build may be removed by others before it is given up."""
_INTERPRETER = re.compile(r"python:3\.\d+", re.ASCII)
"""One of the machine's, where there is no image of that name."""
BUILDING, CACHED = "building: ", "cached: "
"""How the lines begin that say of each step that it is made, or is there."""


async def build(client: Client, lease: Lease, source: Source, create: dict[str, Any], counts: BuildCounts | None = None) -> str:
    """What an image is called once it is there.

    Args:
        client: of the server.
        lease: of its sandboxes.
        source: what it is to be.
        create: fields of its sandboxes but the image.
        counts: is told of each step, and of the image that it begins with.

    Raises:
        SandboxImageError: it cannot be built; its reason is `build_failed` where a step failed.
    """
    async with Downloads() as downloads:
        return await _Builder(client, lease, create, downloads, counts).built(source)


class _Lost(Exception):
    """An image of a build has been removed while no sandbox had it."""


@dataclass(frozen=True)
class _Plan:
    """What is done.

    Attributes:
        base: what it begins with, by its id where it has one: that is what the names are of, whatever its own means by then.
        parts: steps that make a layer each.
        inputs: of the last step of each.
        names: of what each part makes.
        key: of the whole: equal ones are the same image.
    """

    base: str
    parts: list[Part]
    inputs: list[str]
    names: list[str]
    key: str


class _Builder:
    def __init__(
        self,
        client: Client,
        lease: Lease,
        create: dict[str, Any],
        downloads: Downloads,
        counts: BuildCounts | None,
    ) -> None:
        self._client = client
        self._lease = lease
        self._downloads = downloads
        self._create = _bare(create)
        self._counts = counts
        self._plans: dict[Source, _Plan] = {}
        self._told: set[str] = set()

    async def built(self, source: Source) -> str:
        """What it is called, once it is there. What is removed meanwhile is made again."""
        losses = 0
        while True:
            try:
                made = await self._built(source)
                # By its name it can be had again once it has gone.
                return made if self._plans[source].parts else source.base
            except _Lost as lost:
                losses += 1
                if losses > MOST_LOSSES:
                    raise _removed() from lost
            # Its base may have gone, too, and mean another image when it comes again.
            self._plans.clear()

    async def _built(self, source: Source) -> str:
        plan = await self._plan(source)
        there = 0
        for number in range(len(plan.parts), 0, -1):
            if await self._is_here(plan.names[number - 1]):
                there = number
                break
        for number in range(there):
            if plan.names[number] not in self._told:
                self._tell(CACHED, plan, number)
                self._count_step(True)
        current = plan.base if there == 0 else plan.names[there - 1]
        for number in range(there, len(plan.parts)):
            self._tell(BUILDING, plan, number)
            await self._make(plan.parts[number], plan.inputs[number], current, plan.names[number])
            self._count_step(False)
            current = plan.names[number]
        return current

    def _count_step(self, is_cached: bool) -> None:
        if self._counts is not None:
            self._counts.build_step(is_cached)

    def _tell(self, how: str, plan: _Plan, number: int) -> None:
        self._told.add(plan.names[number])
        for step in plan.parts[number][-1:]:
            logger.info("%sstep %d of %d: %s", how, number + 1, len(plan.parts), line(str(step)))

    async def _plan(self, source: Source) -> _Plan:
        """Look at an image's base and at the files that it takes; nothing is made."""
        if source not in self._plans:
            base, commands = await self._base(source.base)
            parts = _parts(_translated(source.steps, commands))
            names, last_inputs, key = [], [], base
            for part in parts:
                inputs = [(type(step).__name__, await self._inputs(step)) for step in part]
                last_inputs.append(inputs[-1][1][0])
                key = hashlib.sha256(json.dumps([FORM, key, inputs]).encode()).hexdigest()
                names.append(f"{BUILT}/{key[:40]}:latest")
            self._plans[source] = _Plan(base, parts, last_inputs, names, key)
        return self._plans[source]

    async def _inputs(self, step: Step) -> list[str]:
        with _failing(step):
            found = [await in_thread(step.inputs)]
        if isinstance(step, CopyFiles) and step.source is not None:
            found.append((await self._plan(step.source)).key)
        if isinstance(step, CopyFiles) and step.urls:
            with _failing(step):
                found += await self._downloads.inputs(step)
        return found

    async def _base(self, base: str) -> tuple[str, Commands]:
        """The id of an image, fetched if need be; of what is the machine's own, its name. And what it says of commands."""
        info: Any
        if not _is_of_machine(base):
            info = await (self._client.inspect_image(base) if await self._is_here(base) else self._fetched(base))
        elif is_machines_own(base) or (info := await self._of_interpreter(base)) is None:
            return base, Commands(path=PATH if base.startswith("dir:") else f"/.aviato/bin:{PATH}")
        entrypoint, command, shell = (tuple(one) for one in (info.entrypoint, info.command, info.shell or SHELL))
        commands = Commands(info.environment, info.working_dir, entrypoint, command, shell)
        return str(info.image_id), commands

    async def _fetched(self, base: str) -> ImageInfo:
        try:
            info = await have(self._client, base)
        except SandboxImageError:
            if self._counts is not None:
                self._counts.image_used(None)
            raise
        if self._counts is not None:
            self._counts.image_prefetched(info)
        return info

    async def _of_interpreter(self, base: str) -> Any:
        """The image of that name; None: it is an interpreter of the machine's. The server says which, once it starts."""
        if not await self._is_here(base):
            sandbox = self._sandbox(base, has_network=False, counts=self._counts)
            try:
                await sandbox.wait()
            finally:
                await sandbox.stop(0, missing_ok=True)
        return await self._client.inspect_image(base) if await self._is_here(base) else None

    async def _is_here(self, name: str) -> bool:
        try:
            return (await self._client.inspect_image(name)).status == "here"
        except SandboxImageError as error:
            if error.reason != "image_not_here":
                raise
            return False

    async def _make(self, part: Part, inputs: str, image: str, name: str) -> None:
        last = part[-1]
        setting = _together(part)
        async with self._files(last) as found, self._with(image):
            user = None if setting.working_dir is None else await self._user_of(image)
            sandbox = self._sandbox(image, has_network=not isinstance(last, Run) or last.network == "default")
            try:
                for step in part:
                    with _failing(step):
                        await _take(sandbox, step, setting, found, user)
                await _check_unchanged(last, inputs)
                await sandbox._handle.wait_running()
                await taken(
                    sandbox._handle,
                    new_snapshot_id(),
                    name=name,
                    kind="build",
                    environment=dict(setting.environment),
                    working_dir=setting.working_dir,
                    user=setting.user,
                    entrypoint=setting.entrypoint,
                    command=setting.command,
                    labels=dict(setting.labels),
                    shell=setting.shell,
                )
            finally:
                await sandbox.stop(0, missing_ok=True)

    async def _user_of(self, image: str) -> str | None:
        """Who commands in an image are. No setting of a part changes that for what comes in it: a user ends a part."""
        if _is_of_machine(image):
            return None  # All are root.
        return (await self._client.inspect_image(image)).user

    @asynccontextmanager
    async def _files(self, step: Step) -> AsyncIterator[list[Found]]:
        """What a copy takes. Those of an image are here before the sandbox of the step is: one place is enough for a build."""
        if not isinstance(step, CopyFiles) or step.source is None:
            with _failing(step):
                found = await in_thread(step.found) if isinstance(step, CopyFiles) else []
                found += await self._downloads.found(step) if isinstance(step, CopyFiles) and step.urls else []
            yield found
            return
        image = await self._built(step.source)
        origin = self._sandbox(image, has_network=False)
        folder = await in_thread(tempfile.mkdtemp, prefix="aviato-build-")
        try:
            try:
                async with self._with(image):
                    with _failing(step):
                        of_machine = _is_of_machine(step.source.base)
                        found = await fetched(origin, step.sources, folder, of_machine=of_machine)
                        found += step.written()
            finally:
                await origin.stop(0, missing_ok=True)
            yield found
        finally:
            await in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))

    @asynccontextmanager
    async def _with(self, image: str) -> AsyncIterator[None]:
        """Tell a failure of what is done with an image by whether the image has been removed: no sandbox has it in between."""
        try:
            yield
        except SandboxImageError as error:
            # What a sandbox ended for, and how an id that is none any more is called, is said of other failures, too.
            may_be = error.reason in (IMAGE_PULL_FAILED, "bad_reference") and not _is_of_machine(image)
            if error.reason in GONE or (may_be and not await self._is_here(image)):
                raise _Lost(image) from error
            raise

    def _sandbox(self, image: str, *, has_network: bool, counts: BuildCounts | None = None) -> AsyncSandbox:
        create = {**self._create, "image": image}
        if not has_network:
            create["egress_mode"] = "none"
        on_image = None if counts is None else counts.image_used
        return AsyncSandbox(SandboxHandle(new_sandbox_id(), self._client, self._lease, create, on_image=on_image), math.inf)


def _is_of_machine(base: str) -> bool:
    return is_machines_own(base) or _INTERPRETER.fullmatch(base) is not None


async def _take(sandbox: AsyncSandbox, step: Step, setting: Setting, found: list[Found], user: str | None) -> None:
    if isinstance(step, Copy):
        await sandbox.upload(step.local, posixpath.join(setting.working_dir or "", step.remote))
    elif isinstance(step, CopyFiles):
        await placing.place(sandbox, step, found)
    elif isinstance(step, Setting):
        if step.working_dir is not None:
            await placing.make_directory(sandbox, step.working_dir, user, str(step))
    elif isinstance(step, Run):
        await _run(sandbox, step, setting)


async def _check_unchanged(step: Step, inputs: str) -> None:
    """See whether the caller's files are those that the step's name is of: they were read anew, maybe long after that.

    Raises:
        SandboxImageError: they are not.
    """
    if isinstance(step, Copy | CopyFiles):
        with _failing(step):
            if await in_thread(step.inputs) != inputs:
                raise ValueError("what it copies was changed while it was built; build it again")


@contextmanager
def _failing(step: Step) -> Iterator[None]:
    """What goes wrong is the step's doing, unless it is the infrastructure's."""
    try:
        yield
    except AviatoError as error:
        if error.is_infrastructure or isinstance(error, SandboxImageError):
            raise
        raise _failed(step, error) from error
    except (OSError, TreeError, ValueError) as error:
        raise _failed(step, error) from error


async def _run(sandbox: AsyncSandbox, step: Run, setting: Setting) -> None:
    environment = {**dict(step.environment), **dict(setting.environment)}
    result = await sandbox.exec(step.words, env=environment, cwd=setting.working_dir or step.working_dir)
    if result.returncode != 0:
        said = (result.stderr or result.stdout)[-SHOWN_CHARACTERS:].strip()
        raise ValueError(f"it ended with returncode {result.returncode}: {said}")


def _removed() -> SandboxImageError:
    why = f"its steps have been removed {MOST_LOSSES + 1} times while it was built; build it while nobody prunes images"
    return SandboxImageError(f"an image cannot be built: {why}", reason="image_gone", is_infrastructure=True)


def _failed(step: Step, why: BaseException) -> SandboxImageError:
    said = f"{why.filename!r}: {why.strerror}" if isinstance(why, OSError) and why.filename is not None else str(why)
    return SandboxImageError(
        f"an image cannot be built: {line(str(step))}: {said}", reason="build_failed", is_infrastructure=True
    )


def _translated(steps: Sequence[Step], commands: Commands) -> list[Step]:
    """The steps with those of Dockerfiles in the place of their stages."""
    found: list[Step] = []
    for step in steps:
        if isinstance(step, DockerfileStage):
            try:
                inner, commands = step.steps(commands)
            except AviatoValidationError as error:
                message = f"an image cannot be built: {error}"
                raise SandboxImageError(message, reason="build_failed", is_infrastructure=True) from error
            found += inner
        else:
            commands = commands.after(step) if isinstance(step, Setting) else commands
            found.append(step)
    return found


def _parts(steps: Sequence[Step]) -> list[Part]:
    """Those that make a layer each: a command or a copy, and what was set before it; then what is set at the end.

    A user ends one: whether sandboxes have any is for the server to say, and it does so of images.
    """
    parts: list[Part] = []
    current: Part = []
    for step in steps:
        current.append(step)
        if not isinstance(step, Setting) or step.user is not None:
            parts, current = [*parts, current], []
    return [*parts, current] if current else parts


def _together(part: Sequence[Step]) -> Setting:
    """All that a part sets."""
    found = Setting()
    for step in part:
        if isinstance(step, Setting):
            found = Setting(
                environment=tuple({**dict(found.environment), **dict(step.environment)}.items()),
                working_dir=step.working_dir or found.working_dir,
                user=step.user or found.user,
                entrypoint=found.entrypoint if step.entrypoint is None else step.entrypoint,
                command=found.command if step.command is None else step.command,
                labels=tuple({**dict(found.labels), **dict(step.labels)}.items()),
                shell=found.shell if step.shell is None else step.shell,
            )
    return found


def _bare(create: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sandbox that builds: none that would be another's part."""
    kept = ("image_fallback", "egress_mode", "resources", "runway_ids", "tower_ids")
    found = {field: value for field, value in create.items() if field in kept}
    return {"detached": False, "releasable": False, "environment_variables": {}, "tags": [], "annotations": {}, **found}
