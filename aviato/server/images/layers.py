"""The layers that a store has: `layers/KEY/root` beside `layers/KEY/layer.json`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = "layer.json"
ROOT = "root"


def read_layer(path: Path, diff_id: str) -> int | None:
    """The size of a layer's files; None if it is not there or another one."""
    described = _read(path)
    size = described.get("size_bytes")
    return size if described.get("diff_id") == diff_id and isinstance(size, int) else None


def read_layer_size(path: Path) -> int:
    """The size of the files of whichever layer is there; 0 where that is not known."""
    size = _read(path).get("size_bytes")
    return size if isinstance(size, int) else 0


def describe_layer(path: Path, diff_id: str, size_bytes: int, files: int) -> None:
    """Write down which layer this is; its place is not yet where it is looked for."""
    (path / DESCRIPTION).write_text(json.dumps({"diff_id": diff_id, "size_bytes": size_bytes, "files": files}))


def _read(path: Path) -> dict[str, Any]:
    try:
        described = json.loads((path / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}
