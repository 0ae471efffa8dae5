"""Network namespaces that one sandbox after the other has: given again only where they cannot be told from new ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aviato.server.backends.local import native
from tests.real_backend import open_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces outside of a user namespace"),
    pytest.mark.skipif(native.load() is None, reason="there is no compiled part"),
]

# In a process of its own, since it goes from one namespace to another.
PRELUDE = """
import json, os, socket, struct, time
from aviato.server.backends.local import native
library = native.load()
proc = os.open("/proc", os.O_RDONLY)
here = lambda: os.stat("self/ns/net", dir_fd=proc).st_ino
LONG_ENOUGH = 0.2
HOME, kept = here(), []

def take(child=1):
    assert library.aviato_enter_network() == 1
    return here()

def give(child=1, rest=LONG_ENOUGH):
    library.aviato_leave_network(child)
    library.aviato_network_ended(child)
    assert here() == HOME
    time.sleep(rest)

def use(body, known=True, **how):
    '''The namespace that somebody had, and the one that the next gets. A known one was looked at before: its files are open.'''
    mine = take()
    if not known:
        library.aviato_leave_network(2)
        mine = take()
    kept.append(os.open("/proc/self/ns/net", os.O_RDONLY))  # so that no other one gets its number
    held = body()
    give(**how)
    return mine, take(), held
"""
SEND = "s = socket.socket({family}, socket.SOCK_DGRAM); s.sendto(b'x', ({address!r}, 9)); s.close()"
JOIN = "with socket.socket(socket.AF_{family}, socket.SOCK_DGRAM) as s: s.setsockopt(socket.{what}, {group})"
USES = {
    "UDP": SEND.format(family="socket.AF_INET", address="127.0.0.1"),
    "UDP over IPv6": SEND.format(family="socket.AF_INET6", address="::1"),
    "to where no way leads": (
        "try:\n        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))\n    except OSError: pass"
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


def run(program):
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("known", [True, False])
def test_one_that_nobody_used_is_had_again(known):
    first, second, lo = run(f"""
first, second, _ = use(lambda: None, known={known})
print(json.dumps([first, second, socket.socket().connect_ex(("127.0.0.1", 9))]))
""")
    assert first == second
    assert lo == 111  # refused, so the loopback is there


def test_sockets_that_are_gone_without_a_trace_do_no_harm():
    first, second = run("""
def body():
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        socket.socket(family).close()
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 8080))
        listener.listen()
        abstract.bind("\\0name")
print(json.dumps(use(body)[:2]))
""")
    assert first == second


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("how", USES)
def test_one_in_which_something_was_sent_is_not(how, known):
    first, second = run(f"def body():\n    {USES[how]}\nprint(json.dumps(use(body, known={known})[:2]))")
    assert first != second


@pytest.mark.parametrize("how", USES)
def test_one_that_has_just_ended_is_not_looked_at(how):
    """A group that was joined and left shows a moment later."""
    first, second = run(f"def body():\n    {USES[how]}\nprint(json.dumps(use(body, rest=0)[:2]))")
    assert first != second


def test_when_somebody_looked_for_a_way_nobody_learns():
    """The kernel keeps a way of IPv4 that was found, for each processor, and tells its age."""
    first, second, ages = run("""
RTM_GETROUTE, RTA_DST, RTA_CACHEINFO = 26, 1, 12
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
def body():
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", 9))
processors = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(processors)})
first, second, _ = use(body, rest=1)
os.sched_setaffinity(0, processors)
print(json.dumps([first, second, ages()]))
""")
    assert first == second  # IPv4 alone is forgotten, and worth no new one.
    assert ages and max(ages) < 20


def test_one_with_a_socket_is_not_until_that_is_gone():
    first, second, third = run("""
first, second, held = use(lambda: socket.socket(socket.AF_UNIX))
held.close()
give()
print(json.dumps([first, second, take()]))
""")
    assert first != second
    assert third == first


def test_one_whose_socket_stays_is_given_up():
    first, after = run("""
first, second, held = use(lambda: socket.socket(socket.AF_UNIX))
library.aviato_leave_network(1)
time.sleep(1)
after = [take() for _ in range(3)]
held.close()
print(json.dumps([first, after]))
""")
    assert first not in after


def test_the_files_of_one_that_was_looked_at_stay_open():
    """Where nothing can be opened any more it is had again, and no other one."""
    first, second, third, other = run("""
first, second, _ = use(lambda: None)
library.aviato_leave_network(1)
take()
library.aviato_leave_network(2)
for child in (1, 2):
    library.aviato_network_ended(child)
time.sleep(LONG_ENOUGH)
os.chroot("/sys")
third = take()
library.aviato_leave_network(1)
print(json.dumps([first, second, third, library.aviato_enter_network()]))
""")
    assert first == second == third
    assert other == 0


@pytest.mark.parametrize(
    "harm",
    [
        "taker.recv(1)",
        "taker.recv(1), giver.send(b'1234')",
        "taker.recv(1), socket.send_fds(giver, [struct.pack('I', 3)], [proc])",
        "taker.recv(1), socket.send_fds(giver, [b'1'], [proc] * 8)",
    ],
)
def test_where_its_open_files_are_lost_others_are_opened(harm):
    """Nothing of the kind is known to happen: a kernel may refuse to keep them."""
    first, second, third, sent = run(f"""
is_socket = lambda fd: os.path.realpath(f"/proc/self/fd/{{fd}}").find("/socket:") >= 0
sockets = lambda: [int(fd) for fd in os.listdir("/proc/self/fd") if is_socket(fd)]
def lose():
    giver, taker = (socket.socket(fileno=os.dup(fd)) for fd in sorted(sockets()))
    {harm}
    giver.close(), taker.close()
first, second, _ = use(lambda: None)
lose()
give()
third = take()
{SEND.format(family="socket.AF_INET", address="127.0.0.1")}
lose()
give()
print(json.dumps([first, second, third, take()]))
""")
    assert first == second == third != sent


def test_one_that_is_given_up_goes_with_its_open_files():
    """A kernel that allows few has room for the next one."""
    assert run("""
import ctypes
unshare = ctypes.CDLL(None).unshare
ids = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
CLONE_NEWUSER, CLONE_NEWNET = 1 << 28, 1 << 30
assert unshare(CLONE_NEWUSER) == 0
for name, text in ids.items():
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
assert unshare(CLONE_NEWNET) == 0
HOME = here()
with open("/proc/sys/user/max_net_namespaces", "w") as file:
    file.write("4")
for _ in range(6):
    deadline = time.monotonic() + 10
    while library.aviato_enter_network() != 1:  # until the kernel has taken away those before
        assert time.monotonic() < deadline
        time.sleep(0.05)
    mine = here()
    give()
    assert take() == mine
    with socket.socket(type=socket.SOCK_DGRAM) as s:
        s.sendto(b"x", ("127.0.0.1", 9))
    give()
print(1)
""")


def test_many_that_live_at_once_hold_few_descriptors():
    before, after, rested, again, dropped = run("""
count = lambda: len(os.listdir("/proc/self/fd"))
def have(many):
    for child in range(many):
        take()
        library.aviato_leave_network(child)
def end(many):
    for child in range(many):
        library.aviato_network_ended(child)
    rested.append(count())
    time.sleep(LONG_ENOUGH)
rested = []
take(); give()
before = count()
have(200)
after = count()
end(200)
for _ in range(3):
    have(40)
    again = count()
    end(40)
while library.aviato_drop_networks() != -1:
    time.sleep(0.1)
print(json.dumps([before, after, rested, again, count()]))
""")
    pairs = 2 * 32
    assert after - before <= 64 + 24 + pairs
    assert rested[0] - before <= 24 + pairs
    assert 40 + 2 * 20 <= again - before <= 64 + 24 + pairs
    assert max(rested) - before <= 24 + pairs
    assert dropped <= before


async def test_a_sandbox_has_its_own_while_it_lives_and_never_one_that_was_used(anyio_backend, boxes):
    show = ("sh", "-c", "readlink /proc/self/ns/net; grep -c . /proc/net/if_inet6; grep Udp: /proc/net/snmp | tail -1")
    async for backend in open_by("compiled"):
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
    """How many a template holds."""
    folder = Path(f"/proc/{backend._template._process.pid}/fd")
    return sum(os.readlink(one).startswith("net:") for one in folder.iterdir())


async def test_a_template_that_nobody_asks_holds_none(anyio_backend, boxes):
    """But its own, and that of the child at hand."""
    async for backend in open_by("compiled"):
        for _ in range(3):
            async with boxes.make_box(backend) as box:
                assert (await box.run("true")).returncode == 0
        assert held_by(backend) > 2
        async with asyncio.timeout(15):
            while held_by(backend) > 2:
                await asyncio.sleep(0.05)
        async with boxes.make_box(backend) as box:
            assert (await box.run("true")).returncode == 0
