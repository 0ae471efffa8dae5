"""Values of secrets: where the server could leave them, and whom it could give them to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.attacks.pairs.callers import server
from tests.attacks.registry import Area, Arena, Patch

area = Area(__name__)
SECRETS = "server/service/secrets.py"
VALUE = "value-of-a-secret"

TAKEN = area.defence(
    "the server's variables are taken out of its environment",
    patches=(Patch(SECRETS, "environment.pop(variable) for", "environment[variable] for"),),
)
LISTED = area.defence(
    "the zygote gets listed variables",
    patches=(Patch("server/backends/local/zygote.py", "env=_ENVIRONMENT,", "env=os.environ,"),),
)
WIPED = area.defence(
    "the server's variables are overwritten",
    patches=(Patch(SECRETS, "        wipe_variables(SECRET_PREFIX)\n", "        pass\n"),),
)
INSIDE = area.defence(
    "files of secrets are in their directory",
    patches=(Patch(SECRETS, "    if os.path.commonpath((top, path)) != top:\n", "    if False:\n"),),
)
PLAIN = area.defence(
    "names of secrets are plain",
    patches=(
        Patch("options.py", '''SECRET_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"''', '''SECRET_NAME = r"^.{1,128}$"'''),
    ),
)


@contextmanager
def serving(arena: Arena) -> Iterator[Any]:
    """A server with a variable and a directory of secrets, and with files beside this."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        top = Path(directory) / "secrets"
        top.mkdir()
        (Path(directory) / "private").write_text(VALUE)
        (top / "other").write_text("another")
        (top / "link").symlink_to("../private")
        with server(arena, environment={"AVIATO_SECRET_TOKEN": VALUE}, secrets_dir=top) as running:
            yield running


def processes_below(pid: int) -> Iterator[Path]:
    """All that a process started, and what these did."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield Path(f"/proc/{child}")
            yield from processes_below(child)


def has(process: Path) -> bool:
    try:
        return VALUE.encode() in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
    except OSError:
        return False  # It has ended, or is undumpable.


@area.attack("find a secret in what the server starts", TAKEN, LISTED)
async def in_others(arena: Arena) -> bool:
    with serving(arena) as running:
        await gets(running.url, "other")
        found = list(processes_below(running.pid))
        assert found
        return any(map(has, found))


@area.attack("find a secret in what the server was started with", WIPED)
async def in_the_server(arena: Arena) -> bool:
    with serving(arena) as running:
        await gets(running.url, "other")  # It listens before it has begun.
        return has(Path(f"/proc/{running.pid}"))


async def gets(url: str, name: str) -> bool:
    """Whether a sandbox gets the value by this name. A request by hand: the client refuses bad names itself."""
    import aiohttp

    from aviato.wire.ids import new_exec_id, new_sandbox_id

    connector = aiohttp.UnixConnector(url.removeprefix("unix://"))
    async with aiohttp.ClientSession(connector=connector, base_url="http://localhost") as session:
        sandbox_id = new_sandbox_id()
        wanted = [{"store": "file", "name": name, "env_var": "FOUND"}]
        body = {"sandbox_id": sandbox_id, "detached": True, "secrets": wanted}
        async with session.post("/v1/sandboxes", json=body) as response:
            if response.status != 201:
                return False
        command = {"exec_id": new_exec_id(), "command": ["sh", "-c", "echo $FOUND"]}
        async with session.post(f"/v1/sandboxes/{sandbox_id}/execs", json=command) as response:
            return VALUE.encode() in await response.read()


@area.attack("read a file of the server by a link among its secrets", INSIDE)
async def by_link(arena: Arena) -> bool:
    with serving(arena) as running:
        return await gets(running.url, "link")


@area.attack("read a file of the server by a path as a secret's name", INSIDE, PLAIN)
async def by_path(arena: Arena) -> bool:
    with serving(arena) as running:
        return await gets(running.url, "../private")
