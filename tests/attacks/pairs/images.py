"""Images that strangers packed: their layers, what they say they are, and who may have them pulled."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aviato.exceptions import SandboxImageError, SandboxUnavailableError
from aviato.server.backends.local import binary
from aviato.server.images.resolved import ResolvedImage
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackLimits
from aviato.server.images.unpacking import Unpacking
from aviato.wire.ids import new_sandbox_id
from tests.attacks.pairs.callers import serving
from tests.attacks.pairs.users import has_one_id
from tests.attacks.registry import Area, Arena, Patch, Steps
from tests.images.whole_images import make_layout, tar_of

area = Area(__name__)

LIMITS = UnpackLimits(most_bytes=1 << 20, most_files=1000)

# -- layers ------------------------------------------------------------------------------------------------------------------

UNFOLLOWED = area.defence(
    "no link of a layer is followed",
    patches=(
        Patch(
            "init/src/layer/places.rs",
            "let fd = sys::open_at(self.last(), part, directory::OPEN, 0)?;",
            "let fd = sys::open_at(self.last(), part, sys::O_RDONLY | sys::O_DIRECTORY, 0)?;",
        ),
    ),
)
MADE = area.defence(
    "what something is put into is a directory that was made here",
    patches=(
        Patch(
            "init/src/layer/unpack.rs",
            "made.map_err(|error| refusal(error, path))?;\n        let directory",
            "drop(made);\n        let directory",
        ),
    ),
)
BELOW = area.defence(
    "no name of a layer leads out",
    patches=(Patch("init/src/layer/places.rs", 'if part == b".." {', 'if part == b"..." {'),),
)
BOUNDED = area.defence(
    "a layer has a number of bytes",
    patches=(Patch("init/src/layer/unpack.rs", "if self.announced_bytes > self.limits.bytes {", "if false {"),),
)


async def unpacked(tar: bytes, into: Path, limits: UnpackLimits = LIMITS) -> bool:
    """Whether a layer becomes a directory."""

    async def pieces() -> AsyncIterator[bytes]:
        yield tar

    try:
        await Unpacking(binary.found)(pieces(), into, [], limits)
    except SandboxImageError:
        return False
    return True


@area.attack("write beside a layer, by a link", UNFOLLOWED, MADE)
async def linked(arena: Arena) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        outside, into = Path(folder, "outside"), Path(folder, "into")
        outside.mkdir()
        into.mkdir()
        await unpacked(tar_of({"x": str(outside), "x/stolen": b"x"}), into)
        return (outside / "stolen").exists()


@area.attack("write beside a layer, by a name", BELOW, MADE)
async def named(arena: Arena) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "into")
        into.mkdir()
        await unpacked(tar_of({"../stolen": b"x"}), into)
        return Path(folder, "stolen").exists()


@area.attack("fill the disk of the store", BOUNDED)
async def bomb(arena: Arena) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return await unpacked(tar_of({"large": os.urandom(2 << 20)}), Path(folder))


# -- what an image says it is --------------------------------------------------------------------------------------------------


class AnyDigest(str):
    """A digest that is any other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


ANY = property(lambda _: AnyDigest())
COMPRESSED = area.defence("a blob is what its digest says", swaps={"aviato.server.images.blobs._Part.digest": ANY})
CONTENT = area.defence("a layer is what its digest says", swaps={"aviato.server.images.blobs._Decompressed.digest": ANY})


@area.attack("give a layer of another's name other content", COMPRESSED, CONTENT)
async def swapped(arena: Arena) -> bool:
    """A layer is shared by its name: whoever could fill one would be in every image that has it."""
    with tempfile.TemporaryDirectory() as folder:
        layout = make_layout(Path(folder, "layout"), [tar_of({"honest": os.urandom(400).hex().encode()})], {})
        layer = next(path for path in (layout / "blobs" / "sha256").iterdir() if path.read_bytes()[:2] == b"\x1f\x8b")
        before = layer.read_bytes()
        changed = gzip.compress(tar_of({"honest": b"hostile"}), 1, mtime=0)
        # As long as the manifest says, by an empty member with a long name.
        name = b"x" * (len(before) - len(changed) - 21)
        layer.write_bytes(changed + b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + name + b"\0\x03\0" + bytes(8))
        store = ImageStore(Path(folder, "store"), Unpacking(binary.found))
        try:
            image = await store.pull(f"oci:{layout}")
        except SandboxImageError:
            return False
        return Path(image.layers[0], "honest").read_bytes() == b"hostile"


# -- links where the sandbox has files and mounts of its own -------------------------------------------------------------------


def entered_late(steps: Steps) -> Steps:
    """The sandbox's root is the uppermost mount at once, and the machine's lies on it until it is let go."""
    pivot = next(step for step in steps if step.operation == "pivot")
    rest = [step for step in steps if step.operation != "pivot"]
    at = [step.operation for step in rest].index("enter_root") + 1
    return (*rest[:at], pivot, *rest[at:])


ENTERED = area.defence("names of an image end in the sandbox's root", change=entered_late)
DIRECTORIES = area.defence(
    "what is mounted on is a directory, whatever an image has there",
    patches=(
        Patch(
            "init/src/confine.rs",
            "pairs(given, |path, mode| make_real_directory(path, word(Some(mode))?))",
            "pairs(given, |_, mode| word(Some(mode)).map(drop))",
        ),
    ),
)
MOST_DESCRIPTORS = 64
"""As many as a process has on its way to being process 1, about."""


@contextmanager
def machine_and_layer() -> Iterator[tuple[Path, Path]]:
    """A directory of the machine that everybody may write to, and a layer of an image."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        machine, layer = Path(folder, "machine"), Path(folder, "layer")
        layer.mkdir()
        machine.mkdir()
        machine.chmod(0o777)
        yield machine, layer


@area.attack("write to the machine, by an image's link at /etc", ENTERED)
async def written(arena: Arena) -> bool:
    with machine_and_layer() as (machine, layer):
        (layer / "etc").symlink_to(f"..{machine}")
        async with arena.box(image=ResolvedImage(reference="linked", kind="dir", layers=(str(layer),))):
            return bool(list(machine.iterdir()))


async def above(
    arena: Arena, layer: Path, link: str, target: str, got: Callable[[Any], Awaitable[bool]], **options: Any
) -> bool:
    """Whether a sandbox got it over whose files a layer has a link to what some descriptor of its making leads to."""
    image = replace(arena.backend.resolve_image("host"), above=(str(layer),))
    path = layer / link
    path.parent.mkdir(parents=True, exist_ok=True)
    # Which it is differs from one sandbox to the next, so who is unlucky has not seen it in one turn.
    for number in [*range(MOST_DESCRIPTORS)] * (8 if arena.off else 1):
        path.symlink_to(f"/proc/self/fd/{number}{target}")
        try:
            async with arena.box(image=image, **options) as box:
                if await got(box):
                    return True
        except SandboxUnavailableError as error:
            print(f"descriptor {number}: {error}")  # pytest shows it where the attack should have succeeded
        path.unlink()
    return False


@area.attack("make a directory of the machine, by a snapshot's link at /sys", DIRECTORIES)
async def made(arena: Arena) -> bool:
    with machine_and_layer() as (machine, layer):

        async def got(box: Any) -> bool:
            return bool(list(machine.iterdir()))

        # Also where the sandbox did not come into being: the directory was made before.
        return await above(arena, layer, "sys", str(machine), got, limits={"memory": 64 << 20}) or await got(None)


@area.attack("read a file of the machine, by a snapshot's link at /usr/local", DIRECTORIES)
async def local(arena: Arena) -> bool:
    with machine_and_layer() as (machine, layer):
        (machine / "secret").write_text("of the machine")

        async def got(box: Any) -> bool:
            return bool((await box.run("cat", f"/usr/local{machine}/secret")).stdout == "of the machine")

        return await above(arena, layer, "usr/local", "", got)


# -- who may have images pulled ----------------------------------------------------------------------------------------------

NO_PULLS = area.defence(
    "tenants have no images pulled",
    patches=(Patch("server/service/images.py", " or (not image.is_here and caller.tenant is not None)", ""),),
)


@area.attack("have the server call a host of its network", NO_PULLS)
async def called(arena: Arena) -> bool:
    def ask() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as listener, serving(arena) as place:
            listener.settimeout(5)
            image = f"127.0.0.1:{listener.getsockname()[1]}/internal/thing:1"
            place.ask("mine", "POST", "/v1/sandboxes", {"sandbox_id": new_sandbox_id(), "detached": True, "image": image})
            with suppress(TimeoutError):
                listener.accept()[0].close()
                return True
            return False

    return await asyncio.to_thread(ask)


# -- users ---------------------------------------------------------------------------------------------------------------------

AS_BEFORE = area.defence(
    "the number that means as before is none",
    patches=(Patch("init/src/accounts.rs", ".filter(|number| *number < u32::MAX)", ""),),
)
MAPPED = area.defence(
    "users have ids of the sandbox",
    patches=(Patch("init/src/accounts.rs", "if u64::from(number) >= ids {", "if false {"),),
)


@area.attack("be root in a command that is a user's", AS_BEFORE, MAPPED, impossible=has_one_id)
async def disguised(arena: Arena) -> bool:
    async with arena.box() as box:
        await box.sh("echo 'bob:x:4294967295:0::/:/bin/sh' > /etc/passwd")
        result = await box.run("id", "-u", user="bob")
        return bool(result.stdout == "0\n")
