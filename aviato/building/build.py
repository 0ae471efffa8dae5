"""How an image is built: from the last step that is there, each next one in a sandbox of its own, whose layer it is."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from aviato.aio.async_sandbox import AsyncSandbox
from aviato.building.steps import Copy, Run, Setting
from aviato.core.images import have
from aviato.core.lifecycle import SandboxHandle
from aviato.exceptions import AviatoError, SandboxImageError
from aviato.log import logger
from aviato.system.threads import in_thread
from aviato.values.text import line
from aviato.wire.ids import new_sandbox_id, new_snapshot_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.building.steps import Step
    from aviato.core.client import Client
    from aviato.core.lease import Lease

FORM = 1
"""Of what steps are cached by; another one makes all anew."""
NAME = "aviato.build"
"""In the place of a registry."""
SHOWN_CHARACTERS = 2000


async def build(client: Client, lease: Lease, base: str, steps: Sequence[Step], create: dict[str, Any]) -> str:
    """What an image is called once it is there.

    Args:
        client: of the server.
        lease: of its sandboxes.
        base: what it begins with.
        steps: what is done to that.
        create: fields of its sandboxes but the image.

    Raises:
        SandboxImageError: it cannot be built; its reason is `build_failed` where a step failed.
    """
    parts = _parts(steps)
    if not parts:
        return base
    names = await _names(client, base, parts)
    there = 0
    for number in range(len(parts), 0, -1):
        if await _is_here(client, names[number - 1]):
            there = number
            break
    current = base if there == 0 else names[there - 1]
    for number in range(there, len(parts)):
        logger.info("building: step %d of %d: %s", number + 1, len(parts), line(str(parts[number][0])))
        handle = SandboxHandle(new_sandbox_id(), client, lease, {**_bare(create), "image": current})
        await _make(handle, parts[number], names[number])
        current = names[number]
    return current


async def _make(handle: SandboxHandle, part: Sequence[Step], name: str) -> None:
    sandbox = AsyncSandbox(handle, math.inf)
    try:
        for step in part:
            await _take(sandbox, step)
        await handle.wait_running()
        variables, working_dir, user = _together(part)
        await handle.client.take_snapshot(
            handle.sandbox_id,
            new_snapshot_id(),
            name=name,
            kind="build",
            environment=variables,
            working_dir=working_dir,
            user=user,
        )
    finally:
        await sandbox.stop(0, missing_ok=True)


async def _take(sandbox: AsyncSandbox, step: Step) -> None:
    try:
        if isinstance(step, Copy):
            await sandbox.upload(step.local, step.remote)
        elif isinstance(step, Setting):
            if step.working_dir is not None:
                await sandbox.make_directory(step.working_dir)
        else:
            result = await sandbox.exec(step.words)
            if result.returncode != 0:
                said = (result.stderr or result.stdout)[-SHOWN_CHARACTERS:].strip()
                raise _failed(step, f"it ended with returncode {result.returncode}: {said}")
    except SandboxImageError:
        raise
    except OSError as error:
        raise _failed(step, f"{error.filename!r}: {error.strerror}") from error
    except AviatoError as error:
        if error.is_infrastructure:
            raise
        raise _failed(step, str(error)) from error


def _failed(step: Step, why: str) -> SandboxImageError:
    return SandboxImageError(
        f"an image cannot be built: {line(str(step))}: {why}", reason="build_failed", is_infrastructure=True
    )


def _parts(steps: Sequence[Step]) -> list[list[Step]]:
    """Those that make a layer each: a command or a copy, and what is set after it."""
    parts: list[list[Step]] = []
    for step in steps:
        if isinstance(step, (Run, Copy)) or not parts:
            parts.append([step])
        else:
            parts[-1].append(step)
    return parts


def _together(part: Sequence[Step]) -> tuple[dict[str, str], str | None, str | None]:
    variables: dict[str, str] = {}
    working_dir = user = None
    for step in part:
        if isinstance(step, Setting):
            variables.update(step.environment)
            working_dir = step.working_dir or working_dir
            user = step.user or user
    return variables, working_dir, user


async def _names(client: Client, base: str, parts: Sequence[Sequence[Step]]) -> list[str]:
    """What each step's image is called: by all that it was made from."""
    key = await _identity(client, base)
    names = []
    for part in parts:
        inputs = [(type(step).__name__, await _inputs(step)) for step in part]
        key = hashlib.sha256(json.dumps([FORM, key, inputs]).encode()).hexdigest()
        names.append(f"{NAME}/{key[:40]}:latest")
    return names


async def _inputs(step: Step) -> str:
    try:
        return await in_thread(step.inputs)
    except OSError as error:
        raise _failed(step, f"{error.filename!r}: {error.strerror}") from error


async def _identity(client: Client, base: str) -> str:
    """The id of an image, fetched if need be; of what is the machine's own, its name."""
    if base == "host" or base.startswith(("dir:", "python:3.")):
        try:
            return str((await client.inspect_image(base)).image_id)
        except SandboxImageError:
            return base
    return str((await have(client, base)).image_id)


async def _is_here(client: Client, name: str) -> bool:
    try:
        return (await client.inspect_image(name)).status == "here"
    except SandboxImageError as error:
        if error.reason not in ("image_not_here", "no_image_store"):
            raise
        return False


def _bare(create: dict[str, Any]) -> dict[str, Any]:
    """Fields of a sandbox that builds: none that would be another's part."""
    kept = ("image_fallback", "egress_mode", "resources", "runway_ids", "tower_ids")
    found = {field: value for field, value in create.items() if field in kept}
    return {"detached": False, "releasable": False, "environment_variables": {}, "tags": [], "annotations": {}, **found}
