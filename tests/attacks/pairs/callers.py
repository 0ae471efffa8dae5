"""Callers of a real server: what one does to another's sandboxes, and what the network does without a key."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aviato.wire.frames import FrameType, encode
from aviato.wire.ids import (
    derived_place_id,
    new_exec_id,
    new_lease_id,
    new_pool_id,
    new_reset_id,
    new_sandbox_id,
    new_snapshot_id,
)
from aviato.wire.images import BUILT
from aviato.wire.session import PIECE_BYTES, WHOLE, WINDOW_BYTES, encode_head, encode_opening
from tests.attacks.registry import Area, Arena, Patch
from tests.conftest import RunningServer, make_state_dir, remove, start_server

area = Area(__name__)

BY_PATH = area.defence(
    "routes look whose sandbox it is",
    patches=(
        Patch(
            "server/operations/table.py",
            "            call.service.registry.check(caller, sandbox_id)\n",
            "            pass\n",
        ),
    ),
)
LISTED = area.defence(
    "listings have a tenant's own",
    patches=(Patch("server/operations/sandboxes.py", "owners=call.caller.owners", "owners=None"),),
)
JOINED = area.defence(
    "creates join a tenant's own",
    patches=(Patch("server/service/sandboxes.py", " or not caller.sees(record.owner)", ""),),
)
SNAPSHOTS = area.defence(
    "a snapshot is an image for its tenant",
    patches=(Patch("server/service/images.py", "(image.is_snapshot and not caller.sees(image.owner)) or ", ""),),
)
BUILDS = area.defence(
    "names of steps of builds are a tenant's own",
    patches=(
        Patch(
            "server/callers.py",
            'if self.tenant is None or not reference.startswith(f"{BUILT}/"):',
            "if True:",
        ),
    ),
)
ANOTHER_PLACE = area.defence(
    "a sandbox that is reset goes on in another place",
    patches=(
        Patch(
            "server/service/resets.py",
            "            self._departures.reset(sandbox, place_id, image, secrets)\n",
            "            pass\n",
        ),
    ),
)
ITS_POOL = area.defence(
    "places of a pool are given to its key",
    patches=(
        Patch(
            "server/service/warm_pools.py",
            "pool is not None and pool.owner == sandbox.record.owner and ",
            "pool is not None and ",
        ),
    ),
)
NOBODY_S = area.defence(
    "ids of places are none of sandboxes",
    patches=(Patch("wire/sandboxes.py", "    sandbox_id: NewSandboxId\n", "    sandbox_id: SandboxId\n"),),
)
ENDED = area.defence(
    "leases end by their tenant",
    patches=(Patch("server/service/leases.py", "lease is not None and caller.sees(lease.owner)", "lease is not None"),),
)
ACKNOWLEDGED = area.defence(
    "acknowledgements are of a tenant's own",
    patches=(Patch("server/service/execs.py", "not caller.sees(record.owner) or record.let_go", "record.let_go"),),
)
SIZED = area.defence(
    "bodies have a limit",
    patches=(Patch("server/callers.py", "self.max_body_bytes is not None and size_bytes", "False and size_bytes"),),
)
SHARED = area.defence(
    "sandboxes have a number", patches=(Patch("server/service/sandboxes.py", "        self._check_share(caller)\n", ""),)
)
ALLOWED = area.defence(
    "secrets are allowed by name",
    patches=(
        Patch(
            "server/service/sandboxes.py",
            "            caller.check_secrets([(one.store, one.name) for one in request.secrets])\n",
            "",
        ),
    ),
)
CUT = area.defence(
    "who brings no key is cut off",
    patches=(Patch("server/connections/unauthenticated.py", " if one not in self._let_in and _is_tcp(one)]", " if False]"),),
)

CROWDED = area.defence(
    "connections are fewer than descriptors",
    patches=(Patch("server/connections/connection_limit.py", "return max(LEAST, open_files() // SHARE)", "return 1 << 30"),),
)

UNDER_WAY = area.defence(
    "requests of a tenant have a number",
    patches=(
        Patch(
            "server/session/session.py",
            "self.tenant is not None and self._under_way[self.tenant] > MOST_UNDER_WAY",
            "False",
        ),
    ),
)
EACH = area.defence(
    "each request of a session is let in",
    patches=(
        Patch(
            "server/session/session.py",
            'return await self._guard.caller(self.transport, self._headers, route, line.partition(" ")[2])',
            "return self._caller",
        ),
    ),
)
HELD = area.defence(
    "bodies that nobody reads have a limit",
    patches=(Patch("server/operations/bodies.py", "return held <= MOST_HELD_BYTES", "return True"),),
)
IN_HAND = area.defence(
    "bodies that are worked on count",
    patches=(
        Patch(
            "server/session/channel.py",
            "            self._held_bytes, self._in_hand = self._held_bytes - len(piece), len(piece)\n",
            "            self._held_bytes -= len(piece)\n"
            "            self._session.bodies.hold(str(caller.tenant), -len(piece))\n",
        ),
    ),
)
UNREAD = area.defence(
    "who reads no answers asks nothing more",
    patches=(
        Patch("server/session/session.py", "            self.transport.pause_reading()\n", "            pass\n"),
        Patch(
            "server/session/channel.py",
            "        while self._session.is_paused:\n            await self._session.drained()\n",
            "",
        ),
    ),
)

KEYS = """
mine
other
small max-body-bytes=1000
few max-sandboxes=2
poor secrets=OTHER*
narrow /v1/health
"""


@dataclass
class Place:
    """A server over TCP."""

    port: int
    pid: int

    def ask(self, key: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        named = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): text for name, text in headers.items()}}
        try:
            connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), named)
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if response.headers["Content-Type"] == "application/json" else data
        finally:
            connection.close()

    @property
    def mebibytes(self) -> int:
        """What the server has of memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20

    @contextmanager
    def session(self, key: str = "mine") -> Iterator[socket.socket]:
        """A connection that speaks frames."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(encode_opening({"Authorization": f"Bearer {key}"}))
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(4096)
            assert head.startswith(b"HTTP/1.1 101 "), head
            yield connection

    def running(self, key: str = "mine", **more: Any) -> str:
        """A sandbox of a key."""
        body = {"sandbox_id": new_sandbox_id(), **({} if "lease_id" in more else {"detached": True}), **more}
        assert self.ask(key, "POST", "/v1/sandboxes", body)[0] == 201
        path = f"/v1/sandboxes/{body['sandbox_id']}"
        assert self.ask(key, "GET", f"{path}?wait=running")[1]["status"] == "running"
        return str(body["sandbox_id"])


@contextmanager
def server(arena: Arena, **settings: Any) -> Iterator[RunningServer]:
    """A server of the build, in a process of its own."""
    with arena.programs(), ExitStack() as stack:
        state = make_state_dir()
        stack.callback(remove, state)
        running = start_server(state, **settings)
        stack.callback(running.stop)
        yield running


@contextmanager
def serving(arena: Arena, **variables: str) -> Iterator[Place]:
    """A server that knows `KEYS`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        keys = Path(directory) / "keys"
        keys.write_text(KEYS)
        with server(arena, environment=variables, port=0, api_key_file=keys) as running:
            yield Place(running.port(), running.pid)


def attack(name: str, *walls: str, **variables: str) -> Callable[[Callable[[Place], bool]], Any]:
    """Register one that is made from outside."""

    def register(run: Callable[[Place], bool]) -> Any:
        async def made(arena: Arena) -> bool:
            with serving(arena, **variables) as place:
                return run(place)

        return area.attack(name, *walls)(made)

    return register


@attack("read a file of another key's sandbox", BY_PATH)
def read(place: Place) -> bool:
    path = f"/v1/sandboxes/{place.running()}/files?path=/tmp/x"
    assert place.ask("mine", "PUT", path, b"of mine")[0] == 204
    return place.ask("other", "GET", path) == (200, b"of mine")


@attack("run a command in another key's sandbox", BY_PATH)
def run(place: Place) -> bool:
    path = f"/v1/sandboxes/{place.running()}/execs"
    return place.ask("other", "POST", path, {"exec_id": new_exec_id(), "command": ["true"]})[0] == 200


@attack("find another key's sandboxes", LISTED)
def find(place: Place) -> bool:
    sandbox_id = place.running(tags=["t"])
    return sandbox_id in json.dumps(place.ask("other", "GET", "/v1/sandboxes?tag=t")[1])


@attack("join another key's sandbox", JOINED)
def join(place: Place) -> bool:
    return place.ask("other", "POST", "/v1/sandboxes", {"sandbox_id": place.running(), "detached": True})[0] == 200


@attack("end another key's sandboxes by their lease", ENDED)
def end(place: Place) -> bool:
    lease_id = new_lease_id()
    path = f"/v1/sandboxes/{place.running(lease_id=lease_id)}"
    place.ask("other", "DELETE", f"/v1/leases/{lease_id}")
    return bool(place.ask("mine", "GET", f"{path}?wait=ended&timeout_seconds=1")[1]["status"] == "terminated")


@attack("let go of another key's sandbox", ACKNOWLEDGED)
def let_go(place: Place) -> bool:
    """The next that wants a place would get its own."""
    sandbox_id = place.running("few", releasable=True, lease_id=new_lease_id())
    place.running("few")
    assert place.ask("other", "POST", "/v1/acknowledgements", {"execs": [], "let_go": [sandbox_id]})[0] == 204
    place.ask("few", "POST", "/v1/sandboxes", {"sandbox_id": new_sandbox_id(), "detached": True})
    info = place.ask("few", "GET", f"/v1/sandboxes/{sandbox_id}?wait=ended&timeout_seconds=1")[1]
    return bool(info["status_reason"] == "released")


@attack("send more than one's key may", SIZED)
def large(place: Place) -> bool:
    path = f"/v1/sandboxes/{place.running('small')}/files?path=/tmp/x"
    return place.ask("small", "PUT", path, b"x" * 10_000)[0] == 204


@attack("make more sandboxes than one's key may", SHARED)
def many(place: Place) -> bool:
    return all(
        place.ask("few", "POST", "/v1/sandboxes", {"sandbox_id": new_sandbox_id(), "detached": True})[0] == 201
        for _ in range(4)
    )


@attack("use a secret that one's key may not", ALLOWED, AVIATO_SECRET_TOKEN="of-the-server")
def secret(place: Place) -> bool:
    body = {"sandbox_id": new_sandbox_id(), "detached": True}
    wanted = [{"store": "env", "name": "TOKEN", "env_var": "TOKEN"}]
    if place.ask("poor", "POST", "/v1/sandboxes", {**body, "secrets": wanted})[0] != 201:
        return False
    command = {"exec_id": new_exec_id(), "command": ["sh", "-c", "echo $TOKEN"]}
    return b"of-the-server" in place.ask("poor", "POST", f"/v1/sandboxes/{body['sandbox_id']}/execs", command)[1]


@attack("hold all connections without a key", CUT, CROWDED)
def hold(place: Place) -> bool:
    """As many as there can be, and another whenever one has gone. Clients that are cut off come again."""
    resource.prlimit(place.pid, resource.RLIMIT_NOFILE, (256, 256))
    over = threading.Event()
    opened: list[float] = []

    def flood() -> None:
        with ExitStack() as stack:
            while not over.wait(0.003):
                with suppress(OSError):
                    stack.enter_context(socket.create_connection(("127.0.0.1", place.port), timeout=10))
                    opened.append(time.monotonic())

    holding = threading.Thread(target=flood)
    holding.start()
    try:
        begin = time.monotonic()
        # Twice as many as there can be, or all that the server accepts.
        while len(opened) < 512 and time.monotonic() - (opened[-1] if opened else begin) < 1.5:
            time.sleep(0.05)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(OSError, http.client.HTTPException):
                return place.ask("mine", "GET", "/v1/health")[0] != 200
            time.sleep(0.05)
        return True
    finally:
        over.set()
        holding.join()


def request(channel: int, line: str, body: bytes = b"", *, whole: bool = True, **headers: str) -> bytes:
    """A frame that opens a channel."""
    first = encode_head(line, {name.replace("_", "-"): text for name, text in headers.items()})
    return encode(FrameType.OPEN, first + body, stream=WHOLE * whole, channel=channel, offset=len(first))


@attack("have any number of requests under way", UNDER_WAY)
def wait(place: Place) -> bool:
    line = f"GET /v1/sandboxes/{place.running()}?wait=ended&timeout_seconds=30"
    with place.session() as session:
        session.sendall(b"".join(request(channel, line) for channel in range(1, 20_050)))
        # The last one is answered at once, or waits as all others do.
        session.settimeout(15)
        heard = b""
        with suppress(TimeoutError):
            while b"requests under way" not in heard:
                heard = heard[-100:] + session.recv(1 << 16)
        return b"requests under way" not in heard


@attack("ask over a session what one's key is not for", EACH)
def ask(place: Place) -> bool:
    with place.session("narrow") as session:
        session.sendall(request(1, "GET /v1/sandboxes"))
        return b"sandboxes" in session.recv(1 << 16).partition(b"200")[2]


@attack("begin with another key's snapshot", SNAPSHOTS)
def begin_with(place: Place) -> bool:
    mine, snapshot = new_sandbox_id(), new_snapshot_id()
    place.ask("mine", "POST", "/v1/sandboxes", {"sandbox_id": mine, "detached": True})
    status, taken = place.ask("mine", "PUT", f"/v1/sandboxes/{mine}/snapshots/{snapshot}", {})
    assert status == 200, taken
    body = {"sandbox_id": new_sandbox_id(), "detached": True, "image": snapshot}
    return place.ask("other", "POST", "/v1/sandboxes", body)[0] == 201


@attack("take the name of a step that another key has built", BUILDS)
def take_name(place: Place) -> bool:
    step = {"name": f"{BUILT}/{'0' * 40}:latest", "kind": "build"}
    for key in ("mine", "other"):
        status, taken = place.ask(key, "PUT", f"/v1/sandboxes/{place.running(key)}/snapshots/{new_snapshot_id()}", step)
        assert status == 200, taken
    body = {"sandbox_id": new_sandbox_id(), "detached": True, "image": step["name"]}
    return place.ask("mine", "POST", "/v1/sandboxes", body)[0] != 201


@attack("reset a sandbox to another key's snapshot", SNAPSHOTS)
def reset_to(place: Place) -> bool:
    mine, snapshot = place.running("mine"), new_snapshot_id()
    assert place.ask("mine", "PUT", f"/v1/sandboxes/{mine}/snapshots/{snapshot}", {})[0] == 200
    other = place.running("other")
    return place.ask("other", "PUT", f"/v1/sandboxes/{other}/resets/{new_reset_id()}", {"to": snapshot})[0] == 200


@attack("be there after a reset, as a file and as a daemon", ANOTHER_PLACE)
def be_there(place: Place) -> bool:
    path = f"/v1/sandboxes/{place.running()}"
    leave = "(trap '' TERM; while :; do date >/tmp/lives; sleep 0.02; done) >/dev/null 2>&1 </dev/null & echo x >/srv/left"
    place.ask("mine", "POST", f"{path}/execs", {"exec_id": new_exec_id(), "command": ["sh", "-c", leave]})
    assert place.ask("mine", "PUT", f"{path}/resets/{new_reset_id()}", {})[0] == 200
    look = {"exec_id": new_exec_id(), "command": ["sh", "-c", "sleep 0.2; cat /srv/left /tmp/lives && echo it is there"]}
    return b"it is there" in place.ask("mine", "POST", f"{path}/execs", look)[1]


@attack("begin with what another key's pool was warmed up with", ITS_POOL)
def take_of_pool(place: Place) -> bool:
    pool_id, warmup = new_pool_id(), [["sh", "-c", "hostname >/root/warm"]]
    kept = {"size": 1, "sandbox": {"sandbox_id": new_sandbox_id(), "warmup": warmup}}
    while place.ask("mine", "PUT", f"/v1/pools/{pool_id}", kept)[1]["ready"] < 1:
        time.sleep(0.02)
    # Its own warm-up would write its own name: any other is that of a place that was there before it was asked for.
    other = place.running("other", pool_id=pool_id, warmup=warmup)
    look = {"exec_id": new_exec_id(), "command": ["cat", "/root/warm"]}
    return other.encode() not in place.ask("other", "POST", f"/v1/sandboxes/{other}/execs", look)[1]


@attack("begin in the place that a reset of another's sandbox will have", NOBODY_S)
def be_in_place(place: Place) -> bool:
    sandbox_id = derived_place_id(place.running("mine"), new_reset_id())
    return place.ask("other", "POST", "/v1/sandboxes", {"sandbox_id": sandbox_id, "detached": True})[0] == 201


@attack("fill the server's memory with bodies that it does not read", HELD)
def fill(place: Place) -> bool:
    """It reads 64 MiB of a tenant's bodies at a time; the others wait, and what has come of them lies there."""
    before, most = place.mebibytes, 0
    with place.session() as session:
        for channel in range(1, 601):
            with suppress(OSError):
                session.sendall(request(channel, "POST /v1/sandboxes", whole=False, Content_Length=str(16 << 20)))
                for at in range(0, WINDOW_BYTES, PIECE_BYTES):
                    session.sendall(encode(FrameType.DATA, bytes(PIECE_BYTES), channel=channel, offset=at))
            most = max(most, place.mebibytes - before)
        return most > 480


@attack("fill the server's memory with input of a command that does not read it", IN_HAND)
def feed(place: Place) -> bool:
    """Each request's is passed on as there is room for it, and the command makes none."""
    sandbox_id, exec_id, before, most = place.running(), new_exec_id(), place.mebibytes, 0
    command = {"exec_id": exec_id, "command": ["sleep", "60"], "stdin": True}
    with place.session() as session:
        session.sendall(request(1, f"POST /v1/sandboxes/{sandbox_id}/execs", json.dumps(command).encode()))
        session.recv(1)  # It has begun.
        for channel in range(2, 152):
            with suppress(OSError):
                session.sendall(request(channel, f"POST /v1/sandboxes/{sandbox_id}/execs/{exec_id}/stdin", bytes(4_000_000)))
            most = max(most, place.mebibytes - before)
        return most > 480


@attack("fill the server's memory with answers that nobody reads", UNREAD)
def unread(place: Place) -> bool:
    before = place.mebibytes
    with place.session() as session:
        session.settimeout(2)
        with suppress(TimeoutError):
            for begin in range(1, 20_001, 100):
                session.sendall(b"".join(request(begin + n, "GET /v1/openapi.json") for n in range(100)))
        # A busy machine takes its time: it is over when nothing has been added for a while.
        most, grown_at = 0, time.monotonic()
        while most < 100 and time.monotonic() - grown_at < 5:
            time.sleep(0.05)
            if place.mebibytes - before > most:
                most, grown_at = place.mebibytes - before, time.monotonic()
        return most >= 100
