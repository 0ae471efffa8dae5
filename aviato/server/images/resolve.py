"""From a reference to an image that the local backend can start."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxImageError
from aviato.server.images.interpreters import Interpreter, choose, choose_default
from aviato.server.images.oci_reference import parse_oci_reference
from aviato.server.images.reference import parse
from aviato.server.images.resolved import Came, ResolvedImage
from aviato.server.images.store import MOST_LAYERS
from aviato.system.threads import in_thread
from aviato.wire.ids import SNAPSHOT_ID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aviato.server.images.image_index import RecordedSnapshot
    from aviato.server.images.store import ImageStore
    from aviato.server.images.stored_image import Progress, UnpackedImage

NO_REGISTRY = "this server pulls from no registry"
ROOT_USERS = ("", "0", "root", "0:0", "root:root", "0:root", "root:0")
STRANGE = (
    "its files can be read, and others put in their place in the usual directories, but not changed, renamed or given "
    "to anybody; make the directory anew as this user (cp -r --preserve=mode,links), or start the server as root"
)
WRITABLE = (
    *("/", "/etc", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/usr/local", "/usr/local/bin"),
    *("/usr/local/lib", "/usr/local/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/tmp"),
)
"""Directories that programs write to, those above first."""
CANDIDATES = 3
LIKE = 0.6
MOST_REMEMBERED = 1024
"""References for which it is remembered what they mean."""
_VERSION = re.compile(r"python\D{0,3}3\.(\d{1,3})", re.ASCII | re.IGNORECASE)


class LocalImages:
    """What this machine has.

    Args:
        interpreters: of the machine, preferred ones first.
        registered: name → root directory, for `dir:NAME` (and `python:3.N`, where one is registered by that name).
        allow_any_directory: whether `dir:/absolute/path` is allowed too.

    Attributes:
        store: images of registries, layouts and archives; None: this server has none.
        has_users: whether sandboxes have other users than root.
    """

    def __init__(self, interpreters: list[Interpreter], registered: Mapping[str, Path], allow_any_directory: bool) -> None:
        self.store: ImageStore | None = None
        self.has_users = False
        self._interpreters = interpreters
        self._registered = registered
        self._allow_any_directory = allow_any_directory
        self._known: dict[str, tuple[UnpackedImage, ResolvedImage]] = {}

    def resolve(self, reference: str | None, fallback: str | None = None) -> ResolvedImage:
        """The image of a reference.

        Raises:
            SandboxImageError: there is none; the message names what there is.
        """
        parsed = parse(reference)
        if reference is not None and reference in self._registered:
            return self._directory(str(self._registered[reference]), reference)
        if parsed.kind == "host":
            if not parsed.value:
                default = choose_default(self._interpreters)
                return ResolvedImage(reference="host", kind="host", interpreter=default.executable if default else None)
            if (chosen := choose(self._interpreters, int(parsed.value), None)) is None:
                raise SandboxImageError(f"this machine has no Python 3.{parsed.value}{self._nearest(reference)}")
            return _machine(chosen)
        if (stored := self._find(reference, parsed.kind)) is not None:
            return self._stored(str(reference), stored)
        if parsed.kind == "python":
            return self._python(int(parsed.value), fallback)
        if parsed.kind == "name":
            if parsed.value not in self._registered:
                raise SandboxImageError(
                    f"image {reference!r} is not registered here (--image NAME=DIR){self._nearest(reference)}"
                )
            return self._directory(str(self._registered[parsed.value]), str(reference))
        if parsed.kind == "path":
            if not self._allow_any_directory:
                why = "this server starts registered directories only (--image NAME=DIR)"
                raise SandboxImageError(f"image {reference!r}: {why}{self._nearest(reference)}")
            return self._directory(parsed.value, str(reference))
        return self._to_be_fetched(str(reference))

    async def fetch(self, image: ResolvedImage) -> ResolvedImage:
        """An image that `resolve` did not find here, once it is.

        Raises:
            SandboxImageError: it cannot be had, and why; the message names what there is.
        """
        assert self.store is not None
        coming = _Coming()
        try:
            stored = await self.store.pull(image.reference, on_progress=coming.hear, on_begin=coming.begin)
            here = await in_thread(self.store.unpacked, stored.image_id)
            return replace(self._stored(image.reference, here or stored), came=coming.came())
        except SandboxImageError as error:
            raise self._with_nearest(error, image.reference) from error

    def _find(self, reference: str | None, kind: str) -> UnpackedImage | None:
        """An image of the store, for a reference that can mean one."""
        if self.store is None or reference is None or kind not in ("python", "other"):
            return None
        try:
            return self.store.unpacked(reference)
        except SandboxImageError as error:
            raise self._with_nearest(error, reference) from None

    def _with_nearest(self, error: SandboxImageError, reference: str) -> SandboxImageError:
        """The same, with its name and with what there is instead."""
        named = "" if reference in str(error) else f"image {reference!r}: "
        return SandboxImageError(
            f"{named}{error}{self._nearest(reference)}",
            reason=error.reason,
            retryable=error.retryable,
            retry_delay_seconds=error.retry_delay_seconds,
            is_infrastructure=error.is_infrastructure,
        )

    def _to_be_fetched(self, reference: str) -> ResolvedImage:
        if self.store is None:
            raise SandboxImageError(f"image {reference!r} is not here, and {NO_REGISTRY}{self._nearest(reference)}")
        if SNAPSHOT_ID.fullmatch(reference):
            message = f"snapshot {reference!r} is not here: it is another server's, was deleted, or has expired"
            raise SandboxImageError(message, reason="image_not_here")
        try:
            parse_oci_reference(reference)
        except SandboxImageError as error:
            raise self._with_nearest(error, reference) from None
        return ResolvedImage(reference=reference, kind="oci")

    def interpreter_at(self, executable: str | None) -> Interpreter | None:
        """The interpreter that a resolved image names."""
        return next((one for one in self._interpreters if one.executable == executable), None)

    def _python(self, minor: int, fallback: str | None) -> ResolvedImage:
        chosen = choose(self._interpreters, minor, fallback)
        if chosen is None:
            reference = f"python:3.{minor}"
            if self.store is not None:
                return ResolvedImage(reference=reference, kind="oci")
            remedy = "; AVIATO_IMAGE_FALLBACK=nearest accepts the nearest newer one"
            newer = fallback is None and choose(self._interpreters, minor, "nearest") is not None
            why = f"image {reference!r} is not here, and {NO_REGISTRY}{self._nearest(reference)}"
            raise SandboxImageError(why + (remedy if newer else ""))
        note = None
        if chosen.minor != minor:
            note = f"image 'python:3.{minor}' is not here; using the machine's Python {chosen.version} ({chosen.executable})"
        return replace(_machine(chosen), note=note)

    def _directory(self, path: str, reference: str) -> ResolvedImage:
        if not os.path.isdir(path):
            raise SandboxImageError(f"image {reference!r}: {path!r} is not a directory that the server can see")
        root = os.path.realpath(path)
        strange = _strange_directories(root) if os.geteuid() != 0 else ()
        note = None
        if strange:
            belongs = f"{strange[0][0]} of image {reference!r} belongs to uid {os.stat(root + strange[0][0]).st_uid}"
            note = f"{belongs}, not to this server's {os.geteuid()}: {STRANGE}"
        return ResolvedImage(reference=reference, kind="dir", layers=(root,), strange=strange, note=note)

    def _stored(self, reference: str, stored: UnpackedImage) -> ResolvedImage:
        """An image of the store. It is what it was as long as the store says the same of it."""
        known = self._known.get(reference)
        if known is not None and known[0] is stored:
            return known[1]
        if stored.snapshot is None:
            image = self._of_layers(reference, stored)
        else:
            image = self._snapshot(reference, stored, stored.snapshot)
            if stored.snapshot.base is not None and not image.is_host:
                return image  # A directory may be another one by now.
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[reference] = stored, image
        return image

    def _snapshot(self, reference: str, stored: UnpackedImage, snapshot: RecordedSnapshot) -> ResolvedImage:
        if snapshot.base is None:
            image = self._of_layers(reference, stored)
        else:
            # The name of the machine's own Python may mean an image of the store by now.
            below = self.resolve(snapshot.base if snapshot.interpreter is None else "host")
            image = self._over(below, reference, stored, snapshot.interpreter)
        return replace(
            image,
            reference=reference,
            image_id=stored.image_id,
            config=stored.config,
            owner=snapshot.owner,
            is_snapshot=True,
        )

    def _over(self, below: ResolvedImage, reference: str, stored: UnpackedImage, interpreter: str | None) -> ResolvedImage:
        """Layers of the store over what is this machine's own."""
        if not below.is_host:
            return replace(below, layers=(*stored.layers, *below.layers))
        if interpreter is not None and self.interpreter_at(interpreter) is None:
            raise SandboxImageError(f"image {reference!r} was made with the Python {interpreter}, which has gone")
        return replace(below, above=stored.layers, interpreter=interpreter, note=None)

    def _of_layers(self, reference: str, stored: UnpackedImage) -> ResolvedImage:
        if not 0 < len(stored.layers) <= MOST_LAYERS:
            message = f"image {reference!r} has {len(stored.layers)} layers; a sandbox can be made of 1 to {MOST_LAYERS}"
            raise SandboxImageError(message, reason="layers")
        note = None
        if not self.has_users and (user := stored.config.user or "") not in ROOT_USERS:
            note = f"image {reference!r} is made for the user {user!r}; its commands run as root here"
        return ResolvedImage(
            reference=reference,
            kind="oci",
            note=note,
            layers=stored.layers,
            top=stored.top,
            image_id=stored.image_id,
            config=stored.config,
            lacks_start=stored.lacks_start,
        )

    def _nearest(self, reference: str | None) -> str:
        """The end of a message: the images that are here and most like one that is not."""
        default = choose_default(self._interpreters)
        minors = sorted({one.minor for one in self._interpreters}, reverse=True)
        if default is not None:
            minors.sort(key=lambda minor: minor != default.minor)
        there = ["host", *(f"python:3.{minor}" for minor in minors), *_references(self._registered)]
        text = str(reference).lower()
        if (wanted := _VERSION.search(text)) is not None:
            there.sort(key=lambda name: _distance(name, int(wanted[1])))
        elif text.startswith("dir:"):
            there.sort(key=lambda name: not name.startswith("dir:"))
        else:
            there.sort(key=lambda name: SequenceMatcher(None, name, text).ratio() < LIKE)
        more = f" and {len(there) - CANDIDATES} more" if len(there) > CANDIDATES else ""
        without = "" if minors else "; this machine has no Python interpreter"
        return f"; there are {', '.join(there[:CANDIDATES])}{more}{without}"


def _machine(chosen: Interpreter) -> ResolvedImage:
    """The machine's files with one of its interpreters."""
    return ResolvedImage(reference=f"python:{chosen.version}", kind="host", interpreter=chosen.executable)


class _Coming:
    """What it takes to have an image come, where it is this call that begins it."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._done_bytes = 0

    def begin(self) -> None:
        self._began = time.monotonic()

    def hear(self, progress: Progress) -> None:
        self._done_bytes = progress.done_bytes

    def came(self) -> Came | None:
        return None if self._began is None else Came(time.monotonic() - self._began, self._done_bytes)


def _strange_directories(root: str) -> tuple[tuple[str, int], ...]:
    found = []
    for path in WRITABLE:
        try:
            seen = os.lstat(root + path)
        except OSError:
            continue
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid != os.geteuid():
            found.append((path, stat.S_IMODE(seen.st_mode)))
    return tuple(found)


def _references(registered: Mapping[str, Path]) -> list[str]:
    """What registered directories are asked for by."""
    return [name if parse(name).kind == "python" else f"dir:{name}" for name in sorted(registered)]


def _distance(name: str, minor: int) -> tuple[int, int]:
    """How far an image is from a version of Python: the same, then near ones, newer ones first, then the rest."""
    parsed = parse(name)
    if parsed.kind != "python":
        return 1, 0
    away = int(parsed.value) - minor
    return 0, 2 * abs(away) - (away > 0)
