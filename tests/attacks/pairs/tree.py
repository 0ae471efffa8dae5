"""What of the machine can be seen and changed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aviato.exceptions import SandboxFileError
from aviato.server.backends.base import MountedFile
from aviato.server.backends.local.plan import Step
from tests.attacks.registry import Area, Arena, Patch, Steps, root_only

area = Area(__name__)
STEPS = "init/src/confine.rs"
REMOUNTED = """\
        let flags = sys::MS_REMOUNT | sys::MS_BIND | sys::MS_RDONLY | sys::MS_NOSUID;
        sys::mount_on(None, b"/dev", None, flags, None)
"""


def with_arguments(operation: str, change: Callable[..., tuple[object, ...]]) -> Callable[[Steps], Steps]:
    """The plan with other arguments of one kind of step."""
    return lambda steps: tuple(
        step._replace(arguments=change(*step.arguments)) if step.operation == operation else step for step in steps
    )


def open_attributes(dropped: str) -> Callable[[Steps], Steps]:
    """What is taken from the machine lacks an attribute."""
    return with_arguments(
        "take", lambda sources: (tuple((path, name, tuple(set(how) - {dropped})) for path, name, how in sources),)
    )


def shown(path: str) -> Callable[[Steps], Steps]:
    """The machine's directory instead of the sandbox's own."""

    def change(steps: Steps) -> Steps:
        changed = []
        for step in steps:
            if step.operation == "take":
                step = step._replace(arguments=((*step.arguments[0], (path, "shown", ())),))
            changed.append(step)
            if step.operation == "no_more_namespaces":
                changed.append(Step("put", ((("shown", path, True),),), "a hole"))
        return tuple(changed)

    return change


# In a root that is not the uppermost, nobody can make the last user namespace.
OLD_ROOT = area.defence("the machine's root is let go", steps=("leave_old_root", "last_user_namespace"))
RO = area.defence("what is shared is read only", change=open_attributes("rdonly"))
OWN_TMP = area.defence("only what is listed of the machine is there", change=shown("/tmp"))
OWN_SYS = area.defence("/sys has nothing but how many processors there are, and how memory is laid out", change=shown("/sys"))
SETTINGS = area.defence("kernel settings are read only", steps=("cover_read_only",))
COVERED_FILES = area.defence("kernel files are covered", steps=("cover_file",))
COVERED_DIRECTORIES = area.defence("kernel directories are covered", steps=("cover_directory",))
READ_ONLY_DEV = area.defence(
    "/dev is read only",
    patches=(Patch(STEPS, REMOUNTED, "        Ok(())\n"),),
)
SHARED_READ_ONLY_DEV = area.defence(
    "the devices that all share are read only",
    change=with_arguments(
        "take", lambda sources: (tuple((path, name, ("nosuid",) if name == "devices" else how) for path, name, how in sources),)
    ),
)
OWN_PROC = area.defence(
    "/proc is of the sandbox's own processes",
    change=lambda steps: tuple(
        Step("put", ((("machine's proc", "/proc", True),),), "a hole")
        if step.operation == "proc"
        else step._replace(arguments=((*step.arguments[0], ("/proc", "machine's proc", ())),))
        if step.operation == "take"
        else step
        for step in steps
        if not step.operation.startswith(("cover_", "no_more_namespaces"))
    ),
)

FIND = """
import glob, os, sys
name = sys.argv[1]
found = []
for top in ("", "/..", "/../..", "/proc/self/root", "/proc/self/root/..", "/proc/1/root", "/proc/1/cwd", "/proc/self/cwd/..",
            *glob.glob("/proc/[0-9]*/root"), *glob.glob("/proc/self/fd/*"), *glob.glob("/dev/fd/*")):
    try:
        with open(top + name) as file:
            found.append(file.read() == "of the machine")
    except OSError:
        pass
print(any(found))
"""


@contextmanager
def of_the_machine() -> Iterator[str]:
    """A file that everyone on the machine can read."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        directory.chmod(0o755)
        (directory / "secret").write_text("of the machine")
        yield str(directory / "secret")
    finally:
        shutil.rmtree(directory)


@area.attack("read a file of the machine", OLD_ROOT)
async def read(arena: Arena) -> bool:
    with of_the_machine() as path:
        return await arena.program(FIND, path)


@area.attack("read the machine's /tmp", OWN_TMP)
async def read_tmp(arena: Arena) -> bool:
    with of_the_machine() as path:
        return await arena.program(FIND, path)


@area.attack("change what is shared", RO)
async def change(arena: Arena) -> bool:
    """A directory that the machine lets everyone write to is shared like those that programs of /usr need."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o777)
    facts = arena.backend._facts
    arena.backend._facts = replace(facts, directories=(*facts.directories, str(directory)[1:]))
    try:
        source = "import sys\ntry: print(open(f'{sys.argv[1]}/x', 'w').write('x') == 1)\nexcept OSError: print('refused')"
        return await arena.program(source, str(directory)) and (directory / "x").exists()
    finally:
        arena.backend._facts = facts
        shutil.rmtree(directory)


SECRETS = area.defence(
    "of /etc only what is no secret is copied",
    swaps={"aviato.server.backends.local.configuration.refusal": lambda path: None},
)
READ_SECRETS = """
import os, sys
found = []
for top, _, names in os.walk(sys.argv[1]):
    for name in names:
        try:
            with open(os.path.join(top, name)) as file:
                found.append("machine" in file.read())
        except OSError:
            pass
print(any(found))
"""


@area.attack("read a secret that lies beside a program's configuration", SECRETS)
async def read_secret(arena: Arena) -> bool:
    """Three that the machine lets everyone read, and one that is its own."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o755)
    contents = {
        "settings.xml": "<server><password>of-the-machine</password></server>",
        "server.key": "of the machine",
        "tls.conf": "-----BEGIN PRIVATE KEY-----\nof the machine\n",
        "closed.conf": "of the machine",
    }
    for name, content in contents.items():
        (directory / name).write_text(content)
        (directory / name).chmod(0o600 if name == "closed.conf" else 0o644)
    facts = arena.backend._facts
    arena.backend._facts = replace(facts, etc_shared=(*facts.etc_shared, (f"..{directory}", True)))
    try:
        return await arena.program(READ_SECRETS, str(directory))
    finally:
        arena.backend._facts = facts
        shutil.rmtree(directory)


CHANGE = "try: {}; print(True)\nexcept OSError as error: print(error)"
area.program(
    "see the machine's hardware",
    "import os; print(any(os.path.exists(f'/sys/{name}') for name in ('block', 'bus', 'class', 'dev', 'firmware', 'module')))",
    OWN_SYS,
)
area.program(
    "change a kernel setting",
    CHANGE.format("file = open('/proc/sys/kernel/shmmni', 'w'); file.write('100'); file.flush()"),
    SETTINGS,
)
area.program(
    "have the kernel watch its load for it, which takes time from all",
    CHANGE.format("file = open('/proc/pressure/cpu', 'w'); file.write('some 500000 2000000\\0'); file.flush()"),
    SETTINGS,
    impossible=lambda backend: None if "pressure" in backend._facts.proc else "this kernel does not measure it",
)
area.program(
    "put something into /dev",
    CHANGE.format("import os; os.mkdir('/dev/x')"),
    READ_ONLY_DEV,
    impossible=lambda backend: None if backend._facts.devices is None else "it is nobody's inside",
)


@area.attack(
    "leave a sign for another sandbox on a device",
    SHARED_READ_ONLY_DEV,
    impossible=lambda backend: None if backend._facts.devices else "each sandbox has mounts of the machine's devices",
)
async def sign(arena: Arena) -> bool:
    look = "import os; print(os.stat('/dev/full').st_mtime_ns)"
    async with arena.box() as one, arena.box() as two:
        before = await two.python(look)
        await one.python("import os\ntry: os.utime('/dev/full')\nexcept OSError: pass")
        return bool((await two.python(look)).stdout != before.stdout)


OF_PROC = "import os; print(os.stat('/proc/{}').st_dev == os.stat('/proc/version').st_dev)"
area.program(
    "open the kernel's list of keys",
    OF_PROC.format("keys"),
    COVERED_FILES,
    impossible=lambda backend: None if "keys" in backend._facts.proc else "this kernel has none",
)
area.program(
    "look at the hardware in /proc",
    OF_PROC.format("acpi"),
    COVERED_DIRECTORIES,
    impossible=lambda backend: None if "acpi" in backend._facts.proc else "this machine has none",
)
area.program(
    "see the machine's processes",
    "import os; print(len([name for name in os.listdir('/proc') if name.isdecimal()]) > 4)",
    OWN_PROC,
)

# -- set-uid programs and devices ------------------------------------------------------------------------------------------


def without_on_root(dropped: str, steps: Steps) -> Steps:
    """The sandbox's root, in layers or plain, lacks an attribute."""
    kept = tuple({"nosuid", "nodev"} - {dropped})
    steps = with_arguments("overlay", lambda *others: (*others[:3], kept))(steps)
    return with_arguments("bind_self", lambda path, _: (path, kept))(steps)


NOSUID = area.defence(
    "no set-uid on what is the sandbox's own",
    change=lambda steps: without_on_root("nosuid", steps),
)
NODEV = area.defence(
    "no devices on what is the sandbox's own",
    change=lambda steps: without_on_root("nodev", steps),
)
NO_NEW_PRIVILEGES = area.defence(
    "no new privileges",
    patches=(Patch(STEPS, "                sys::control(sys::PR_SET_NO_NEW_PRIVS, 1)?;\n", ""),),
    steps=("filter",),  # which the kernel takes from nobody else
)


@area.attack("run a set-uid program", NOSUID, NO_NEW_PRIVILEGES, impossible=root_only)
async def set_uid(arena: Arena) -> bool:
    """Its owner is the neighbouring id, which only the machine's root can give it to."""
    async with arena.box() as box:
        workspace = await arena.workspace(box)
        program, own = f"{workspace}/id", os.stat(workspace)
        shutil.copy("/usr/bin/id", program)
        os.chown(program, own.st_uid + 1, own.st_gid)
        os.chmod(program, 0o4755)
        return bool((await box.run("/workspace/id", "-u")).stdout == "1\n")


@area.attack("open a device", NODEV, impossible=root_only)
async def device(arena: Arena) -> bool:
    """Where the writable layer lies on a base root the kernel too opens none: an overlay of another user namespace has none."""
    async with arena.plain(), arena.box() as box:
        path = f"{await arena.workspace(box)}/device"
        os.mknod(path, 0o20666, os.makedev(1, 5))
        os.chmod(path, 0o666)
        return await arena.inside(box, CHANGE.format("open('/workspace/device', 'rb').read(1)"))


# -- the caller's read-only files ------------------------------------------------------------------------------------------

READ_ONLY_FILES = area.defence(
    "mounted files are read only",
    patches=(
        Patch(
            STEPS,
            "self.keep_copy(&path, &path, sys::MS_RDONLY | sys::MS_NOSUID | sys::MS_NODEV, false)?",
            "self.keep_copy(&path, &path, 0, false)?",
        ),
    ),
)
ABOVE = area.defence(
    "directories above mounted files are mounts",
    patches=(Patch(STEPS, "if pinned.insert(at.clone()) && self", "if pinned.insert(at.clone()) && false && self"),),
)
FILES = (MountedFile(path="/data/deep/tests.json", content=b"the truth"),)
area.program(
    "write into a read-only file",
    "import os\npath = '/data/deep/tests.json'\n"
    "try:\n    os.chmod(path, 0o666)\n    open(path, 'w').write('lies')\nexcept OSError: pass\n"
    "print(open(path).read() == 'lies')",
    READ_ONLY_FILES,
    box={"mounted_files": FILES},
)
area.program(
    "put another file under the path of a read-only one",
    "import os\ntry:\n    os.rename('/data/deep', '/data/away')\n    os.mkdir('/data/deep')\n"
    "    open('/data/deep/tests.json', 'w').write('lies')\nexcept OSError: pass\n"
    "print(open('/data/deep/tests.json').read() == 'lies')",
    ABOVE,
    box={"mounted_files": FILES},
)


@area.attack("have a file of the machine read by its link", OLD_ROOT)
async def by_link(arena: Arena) -> bool:
    """Files are read and listed by process 1, whose root is the sandbox's own."""
    with of_the_machine() as path:
        async with arena.box() as box:
            await box.sh(f"ln -s /..{path} result; ln -s /..{os.path.dirname(path)} folder")
            found = []
            for call in (box.get("result"), box.get("folder/secret"), box.link.list_files("folder")):
                try:
                    found.append(await call)
                except SandboxFileError as error:
                    assert error.reason == "no_such_file"
            return bool(found)
