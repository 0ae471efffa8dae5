"""`python -m aviato.promises.places`: the places there are on a state directory, as JSON.

The backend and the state directory are those of the `AVIATO_…` variables, as for a server, which must not run meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from aviato.server import machine
from aviato.server.configured_backend import configured_backend
from aviato.server.settings import load
from aviato.server.state_dir import StateDirectory


async def main() -> None:
    """Ask the backend, and print what it says."""
    machine.raise_open_files()
    settings = load({}, os.environ)
    backend = configured_backend(settings, StateDirectory(f"{settings.state_dir}/serve"))
    try:
        await backend.open()
        sys.stdout.write(json.dumps(await backend.place_ids()) + "\n")
    finally:
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
