"""Who is let in by a server, and whose sandboxes he sees."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aviato.server.connections import listening
from aviato.server.state_dir import StateDirectory
from tests.attacks.others import NOBODY, reached
from tests.attacks.registry import Area, Arena, Patch, root_only
from tests.server.conftest import fakes
from tests.server.test_tenants import Tenant, serving

area = Area(__name__)
_listen_unix = listening.listen_unix


def listen_to_all(path: str) -> socket.socket:
    """As the server's own, with another mode."""
    listener = _listen_unix(path)
    os.chmod(path, 0o666)
    return listener


@asynccontextmanager
async def serves(*limits: str) -> AsyncIterator[tuple[str, list[Tenant]]]:
    """A server with a backend of straw and so many keys: its folder, its own user and a tenant for each key."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        path.chmod(0o711)
        folder = StateDirectory(str(path / "state"))
        async with serving(folder, fakes.FakeBackend(), *limits) as (_, *tenants):
            yield folder.path, tenants
    finally:
        shutil.rmtree(path)


MODULE = "aviato.server.connections.guard"
MODE = area.defence("the server's socket is its user's", swaps={"tests.server.test_tenants.listen_unix": listen_to_all})
PEER = area.defence("who connects is looked at", swaps={f"{MODULE}.peer_uid": lambda transport: os.getuid()})
CALL = r"""
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(sys.argv[1])
        sock.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n")
        print(b" 200 " in sock.recv(9999))
    except OSError as error:
        print(error)
"""


@area.attack("use a server of another user's", MODE, PEER, impossible=root_only)
async def another_user(arena: Arena) -> bool:
    async with serves() as (folder, _):
        argv = [sys.executable, "-I", "-c", CALL, f"{folder}/sock", str(NOBODY)]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=250)
        return bool(done.stdout == "True\n")


CLOSED = area.defence(
    "a sandbox's directory is closed to other users",
    patches=(Patch("init/src/zygote.rs", "if passes { 0o710 } else { 0o700 }", "0o711"),),
)


@area.attack("read, change and run files of another user's sandbox", CLOSED, impossible=root_only)
async def files_of_another_user(arena: Arena) -> bool:
    async with arena.box() as box:
        await box.sh("umask 0; mkdir dir; echo secret > dir/file; cp /bin/true dir/program; chmod 6777 dir/program")
        where = await arena.workspace(box)
        found = await asyncio.to_thread(reached, f"{where}/dir")
        if found:
            assert {"list", "make", "enter"} <= {*found[f"{where}/dir"]}
            assert {"read", "write"} <= {*found[f"{where}/dir/file"]} and "run" in found[f"{where}/dir/program"]
        return bool(found)


OWN = area.defence(
    "a sandbox's directory is closed to its own id outside of its mount",
    patches=(Patch("init/src/zygote.rs", "let passes = is_another && !owner.is_mapped;", "let passes = is_another;"),),
)


@area.attack("be root of the machine by a set-uid program, once out of the namespaces", OWN, impossible=root_only)
async def own_program(arena: Arena) -> bool:
    """On the disk what belongs to root inside belongs to the machine's root."""
    async with arena.box() as box:
        await box.sh("mkdir dir; cp $(command -v id) dir/id; chmod 4755 dir/id")
        program = Path(await arena.workspace(box), "dir", "id")
        [place] = [path for path in program.parents if path.parent.name == "sandboxes"]
        uid = place.stat().st_gid

        def run() -> str:
            try:
                return subprocess.run(
                    [program, "-u"],
                    user=uid,
                    group=uid,
                    extra_groups=[],
                    capture_output=True,
                    text=True,
                    timeout=20,
                    check=False,
                ).stdout
            except PermissionError:
                return ""

        return (await asyncio.to_thread(run)).strip() == "0"


GUARD = f"{MODULE}.Guard"
KEYS = area.defence("a key is needed over TCP", swaps={f"{GUARD}._known_key": lambda guard, text: guard._keys[0]})
NAMES = area.defence("the name of the server is looked at", swaps={f"{GUARD}._is_ours": lambda guard, host: True})
PAGES = area.defence("pages of others are refused", swaps={f"{MODULE}._refuse_pages": lambda headers: None})
OWNERS = area.defence("a key sees what is its own", swaps={"aviato.server.callers.Caller.sees": lambda caller, owner: True})


async def let_in(**headers: str) -> bool:
    """Whether a request with the right key and these headers is answered."""
    async with serves("") as (_, (_, tenant)):
        tenant.headers |= headers
        status, _, _ = await tenant.ask("GET", "/v1/sandboxes")
        return bool(status == 200)


@area.attack("guess a key", KEYS)
async def guess(arena: Arena) -> bool:
    return await let_in(Authorization="Bearer av-1")


@area.attack("reach a server by a name that was bent to its address", NAMES)
async def rebinding(arena: Arena) -> bool:
    return await let_in(Host="evil.example")


@area.attack("have a browser ask for a page", PAGES)
async def page(arena: Arena) -> bool:
    return await let_in(Origin="http://evil.example")


@area.attack("have a browser ask for a page that a sandbox serves", PAGES)
async def page_of_a_sandbox(arena: Arena) -> bool:
    """It has the server's address, at another port."""
    return await let_in(Host="127.0.0.1:8700", Origin="http://127.0.0.1:40123")


@area.attack("have a browser ask for a picture", PAGES)
async def picture(arena: Arena) -> bool:
    return await let_in(**{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"})


@area.attack("see and stop the sandbox of another key", OWNERS)
async def tenant(arena: Arena) -> bool:
    async with serves("", "") as (_, (_, one, two)):
        sandbox_id = await one.running()
        listed: Any = await two.listed()
        found, _, _ = await two.ask("GET", f"/v1/sandboxes/{sandbox_id}")
        stopped, _, _ = await two.ask("POST", f"/v1/sandboxes/{sandbox_id}/stop", {})
        assert ({found, stopped}, listed) == ({404}, []) or arena.off
        return found < 300 and stopped < 300


RATE_LIMIT = area.defence("a key has a rate limit", swaps={f"{GUARD}._keep_rate": lambda guard, key, route: None})


@area.attack("ask more often than a key may", RATE_LIMIT)
async def pace(arena: Arena) -> bool:
    async with serves("requests-per-second=2") as (_, (_, tenant)):
        return all([(await tenant.ask("GET", "/v1/health"))[0] == 200 for _ in range(10)])
