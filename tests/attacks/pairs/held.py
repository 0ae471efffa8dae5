"""What the kernel holds for a sandbox's processes, and has so much of for the whole machine."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from aviato.server.backends.local import bounds
from tests.attacks.pairs.limits import BUFFERS, KERNEL, MIB, takes_memory, unwatched
from tests.attacks.registry import Area, Arena

area = Area(__name__)
HOLD = "6"
"""Seconds for which a bomb keeps what it has. A look at so much takes process 1 a while, on a busy machine most of all."""

FILTERS = """
import ctypes, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
class Described(ctypes.Structure): _fields_ = [("count", ctypes.c_ushort), ("first", ctypes.c_void_p)]
one = lambda code, value: struct.pack("HBBI", code, 0, 0, value)
instructions = one(0x20, 0) + one(0x34, 3) * 4088 + one(0x06, 0x7FFF0000)  # Divisions are long where they are compiled.
kept = ctypes.create_string_buffer(instructions, len(instructions))
def fill():
    described = Described(len(instructions) // 8, ctypes.addressof(kept))
    while libc.prctl(22, 2, ctypes.byref(described), 0, 0) == 0: pass
"""
IN_PROCESSES = f"""{FILTERS}
read, write = os.pipe()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        fill()
        os.close(write)
        time.sleep(60)
os.close(write)
os.read(read, 1)  # All have as many as they may.
time.sleep(HOLD)
print(True)
"""
IN_THREADS = f"""{FILTERS}
def work():
    fill()
    done.wait()
    time.sleep(60)
done = threading.Barrier(int(sys.argv[1]) + 1)
threading.stack_size(1 << 17)
for _ in range(done.parties - 1): threading.Thread(target=work, daemon=True).start()
done.wait()
time.sleep(HOLD)
print(True, flush=True)
os._exit(0)
"""
TEXTS = """
import os, time
kept = []
for _ in range(3000):
    kept.append(os.open("/proc/self/mountinfo", os.O_RDONLY))
    os.read(kept[-1], 1)  # The kernel has made a text of it, and keeps the rest.
time.sleep(HOLD)
print(True)
"""
LOCKS = """
import fcntl, os, struct, time
for number in range(160):
    file = os.open(f"/tmp/{number}", os.O_RDWR | os.O_CREAT)
    for place in range(0, 2000, 2): fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, place, 1, 0))
time.sleep(HOLD)
print(True)
"""
NAMELESS = """
import os, time
for _ in range(20):
    kept = [os.memfd_create("none") for _ in range(1500)]
    if os.fork() == 0: time.sleep(60)
    for file in kept: os.close(file)
time.sleep(HOLD)
print(True)
"""
for _name, _source, _limit, _words in (
    ("filters of system calls", IN_PROCESSES, 60, ("40",)),
    ("texts of /proc", TEXTS, 60, ()),
    ("locks on parts of files", LOCKS, 40, ()),
    ("empty files in memory", NAMELESS, 60, ()),
):

    @area.attack(f"memory bomb of {_name}", KERNEL)
    async def kernel_memory(arena: Arena, source: str = _source, limit: int = _limit, words: tuple[str, ...] = _words) -> bool:
        return await takes_memory(arena, limit * MIB, source.replace("HOLD", HOLD), *words)


CLOSED = """
import socket, time
kept, total = [], 0
while total < 160 << 20 and len(kept) < 3000:
    SENDER
    near.setblocking(False)
    try:
        while True: total += near.send(bytes(32000))
    except BlockingIOError: pass
    near.close()
    kept.append(far)
time.sleep(HOLD)
print(total >= 160 << 20)
"""
WAITING = """
if not kept:
    far = socket.socket(socket.AF_UNIX)
    far.bind("\\0here")
    far.listen(4096)
near = socket.socket(socket.AF_UNIX)
near.connect("\\0here")
"""
ROUTES = """
import socket, struct, time
request, kept = struct.pack("=IHHIIBBHiII", 32, 18, 1, 1, 0, 0, 0, 0, 1, 0, 0), []
for _ in range(900):
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setblocking(False)
    for _ in range(100): kept[-1].send(request)  # Whose answers nobody reads.
time.sleep(HOLD)
print(True)
"""
UNREAD = {
    "Unix sockets that were closed": CLOSED.replace("SENDER", "near, far = socket.socketpair()"),
    "Unix datagrams of who has closed": CLOSED.replace("SENDER", "near, far = socket.socketpair(type=socket.SOCK_DGRAM)"),
    "closed connections that nobody accepts": CLOSED.replace("SENDER", WAITING.strip().replace("\n", "\n    ")),
    "answers about interfaces": ROUTES,
}
for _name, _source in UNREAD.items():

    @area.attack(f"memory bomb of {_name}", BUFFERS)
    async def unread(arena: Arena, source: str = _source) -> bool:
        return await takes_memory(arena, 80 * MIB, source.replace("HOLD", HOLD))


COMPILED = area.defence("filters of system calls are bounded", configuration=unwatched("filters"))
for _name, _source in {"processes": IN_PROCESSES, "threads": IN_THREADS}.items():

    @area.attack(f"fill the machine's room for compiled filters, in {_name}", COMPILED)
    async def filters(arena: Arena, source: str = _source) -> bool:
        with mock.patch.object(bounds, "LIMIT_FILTERS", 100):
            async with arena.box(limits={"processes": 100}) as box:
                result = await box.python(source.replace("HOLD", HOLD), "30")
                assert result.stdout or (result.returncode, "filters of system calls" in result.stderr) == (137, True)
                return bool(result.stdout == "True\n")


SOCKETS = """
import socket, time
def full(peer):
    peer.setblocking(False)
    try:
        while True: peer.send(bytes(8192))
    except BlockingIOError: pass
"""
ORPHANS = f"""{SOCKETS}
kept = []
listener = socket.socket(FAMILY)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
listener.bind((ADDRESS, 0))
listener.listen(1)
for _ in range(300):
    near = socket.socket(FAMILY)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    near.connect(listener.getsockname())
    kept.append(listener.accept()[0])
    full(near)
    near.close()  # What it has sent waits for a reader, on the kernel's account.
time.sleep(HOLD)
print(True)
"""
STREAMS = f"""{SOCKETS}
listener, kept, total = socket.create_server(("127.0.0.1", 0)), [], 0
for _ in range(20):
    kept.append((socket.create_connection(listener.getsockname()), listener.accept()[0]))
    full(kept[-1][0])
time.sleep(HOLD)
print(True)
"""
DATAGRAMS = f"""{SOCKETS}
kept = []
for _ in range(200):
    far, near = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    far.bind(("127.0.0.1", 0))
    near.connect(far.getsockname())
    for _ in range(200): near.send(bytes(8192))
    kept.append(far)
time.sleep(HOLD)
print(True)
"""
HELD_BY_SOCKETS = {
    "orphans": (
        200,
        {
            "closed connections": ORPHANS.replace("FAMILY", "socket.AF_INET").replace("ADDRESS", "'127.0.0.1'"),
            "closed connections of version 6": ORPHANS.replace("FAMILY", "socket.AF_INET6").replace("ADDRESS", "'::1'"),
        },
    ),
    "tcp_bytes": (16 * MIB, {"bytes in connections": STREAMS}),
    "udp_bytes": (16 * MIB, {"bytes in datagrams": DATAGRAMS}),
}
for _kind, (_most, _sources) in HELD_BY_SOCKETS.items():
    _wall = area.defence(f"what the machine has for all sockets is bounded: {_kind}", configuration=unwatched(_kind))
    for _name, _source in _sources.items():
        for _memory in (None, 512 * MIB):
            _how = "" if _memory is None else ", where memory is asked for"

            @area.attack(f"use up the machine's {_name}{_how}", _wall)
            async def sockets(
                arena: Arena, kind: str = _kind, most: int = _most, source: str = _source, memory: int | None = _memory
            ) -> bool:
                facts = replace(arena.backend._facts, sockets=((kind, most),))
                with mock.patch.object(arena.backend, "_facts", facts):
                    asked = {} if memory is None else {"memory": memory}
                    async with arena.box(limits={"processes": 99, **asked}) as box:
                        result = await box.python(source.replace("HOLD", HOLD))
                        assert result.stdout or (result.returncode, "the sandbox's limit of" in result.stderr) == (137, True)
                        return bool(result.stdout == "True\n")
