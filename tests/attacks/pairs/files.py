"""File calls, which process 1 makes: where the paths of the sandbox lead it; and what it is itself made from."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from aviato.exceptions import SandboxFileError
from aviato.server.backends.local import newborn
from tests.attacks.registry import Area, Arena, Defence, Patch, templates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

area = Area(__name__)
PATHS, EARLY = "server/supervisor/paths.py", "server/supervisor/early_files.c"

OWN_FILES = area.defence(
    "files of the kernel are no files of the sandbox",
    patches=(
        Patch(PATHS, "ctypes.c_long.from_buffer(found).value in KERNEL_FILE_SYSTEMS", "False"),
        Patch(EARLY, "(unsigned)found.f_type == kernel_file_systems[i]", "0"),
        Patch("init/src/paths.rs", "|found| KERNEL_FILE_SYSTEMS.contains(&found.kind)", "|_| false"),
    ),
)
NO_MAGIC = area.defence(
    "process 1 follows no link by which it would find what it has itself",
    patches=(
        Patch(PATHS, "NO_MAGIC_LINKS = 2\n", "NO_MAGIC_LINKS = 0\n"),
        Patch(EARLY, "NO_MAGIC_LINKS = 2", "NO_MAGIC_LINKS = 0"),
        Patch("init/src/sys.rs", "mode: 0, resolve: RESOLVE_NO_MAGICLINKS }", "mode: 0, resolve: 0 }"),
    ),
)
ENOUGH_BYTES = 1 << 20


async def by_compiled_code(box: Any) -> None:
    """Where it is there: a sandbox begins with it."""


async def by_python(box: Any) -> None:
    """Input is nothing that compiled code deals with."""
    assert (await box.run("cat", stdin=b"")).returncode == 0


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


def both(name: str, *walls: str) -> Callable[[Callable[[Any], Awaitable[bool]]], None]:
    """Registers an attack on both ways of process 1."""

    def register(attempt: Callable[[Any], Awaitable[bool]]) -> None:
        for way, come in {"": by_compiled_code, ", of Python": by_python}.items():  # The second goes with the C part.

            @area.attack(name + way, *walls)
            async def made(arena: Arena, come: Callable[[Any], Awaitable[None]] = come) -> bool:
                async with arena.box() as box:
                    await come(box)
                    return await attempt(box)

    return register


@both("have a file call tell of process 1", OWN_FILES)
async def tell(box: Any) -> bool:
    await box.sh("ln -s /proc/self/maps result")
    return await read(box, "result") > 0


@both("have a file call read what does not end", OWN_FILES)
async def endless(box: Any) -> bool:
    exec_id, subscription = box.start("sh", "-c", "ln -s /proc/$$/pagemap result; exec sleep 60")
    while (await box.run("test", "-L", "result")).returncode != 0:
        pass
    size = await read(box, "result")
    await box.link.cancel(exec_id)
    await box.finish(exec_id, subscription)
    return size > 0


LAYER = f"/proc/self/fd/{newborn.LAYER}"


@both("have a file written through a descriptor of process 1", NO_MAGIC)
async def write(box: Any) -> bool:
    await box.sh(f"ln -s {LAYER} results")
    return await goes(box.put("results/here", b"x"))


@both("have a command begin in a descriptor of process 1", NO_MAGIC)
async def begin(box: Any) -> bool:
    await box.sh(f"ln -s {LAYER} project")
    result = await box.run("true", cwd="project")
    if result.error is not None:
        assert result.error["reason"] == "not_a_regular_file", result.error
        return False
    return result.returncode == 0


# -- the program that process 1 is ----------------------------------------------------------------------------------------

COPIED = area.defence(
    "the template runs a copy of an interpreter that its user owns",
    swaps={"aviato.server.backends.local.sealed.copy_of": lambda executable: None},
)
CHANGE = b"""#!/proc/self/exe -I
import os
for change in (lambda: os.chmod("/proc/self/exe", 0o711), lambda: os.truncate("/proc/self/exe", 0)):
    try: change()
    except OSError: pass
print("tried")
"""


@area.attack(
    "change the interpreter of the server's user",
    COPIED,
    impossible=lambda backend: None if os.geteuid() else "sandboxes have ids of their own",
)
async def interpreter(arena: Arena) -> bool:
    base = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        own = Path(directory, "bin", base.name)
        own.parent.mkdir()
        shutil.copy(base, own)
        Path(directory, "lib").symlink_to(base.parents[1] / "lib")
        own.chmod(0o755)
        with mock.patch.object(sys, "_base_executable", str(own)):
            async with arena.restarted(), arena.box() as box:
                await box.put("change", CHANGE, mode=0o755)
                assert (await box.run("./change")).stdout == "tried\n"
        return own.stat().st_mode & 0o777 != 0o755 or own.read_bytes() != base.read_bytes()


SURPLUS = area.defence(
    "a copy is not much longer than the tree",
    patches=(
        Patch("server/supervisor/reading.py", ", surplus=Surplus(LARGEST_BYTES)", ""),
        Patch("init/src/archive/pack.rs", "if self.surplus > MOST_SURPLUS_BYTES {", "if false {"),
    ),
)
LONGER = {
    "holes": "open('/tmp/tree/{}', 'wb').truncate(1 << 20)",
    "hard links": "os.link('/tmp/tree/0', '/tmp/tree/{0}') if {0} else open('/tmp/tree/0', 'wb').write(bytes(1 << 20))",
}
SMALLER = Defence(
    name="copies of four GiB",
    patches=(
        Patch("server/supervisor/reading.py", "LARGEST_BYTES = 4 << 30\n", "LARGEST_BYTES = 2 << 20\n"),
        Patch("init/src/archive/pack.rs", "MOST_SURPLUS_BYTES: u64 = 4 << 30;", "MOST_SURPLUS_BYTES: u64 = 2 << 20;"),
    ),
)
"""A copy of four GiB takes a while."""
for _kind, _source in LONGER.items():

    @area.attack(f"fill a client's disk by a directory of {_kind}", SURPLUS)
    async def longer(arena: Arena, source: str = _source) -> bool:
        with templates([SMALLER, *arena.off]):
            async with arena.restarted(), arena.box() as box:
                made = "\n".join(source.format(number) for number in range(9))
                assert (await box.python(f"import os\nos.mkdir('/tmp/tree')\n{made}")).stderr == ""
                try:
                    return sum([len(piece) async for piece in box.link.read_tree("/tmp/tree")]) > 9 << 20
                except SandboxFileError as error:
                    assert error.reason == "too_large", error
                    return False
