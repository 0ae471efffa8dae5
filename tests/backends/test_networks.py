"""Network namespaces that one sandbox after the other has: given again only where they cannot be told from new ones."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.real_backend import CARRIER, open_backend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces outside of a user namespace"),
]

PRELUDE = "import socket, struct\n"
SEND = "s = socket.socket({family}, socket.SOCK_DGRAM); s.sendto(b'x', ({address!r}, 9)); s.close()"
JOIN = "with socket.socket(socket.AF_{family}, socket.SOCK_DGRAM) as s: s.setsockopt(socket.{what}, {group})"
USES = {
    "UDP": SEND.format(family="socket.AF_INET", address="127.0.0.1"),
    "UDP over IPv6": SEND.format(family="socket.AF_INET6", address="::1"),
    "to where no way leads": (
        "try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))\nexcept OSError: pass"
    ),
    "a group joined and left": JOIN.format(
        family="INET", what="IPPROTO_IP, socket.IP_ADD_MEMBERSHIP", group="bytes((224, 1, 1, 1, 127, 0, 0, 1))"
    ),
    "a group of IPv6": JOIN.format(
        family="INET6",
        what="IPPROTO_IPV6, socket.IPV6_JOIN_GROUP",
        group="socket.inet_pton(socket.AF_INET6, 'ff02::1:99') + struct.pack('I', 1)",
    ),
    "only a way of IPv6 was looked for": "with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s: s.connect(('::1', 9))",
    "TCP, refused": "assert socket.socket().connect_ex(('127.0.0.1', 9))",
}
TRACELESS = """
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    socket.socket(family).close()
with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
    listener.bind(("127.0.0.1", 8080))
    listener.listen()
    abstract.bind("\\0name")
"""
AGES = """
RTM_GETROUTE, RTA_DST, RTA_CACHEINFO = 26, 1, 12
import os
def ages():
    asked = struct.pack("=8BI2H", socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0, 8, RTA_DST) + socket.inet_aton("127.0.0.1")
    found = []
    for processor in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {processor})
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as sock:
            sock.bind((0, 0))
            sock.send(struct.pack("=I2H2I", 16 + len(asked), RTM_GETROUTE, 1, 1, 0) + asked)
            answer = sock.recv(8192)[28:]
        while answer:
            size, kind = struct.unpack_from("=2H", answer)
            if kind == RTA_CACHEINFO:
                found.append(struct.unpack_from("=2I", answer, 4)[1])
            answer = answer[size + 3 & ~3:]
    return found
"""
SHOW = ("readlink", "/proc/self/ns/net")
LATER = 12
"""So many sandboxes after it have a network each."""


@pytest.fixture
async def backend(anyio_backend):
    async for opened in open_backend(CARRIER):
        yield opened


async def later(backend, boxes, source):
    """The network of a sandbox in which a program ran, and those of the ones after it; no other gets its number meanwhile."""
    async with boxes.make_box(backend) as box:
        result = await box.python(PRELUDE + source)
        assert (result.returncode, result.stderr) == (0, "")
        first = (await box.run(*SHOW)).stdout
        kept = os.open(f"/proc/{box.process_1}/ns/net", os.O_RDONLY)
    try:
        found = []
        for _ in range(LATER):
            await asyncio.sleep(0.05)  # A moment after a sandbox its network is looked at.
            async with boxes.make_box(backend) as box:
                found.append((await box.run(*SHOW)).stdout)
    finally:
        os.close(kept)
    return first, found


@pytest.mark.parametrize("source", ["", TRACELESS], ids=["nothing", "sockets without a trace"])
async def test_one_that_nobody_used_is_had_again(backend, boxes, source):
    first, found = await later(backend, boxes, source)
    assert first in found


@pytest.mark.parametrize("how", USES)
async def test_one_in_which_something_was_sent_is_not(backend, boxes, how):
    first, found = await later(backend, boxes, USES[how])
    assert first not in found


async def test_when_somebody_looked_for_a_way_nobody_learns(backend, boxes):
    """The kernel keeps a way of IPv4 that was found, for each processor, and tells its age."""
    looked = "s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9)); s.close()\n"
    async with boxes.make_box(backend) as box:
        assert (await box.python(PRELUDE + looked)).returncode == 0
        await asyncio.sleep(1)
    for _ in range(LATER):
        async with boxes.make_box(backend) as box:
            result = await box.python(PRELUDE + AGES + "print(max(ages(), default=0))")
            assert int(result.stdout) < 20, result.stderr


async def test_a_sandbox_has_its_own_while_it_lives_and_never_one_that_was_used(anyio_backend, boxes):
    show = ("sh", "-c", "readlink /proc/self/ns/net; grep -c . /proc/net/if_inet6; grep Udp: /proc/net/snmp | tail -1")
    async for backend in open_backend(CARRIER):
        seen = []
        async with boxes.make_box(backend) as one, boxes.make_box(backend) as two:
            assert (await one.run(*show)).stdout != (await two.run(*show)).stdout
        for number in range(12):
            async with boxes.make_box(backend) as box:
                network, interfaces, counted = (await box.run(*show)).stdout.splitlines()
                assert interfaces == "1"
                assert set(counted.split()[1:]) == {"0"}
                seen.append(network)
                if number % 2:
                    sent = "import socket; print(socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9)))"
                    assert (await box.python(sent)).stdout == "1\n"
            await asyncio.sleep(0.03)
        assert len(set(seen)) < len(seen)


def held_by(backend):
    """How many a zygote holds."""
    folder = Path(f"/proc/{backend._zygote._process.pid}/fd")
    return sum(_target(one).startswith("net:") for one in folder.iterdir())


def _target(link):
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""  # It has just been closed.


async def test_a_zygote_that_nobody_asks_holds_none(anyio_backend, boxes):
    """But its own, and that of the child at hand."""
    async for backend in open_backend(CARRIER):
        for _ in range(3):
            async with boxes.make_box(backend) as box:
                assert (await box.run("true")).returncode == 0
        assert held_by(backend) > 2
        async with asyncio.timeout(60):
            while held_by(backend) > 2:
                await asyncio.sleep(0.05)
        async with boxes.make_box(backend) as box:
            assert (await box.run("true")).returncode == 0
