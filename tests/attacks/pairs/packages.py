"""Packages of a caller's: what can be done to them from inside, and what else could be had in their name."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.local import plan, syscalls
from aviato.wire.ids import new_sandbox_id
from tests.attacks.pairs.callers import serving
from tests.attacks.registry import Area, Arena, Patch, Steps, root_only
from tests.environments import make_environment, site_of

area = Area(__name__)
SITE = "import sysconfig; site = sysconfig.get_path('purelib')\n"


def taken(change: Callable[..., plan.Step]) -> Callable[[Steps], Steps]:
    """The plan with another step in place of the one that takes the directory."""

    def changed(steps: Steps) -> Steps:
        found = tuple(change(*step.arguments) if step.operation == "take_directory" else step for step in steps)
        # Sandboxes without packages have another word, and no other plan: a build has to differ.
        return found if found != steps else (steps[0]._replace(reason="no packages"), *steps[1:])

    return changed


def without(name: str, bit: int) -> dict[str, Any]:
    """The directory lacks an attribute: as root the zygote copies it, else the sandbox's first process does."""

    def request(asked: dict[str, Any]) -> None:
        asked["trees"] = [
            (tree, path, attributes & ~bit if tree == plan.PACKAGES else attributes, known)
            for tree, path, attributes, known in asked["trees"]
        ]

    def take(*arguments: Any) -> plan.Step:
        *rest, attributes = arguments
        return plan.Step("take_directory", (*rest, tuple(one for one in attributes if one != name)), "")

    return {"change": taken(take), "request": request}


def whatever_is_there(path: str, device: int, inode: int, name: str, attributes: tuple[str, ...]) -> plan.Step:
    """The directory is taken by its path alone."""
    return plan.Step("take", (((path, name, attributes),),), "")


def unknown(asked: dict[str, Any]) -> None:
    asked["trees"] = [(tree, path, attributes, (0, 0)) for tree, path, attributes, _ in asked["trees"]]


READ_ONLY = area.defence("packages are read only", **without("rdonly", syscalls.MOUNT_ATTR_RDONLY))
NO_DEVICES = area.defence("packages have no devices", **without("nodev", syscalls.MOUNT_ATTR_NODEV))
THE_SAME = area.defence("what is bound is the directory that was looked at", change=taken(whatever_is_there), request=unknown)
NAMED = area.defence(
    "who comes with a key names registered packages",
    patches=(Patch("server/service/sandboxes.py", "registered = caller.tenant is not None", "registered = False"),),
)


@contextmanager
def environment() -> Iterator[Path]:
    """One that everybody may write to."""
    path = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    try:
        made = make_environment(path / "env", greetings="WORD = 'hello'")
        site_of(made).chmod(0o777)
        yield made
    finally:
        shutil.rmtree(path)


@asynccontextmanager
async def shared(arena: Arena, before: Callable[[Path], object] = lambda site: None) -> AsyncIterator[Any]:
    """A sandbox that has the packages of such a one."""
    with environment() as made:
        before(site_of(made))
        async with arena.box(packages=str(made)) as box:
            yield box


@area.attack("change the packages of others", READ_ONLY)
async def write(arena: Arena) -> bool:
    async with shared(arena) as box:
        source = SITE + "try: open(site + '/json.py', 'w'); print(True)\nexcept OSError as error: print(error)"
        return await arena.inside(box, source)


@area.attack("use a device that lies among packages", NO_DEVICES, impossible=root_only)
async def device(arena: Arena) -> bool:
    def make(site: Path) -> None:
        os.mknod(site / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        (site / "zero").chmod(0o666)

    async with shared(arena, make) as box:
        source = SITE + "try: print(open(site + '/zero', 'rb').read(1) == b'\\0')\nexcept OSError as error: print(error)"
        return await arena.inside(box, source)


@area.attack("put another directory in the place of packages that were looked at", THE_SAME)
async def swap(arena: Arena) -> bool:
    create = arena.backend._create_somewhere
    with environment() as made:
        site = site_of(made)

        async def swapped(spec: Any) -> Any:
            site.rename(site.with_name("away"))
            site.mkdir(mode=0o755)
            (site / "secret").write_text("secret")
            return await create(spec)

        with mock.patch.object(arena.backend, "_create_somewhere", swapped):
            try:
                async with arena.box(packages=str(made)) as box:
                    return await arena.inside(box, SITE + "print(open(site + '/secret').read() == 'secret')")
            except SandboxUnavailableError:
                return False
            finally:
                await asyncio.to_thread(shutil.rmtree, site)
                site.with_name("away").rename(site)


@area.attack("have any directory of packages with a key", NAMED)
async def by_path(arena: Arena) -> bool:
    with environment() as made, serving(arena) as place:
        for path in (made, Path("/absent")):
            body = {"sandbox_id": new_sandbox_id(), "detached": True, "packages": str(path)}
            status, answer = await asyncio.to_thread(place.ask, "mine", "POST", "/v1/sandboxes", body)
            if status == 201:
                return True
            assert status == 400 and "no paths" in answer["error"]["message"], (status, answer)
    return False
