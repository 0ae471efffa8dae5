"""The layers that a store has: `layers/KEY/root` beside `layers/KEY/layer.json`."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aviato.server.images.bounded_json import known_fields
from aviato.server.images.image_errors import disk_error

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = "layer.json"
ROOT = "root"


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """What `layer.json` says.

    Attributes:
        diff_id: of the layer's tar.
        size_bytes: of its files; None: nobody has counted them.
        files: of any kind; None likewise.
        implied: directories that the tar leaves out. With any, the layer is right only above those that it was made above.
        says_top: whether the tar says how the top itself is to be, or it is as any other.
    """

    diff_id: str
    size_bytes: int | None
    files: int | None
    implied: int
    says_top: bool = False


def read_layer(path: Path, diff_id: str) -> LayerDescription | None:
    """What a layer's description says; None if it is not there, damaged, or of another one.

    Raises:
        SandboxImageError: it cannot be read now. Here and below, that is no reason to take the layer for another one.
    """
    described = known_fields(LayerDescription, _read(path))
    try:
        found = LayerDescription(**described)
    except TypeError:
        return None
    counts = [one for one in (found.size_bytes, found.files) if one is not None]
    are_numbers = all(isinstance(one, int) for one in (*counts, found.implied))
    return found if found.diff_id == diff_id and are_numbers else None


def read_layer_size(path: Path) -> int | None:
    """The size of the files of whichever layer is there; None where that is not known."""
    size = _read(path).get("size_bytes")
    return size if isinstance(size, int) else None


def says_other_top(path: Path) -> bool | None:
    """Whether a layer makes the root another one than sandboxes have by themselves; None where it says nothing of that."""
    if _read(path).get("says_top") is not True:
        return None
    found = os.lstat(path / ROOT)
    return (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) != (0o755, os.geteuid(), os.getegid())


def note_layer_size(path: Path, size_bytes: int, files: int) -> None:
    """Add to the description of a layer what was counted. It is replaced whole: others read it.

    Raises:
        OSError: the layer has gone, or the disk fails.
        ValueError: its description is damaged.
    """
    # What cannot be read now is no reason to forget which layer this is.
    described = {**json.loads((path / DESCRIPTION).read_bytes()), "size_bytes": size_bytes, "files": files}
    replacing = path / f"{DESCRIPTION}.{os.urandom(8).hex()}"
    try:
        replacing.write_text(json.dumps(described))
        os.replace(replacing, path / DESCRIPTION)
    finally:
        replacing.unlink(missing_ok=True)


def describe_layer(path: Path, description: LayerDescription) -> None:
    """Write down which layer this is; its place is not yet where it is looked for."""
    (path / DESCRIPTION).write_text(json.dumps(asdict(description)))


def _read(path: Path) -> dict[str, Any]:
    try:
        described = json.loads((path / DESCRIPTION).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        raise disk_error(error, str(path / DESCRIPTION)) from error
    return described if isinstance(described, dict) else {}
