"""The layers that a store has: `layers/KEY/root` beside `layers/KEY/layer.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = "layer.json"
ROOT = "root"


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """What `layer.json` says.

    Attributes:
        diff_id: of the layer's tar.
        size_bytes: of its files.
        files: of any kind.
        implied: directories that the tar leaves out. With any, the layer is right only above those that it was made above.
    """

    diff_id: str
    size_bytes: int
    files: int
    implied: int


def read_layer(path: Path, diff_id: str) -> LayerDescription | None:
    """What a layer's description says; None if it is not there, or of another one."""
    described = _read(path)
    try:
        found = LayerDescription(**described)
    except TypeError:
        return None
    are_numbers = all(isinstance(one, int) for one in (found.size_bytes, found.files, found.implied))
    return found if found.diff_id == diff_id and are_numbers else None


def read_layer_size(path: Path) -> int:
    """The size of the files of whichever layer is there; 0 where that is not known."""
    size = _read(path).get("size_bytes")
    return size if isinstance(size, int) else 0


def describe_layer(path: Path, description: LayerDescription) -> None:
    """Write down which layer this is; its place is not yet where it is looked for."""
    (path / DESCRIPTION).write_text(json.dumps(asdict(description)))


def _read(path: Path) -> dict[str, Any]:
    try:
        described = json.loads((path / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}
