"""`python -m aviato.bench.plans DIRECTORY COUNT`: what the local backend would ask its template for, in `DIRECTORY/plans`.

Each is the request for one sandbox with a place and an id of its own, its plan as system calls, with its size in front. The
backend is opened on that directory as a server opens it: with this machine's facts, filter and file systems.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

from aviato.exceptions import AviatoError
from aviato.server.backends.local.backend import LocalBackend

SIZE = struct.Struct("=Q")
UNFIT = "plans of this machine are not recorded: aviato was installed without a C compiler, or Linux is older than 5.12"


async def recorded(directory: Path, count: int) -> bytes:
    """So many.

    Raises:
        AviatoError: sandboxes cannot run here.
    """
    backend, plans = LocalBackend(directory), bytearray()
    await backend.open()
    try:
        image = backend.resolve_image(None)
        for _ in range(count):
            plan = await backend.recorded(image)
            if plan is None:
                sys.exit(UNFIT)
            plan += b"\0" * (-len(plan) % 8)
            plans += SIZE.pack(len(plan)) + plan
    finally:
        await backend.close()
    return bytes(plans)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    try:
        (where / "plans").write_bytes(asyncio.run(recorded(where, int(sys.argv[2]))))
    except AviatoError as error:
        sys.exit(str(error))
