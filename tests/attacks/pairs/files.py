"""File calls, which process 1 makes: where the paths of the sandbox lead it; and what it is itself made from."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from aviato.exceptions import SandboxFileError
from aviato.server.backends.local import binary
from tests.attacks.registry import Area, Arena, Defence, Patch, mutant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

area = Area(__name__)
LAYER = "/proc/self/fd/6"
"""A descriptor of process 1."""

OWN_FILES = area.defence(
    "files of the kernel are no files of the sandbox",
    patches=(Patch("init/src/paths.rs", "|found| KERNEL_FILE_SYSTEMS.contains(&found.kind)", "|_| false"),),
)
NO_MAGIC = area.defence(
    "process 1 follows no link by which it would find what it has itself",
    patches=(Patch("init/src/sys.rs", "mode: 0, resolve: RESOLVE_NO_MAGICLINKS }", "mode: 0, resolve: 0 }"),),
)
ENOUGH_BYTES = 1 << 20


async def goes(call: Awaitable[object]) -> bool:
    """Whether a file call is not refused for what it was led to."""
    try:
        await call
    except SandboxFileError as error:
        assert error.reason == "not_a_regular_file", error
        return False
    return True


async def read(box: Any, path: str) -> int:
    """So many bytes come, until it is enough."""
    size = 0
    try:
        async for piece in box.link.read_file(path):
            size += len(piece)
            if size > ENOUGH_BYTES:
                break
    except SandboxFileError as error:
        assert error.reason == "not_a_regular_file", error
    return size


def in_a_box(name: str, *walls: str) -> Callable[[Callable[[Any], Awaitable[bool]]], None]:
    """Registers an attack on a sandbox of its own."""

    def register(attempt: Callable[[Any], Awaitable[bool]]) -> None:
        @area.attack(name, *walls)
        async def made(arena: Arena) -> bool:
            async with arena.box() as box:
                return await attempt(box)

    return register


@in_a_box("have a file call tell of process 1", OWN_FILES)
async def tell(box: Any) -> bool:
    await box.sh("ln -s /proc/self/maps result")
    return await read(box, "result") > 0


@in_a_box("have a file call read what does not end", OWN_FILES)
async def endless(box: Any) -> bool:
    exec_id, subscription = box.start("sh", "-c", "ln -s /proc/$$/pagemap result; sleep 60; :")
    while (await box.run("test", "-L", "result")).returncode != 0:
        pass
    size = await read(box, "result")
    await box.link.cancel(exec_id)
    await box.finish(exec_id, subscription)
    return size > 0


@in_a_box("have a file written through a descriptor of process 1", NO_MAGIC)
async def write(box: Any) -> bool:
    await box.sh(f"ln -s {LAYER} results")
    return await goes(box.put("results/here", b"x"))


@in_a_box("have a command begin in a descriptor of process 1", NO_MAGIC)
async def begin(box: Any) -> bool:
    await box.sh(f"ln -s {LAYER} project")
    result = await box.run("true", cwd="project")
    if result.error is not None:
        assert result.error["reason"] == "not_a_regular_file", result.error
        return False
    return result.returncode == 0


# -- the program that process 1 is ----------------------------------------------------------------------------------------

COPIED = area.defence(
    "the zygote runs a copy of a program that its user owns",
    swaps={"aviato.server.backends.local.sealed.copy_of": lambda executable: None},
)
BY_ITSELF = b"#!/proc/self/exe nothing\n"
CHANGES = """
import os
print("watching", flush=True)
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid != "1" and "aviato-init" in os.readlink(f"/proc/{pid}/exe"):
                os.chmod(f"/proc/{pid}/exe", 0o711)
        except OSError: pass
"""


@area.attack(
    "change the program of the server's user",
    COPIED,
    impossible=lambda backend: None if os.geteuid() else "sandboxes have ids of their own",
)
async def program(arena: Arena) -> bool:
    """What process 1 starts can run what process 1 runs, and another command has that as a file meanwhile."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        own = Path(directory, "aviato-init")
        shutil.copy(binary.found(), own)
        own.chmod(0o755)
        with mock.patch.dict(os.environ, {binary.VARIABLE: str(own)}):
            async with arena.restarted(), arena.box() as box:
                await box.put("itself", BY_ITSELF, mode=0o755)
                _, subscription = box.start("python3", "-I", "-S", "-c", CHANGES)
                while not (await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"watching\n"):
                    pass
                for _ in range(200):
                    assert (await box.run("./itself")).returncode not in (126, 127)
                    if own.stat().st_mode & 0o777 != 0o755:
                        return True
                subscription.close()
                return False


SURPLUS = area.defence(
    "a copy is not much longer than the tree",
    patches=(
        Patch("init/src/archive/pack.rs", "if self.surplus > MOST_SURPLUS_BYTES && self.stored.is_none() {", "if false {"),
    ),
)
LONGER = {
    "holes": "open('/tmp/tree/{}', 'wb').truncate(1 << 20)",
    "hard links": "os.link('/tmp/tree/0', '/tmp/tree/{0}') if {0} else open('/tmp/tree/0', 'wb').write(bytes(1 << 20))",
}
SMALLER = Defence(
    name="copies of four GiB",
    patches=(Patch("init/src/archive/pack.rs", "MOST_SURPLUS_BYTES: u64 = 4 << 30;", "MOST_SURPLUS_BYTES: u64 = 2 << 20;"),),
)
"""A copy of four GiB takes a while."""
for _kind, _source in LONGER.items():

    @area.attack(f"fill a client's disk by a directory of {_kind}", SURPLUS)
    async def longer(arena: Arena, source: str = _source) -> bool:
        with mutant([SMALLER, *arena.off]):
            async with arena.restarted(), arena.box() as box:
                made = "\n".join(source.format(number) for number in range(9))
                assert (await box.python(f"import os\nos.mkdir('/tmp/tree')\n{made}")).stderr == ""
                try:
                    return sum([len(piece) async for piece in box.link.read_tree("/tmp/tree")]) > 9 << 20
                except SandboxFileError as error:
                    assert error.reason == "too_large", error
                    return False
