"""`python -m aviato.bench.plans DIRECTORY COUNT`: what the local backend would ask its zygote for, in `DIRECTORY/plans`.

Each line is the request for one sandbox with a place and an id of its own. The backend is opened on that directory as a server
opens it: with this machine's facts, filter and file systems.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aviato.exceptions import AviatoError
from aviato.server.backends.local.backend import LocalBackend


async def recorded(directory: Path, count: int) -> bytes:
    """So many.

    Raises:
        AviatoError: sandboxes cannot run here.
    """
    backend = LocalBackend(directory)
    await backend.open()
    try:
        image = backend.resolve_image(None)
        return b"".join([await backend.recorded(image) + b"\n" for _ in range(count)])
    finally:
        await backend.close()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    try:
        (where / "plans").write_bytes(asyncio.run(recorded(where, int(sys.argv[2]))))
    except AviatoError as error:
        sys.exit(str(error))
