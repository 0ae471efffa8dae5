"""Which layers the pulls under way need: `pulls/RANDOM`, each locked by its pull for as long as that lives."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.images.file_locks import try_to_hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path


class Lease:
    """What one pull keeps. Both methods block for moments.

    Args:
        path: of its file.
        alone: keeps away whoever removes layers.
    """

    def __init__(self, path: Path, alone: Callable[[], AbstractContextManager[None]]) -> None:
        self._path = path
        self._alone = alone
        self._fd: int | None = None

    def take(self, keys: set[str]) -> None:
        """Keep these layers, those that are there and those that come."""
        with self._alone():
            self._fd = try_to_hold(self._path)
            assert self._fd is not None, "nobody else knows a name that was drawn"
            os.write(self._fd, json.dumps(sorted(keys)).encode())

    def end(self) -> None:
        """Keep them no longer."""
        self._path.unlink(missing_ok=True)
        if self._fd is not None:
            os.close(self._fd)


class LayerLeases:
    """The leases of one store.

    Args:
        directory: of the store.
        alone: keeps whoever removes layers away while a lease is written, so that it sees all or the lease sees what it did.
    """

    def __init__(self, directory: Path, alone: Callable[[], AbstractContextManager[None]]) -> None:
        self._directory = directory / "pulls"
        self._alone = alone

    def new(self) -> Lease:
        """One that keeps nothing yet."""
        return Lease(self._directory / os.urandom(8).hex(), self._alone)

    def keys(self) -> set[str]:
        """The layers that somebody keeps; what dead pulls left is taken away. Only within `alone`."""
        kept: set[str] = set()
        for name in os.listdir(self._directory):
            path = self._directory / name
            fd = try_to_hold(path, make=False)
            if fd is not None:
                path.unlink(missing_ok=True)
                os.close(fd)
                continue
            with suppress(FileNotFoundError, ValueError):
                kept.update(json.loads(path.read_bytes()))
        return kept
