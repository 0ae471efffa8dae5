"""Which images a store has and what they are called: `images/IMAGE_ID.json` and `names.json`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from aviato.server.images.bounded_json import known_fields
from aviato.server.images.file_locks import locked
from aviato.server.images.image_config import ImageConfig
from aviato.server.images.image_errors import disk_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RecordedLayer:
    """One layer of an image.

    Attributes:
        key: the name of its directory below `layers`.
        size_bytes: of its files; None: nobody had counted them, see `LayerSizes`.
    """

    key: str
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class RecordedSnapshot:
    """What makes an image a snapshot.

    Attributes:
        snapshot_id: its name.
        sandbox_id: whose writable layer is the uppermost layer.
        image: that the sandbox was made of, as its record has it.
        owner: the tenant who has it; None: the server's own user.
        base: what of this machine lies below its layers, as a reference; None: nothing does.
        interpreter: of `host` below, the Python that `python` means.
        expires_at: when it goes, in seconds since the epoch; None: when somebody removes it.
        name: that its maker gave it.
        kind: a `fork` is what children began with, and can be named as long as one of them lives; a `build` is a step of one.
    """

    snapshot_id: str
    sandbox_id: str
    image: str
    owner: str | None = None
    base: str | None = None
    interpreter: str | None = None
    expires_at: float | None = None
    name: str | None = None
    kind: Literal["snapshot", "fork", "build"] = "snapshot"


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """What the store writes down of an image.

    Attributes:
        image_id: `sha256:HEX` of its configuration.
        digests: of manifests and indexes that led to it.
        layers: the lowest first.
        config: what it says of commands.
        architecture: as OCI names it.
        created_at: in seconds since the epoch, as the image says.
        pulled_at: in seconds since the epoch.
        pinned: it stays, whatever is pruned.
        snapshot: of an image that is one.
    """

    image_id: str
    digests: tuple[str, ...]
    layers: tuple[RecordedLayer, ...]
    config: ImageConfig
    architecture: str
    created_at: float | None
    pulled_at: float
    pinned: bool = False
    snapshot: RecordedSnapshot | None = None


@dataclass(frozen=True, kw_only=True)
class Name:
    """What a name means.

    Attributes:
        image_id: the image.
        digest: of what the name meant when it was pulled: a manifest or an index.
    """

    image_id: str
    digest: str


class ImageIndex:
    """The records and names of one store. Files are replaced whole; one that is damaged counts as missing.

    What cannot be read for a moment does not: whatever reads raises SandboxImageError where the disk or this process fails.

    Args:
        directory: of the store.
    """

    def __init__(self, directory: Path) -> None:
        self._images = directory / "images"
        self._names = directory / "names.json"
        self._lock = directory / "lock"
        self._new = directory / "new.json"
        self._read_names: _Remembered[dict[str, Name]] = _Remembered(_names_of, self._names)
        self._read_records: dict[str, _Remembered[ImageRecord]] = {}

    def alone(self) -> AbstractContextManager[None]:
        """Lets no other process change names, records or which layers are there. Blocks for moments."""
        return locked(self._lock)

    def path(self, image_id: str) -> Path:
        """Where an image's record lies."""
        return self._images / f"{image_id}.json"

    def names(self, *, anew: bool = False) -> dict[str, Name]:
        """All names; not to be changed. Who is about to write them reads them anew, whatever the file looks like."""
        return self._read_names.read(anew=anew) or {}

    def ids(self) -> list[str]:
        """All images, sorted."""
        try:
            files = os.listdir(self._images)
        except FileNotFoundError:
            return []
        return sorted(name[: -len(".json")] for name in files if name.endswith(".json"))

    def record(self, image_id: str) -> ImageRecord | None:
        """What is written down of an image; None if it is not here."""
        remembered = self._read_records.get(image_id)
        if remembered is None:
            remembered = self._read_records[image_id] = _Remembered(record_of, self.path(image_id))
        found = remembered.read()
        if found is None:
            self._read_records.pop(image_id, None)
        return found

    def records(self) -> list[ImageRecord]:
        """Those of all images."""
        return [found for image_id in self.ids() if (found := self.record(image_id)) is not None]

    def put(self, record: ImageRecord, *, waits: bool = True) -> None:
        """Write an image down. Only within `alone`.

        Args:
            record: of the image.
            waits: for the disk. A snapshot's files are not on it either before the kernel writes them, and it would write all
                of them first.
        """
        said = asdict(record)
        if not record.config.shell:
            del said["config"]["shell"]  # To a server that does not know it, the record would be damaged.
        self._replace(self.path(record.image_id), said, waits=waits)

    def pin(self, image_id: str, pinned: bool) -> bool:
        """Say whether it stays; False if it is not here. Only within `alone`."""
        record = self.record(image_id)
        if record is not None:
            self.put(replace(record, pinned=pinned))
        return record is not None

    def name(self, names: Iterable[str], meant: Name, *, waits: bool = True) -> None:
        """Let names mean an image, all at once: who finds it by one of them finds it by each. Only within `alone`.

        `waits` is as of `put`.
        """
        self._put_names({**self.names(anew=True), **dict.fromkeys(names, meant)}, waits=waits)

    def drop_names(self, gone: Iterable[str]) -> None:
        """Let names mean nothing. Only within `alone`."""
        without = set(gone)
        if without:
            self._put_names({name: meant for name, meant in self.names(anew=True).items() if name not in without})

    def _put_names(self, names: dict[str, Name], *, waits: bool = True) -> None:
        self._replace(self._names, {name: asdict(meant) for name, meant in sorted(names.items())}, waits=waits)

    def _replace(self, path: Path, value: Any, *, waits: bool) -> None:
        """A file of JSON, whole or not at all; where it waits for the disk, also when the machine stops.

        Only one process writes at a time, and what it leaves half written, if it is killed, the next one writes over.
        """
        with open(self._new, "wb") as file:
            file.write(json.dumps(value).encode())
            file.flush()
            if waits:
                os.fsync(file.fileno())
        os.replace(self._new, path)


def record_of(data: bytes) -> ImageRecord:
    """Read a record.

    Raises:
        ValueError, TypeError, LookupError: it is none.
    """
    raw = json.loads(data)
    config = raw.pop("config")
    for key in ("environment", "labels"):
        config[key] = tuple((name, value) for name, value in config[key])
    for key in ("entrypoint", "command", "shell"):
        config[key] = tuple(config.get(key, ()))
    layers = tuple(RecordedLayer(**known_fields(RecordedLayer, layer)) for layer in raw.pop("layers"))
    said = raw.pop("snapshot", None)
    snapshot = None if said is None else RecordedSnapshot(**known_fields(RecordedSnapshot, said))
    digests = tuple(raw.pop("digests"))
    config = ImageConfig(**known_fields(ImageConfig, config))
    return ImageRecord(**known_fields(ImageRecord, raw), digests=digests, layers=layers, config=config, snapshot=snapshot)


def _names_of(data: bytes) -> dict[str, Name]:
    return {name: Name(**known_fields(Name, meant)) for name, meant in json.loads(data).items()}


class _Remembered(Generic[_T]):
    """A file that was read, for as long as it is the same one."""

    def __init__(self, parse: Callable[[bytes], _T], path: Path) -> None:
        self._parse = parse
        self._path = str(path)
        self._kept: tuple[tuple[int, ...], _T] | None = None

    def read(self, *, anew: bool = False) -> _T | None:
        """Its value; None if there is none, or it is damaged.

        Raises:
            SandboxImageError: it cannot be read now.
        """
        try:
            kept = self._kept  # Each sandbox asks: to open the file costs more than all the rest.
            if kept is not None and not anew and kept[0] == _seen(os.stat(self._path)):
                return kept[1]
            with open(self._path, "rb") as file:
                seen = _seen(os.fstat(file.fileno()))
                value = self._parse(file.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, self._path) from error
        except (ValueError, TypeError, LookupError, AttributeError):
            return None
        self._kept = (seen, value)
        return value


def _seen(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_size
