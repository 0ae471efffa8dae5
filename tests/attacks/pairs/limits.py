"""Taking more than one's share of the machine."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import aviato
from aviato.server.backends.local.plan import Step
from aviato.wire.frames import FrameType
from tests.attacks.pairs.kernel import FAMILIES
from tests.attacks.programs import PRELUDE
from tests.attacks.registry import Area, Arena, Patch, Steps
from tests.backends.test_limits import BOMBS, DISK_BOMBS
from tests.conftest import make_state_dir, remove, start_server

area = Area(__name__)
MIB = 1 << 20
LIMITS, OF_MEMORY = "init/src/limits/mod.rs", "init/src/limits/memory.rs"
FOR_LONG = "0.7"
"""Seconds for which a bomb keeps what it has: longer than the pause between two looks."""


def without_limits(*names: str) -> Callable[[Steps], Steps]:
    """Limits of the kernel's that are not set."""

    def change(steps: Steps) -> Steps:
        return tuple(
            Step(operation, (tuple(limit for limit in arguments[0] if limit[0] not in names),), reason)
            if operation == "limits"
            else Step(operation, arguments, reason)
            for operation, arguments, reason in steps
        )

    return change


def unwatched(name: str) -> Callable[[dict[str, Any]], None]:
    """A limit that process 1 is not told of."""
    return lambda configuration: configuration["limits"].update({name: None})


def endless_groups(request: dict[str, Any]) -> None:
    """Control groups that allow anything."""
    for group in request["groups"]:
        kept = ("cpu.shares", "cpu.weight", "memory.swap.max", "cpu.cfs_period_us")
        group["files"] = [one for one in group["files"] if one[0] in kept]


def hard_limit(name: str, wanted: int) -> Callable[[Any], str | None]:
    """For `impossible`: the server itself may have no more."""

    def why(backend: Any) -> str | None:
        hard = resource.getrlimit(getattr(resource, name))[1]
        return f"{name} of this run is {hard}" if 0 <= hard < wanted else None

    return why


def no_groups(backend: Any) -> str | None:
    return None if backend._facts.groups else "this user can make no control groups here"


def ids_apart(backend: Any) -> str | None:
    return "sandboxes of root's server have ids of their own" if os.geteuid() == 0 else None


WATCHED = area.defence("memory is watched", configuration=unwatched("memory"))
GROUP = area.defence("control groups keep what was asked for", request=endless_groups)
DISK = area.defence("disk is watched", configuration=unwatched("disk"))
INODES = area.defence("inodes are watched", configuration=unwatched("inodes"))
COUNTS = area.defence("kernel's counts of the sandbox are bounded", steps=("kernel_counts",))


def memory_bomb(name: str, source: str, grouped: bool) -> None:
    how = "in control groups" if grouped else "watched"

    impossible = no_groups if grouped else lambda backend: None

    @area.attack(f"memory bomb that is {name}, {how}", GROUP if grouped else WATCHED, impossible=impossible)
    async def bomb(arena: Arena) -> bool:
        facts = arena.backend._facts
        with mock.patch.object(arena.backend, "_facts", facts if grouped else replace(facts, groups=())):
            async with arena.box(limits={"memory": 80 * MIB}) as box:
                result = await box.python(source.replace("WAIT", FOR_LONG))
                whole = result.stdout == "whole\n"
                assert whole or (result.returncode, result.exit["oom_killed"]) == (137, True)
                return whole


_NAMES = {"grows": "one process", "forked": "many processes", "mapped": "a shared mapping", "nameless": "a file without a name"}
for _name, _source in BOMBS.items():
    for _grouped in (True, False):
        memory_bomb(_NAMES.get(_name, "in /dev/shm"), _source, _grouped)

for _name, _source in DISK_BOMBS.items():

    @area.attack(f"disk bomb: {_name}", DISK)
    async def disk_bomb(arena: Arena, source: str = _source) -> bool:
        async with arena.box(limits={"disk": 24 * MIB}) as box:
            return bool((await box.python(source.replace("WAIT", "1.5"))).stdout == "whole\n")


SPARSE = """
import os, time
# Holes take no room; what is written into them does, wherever it is.
with open("sparse", "wb") as file:
    for number in range(48):
        file.seek(number << 24)
        file.write(b"x" * (1 << 20))
        file.flush()
time.sleep(WAIT)
print("whole")
"""
PASSED = """
import os, socket, time
# Written, without a name, and with no descriptor but one that is under way.
left, right = socket.socketpair()
file = open("gone", "wb")
os.unlink("gone")
for _ in range(48):
    file.write(b"x" * (1 << 20))
    file.flush()
    time.sleep(0.005)
time.sleep(WAIT)
print("whole")
"""
for _name, _source in {"into the holes of a sparse file": SPARSE, "open and removed": PASSED}.items():

    @area.attack(f"disk bomb: {_name}", DISK)
    async def more_disk(arena: Arena, source: str = _source) -> bool:
        async with arena.box(limits={"disk": 24 * MIB}) as box:
            return bool((await box.python(source.replace("WAIT", "1.5"))).stdout == "whole\n")


ROOM = """
import ctypes, os
fd = os.open("room", os.O_RDWR | os.O_CREAT)
if ctypes.CDLL(None).fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(1 << 30)) == 0: os.write(1, b"True")
"""


@area.attack("disk bomb: a GiB set aside at once", FAMILIES["preallocation"])
async def set_aside(arena: Arena) -> bool:
    """Long before anybody looks, which may happen to be in the very moment."""
    for _ in range(5):
        async with arena.box(limits={"disk": 24 * MIB}) as box:
            if (await box.python(ROOM)).stdout == "True":
                return True
    return False


@area.attack("inode bomb", INODES)
async def inodes(arena: Arena) -> bool:
    source = "import os, time\nfor n in range(2000): open(f'/tmp/{n}', 'w')\ntime.sleep(1.5)\nprint('whole')"
    async with arena.box(limits={"inodes": 1000}) as box:
        return bool((await box.python(source)).stdout == "whole\n")


# -- kept by the kernel ----------------------------------------------------------------------------------------------------

PROCESSES = area.defence("a number of processes", change=without_limits("nproc"))
FORKS = """
import os, signal, sys, time
for number in set(signal.valid_signals()) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)
children = []
try:
    for _ in range(60):
        pid = os.fork()
        if pid == 0: time.sleep(60)
        children.append(pid)
except OSError: pass
for pid in children: os.kill(pid, 9)
print(len(children) == 60)
"""
area.program(
    "fork bomb that ignores signals",
    FORKS,
    PROCESSES,
    box={"limits": {"processes": 20}},
    impossible=lambda backend: None if backend._facts.limit_processes else "this kernel counts a user's other processes",
)
area.program(
    "fork bomb in a control group",
    FORKS,
    PROCESSES,
    GROUP,
    box={"limits": {"processes": 20, "memory": 512 * MIB}},
    impossible=lambda backend: (
        no_groups(backend) or (None if "pids" in dict(backend._facts.groups) else "no group counts them")
    ),
)


@area.attack("more of the processors than allowed", GROUP, impossible=no_groups)
async def processors(arena: Arena) -> bool:
    """Whether it was never held up; how long it took tells more of who else is busy."""
    async with arena.box(limits={"cpu": 0.05}) as box:
        used = await box.python("import time\nwhile time.process_time() < 0.15: pass\nprint('used')")
        assert used.stdout == "used\n", used
        with open(f"{dict(arena.backend._facts.groups)['cpu']}/aviato-{box.id}/cpu.stat") as file:
            return file.read().split("nr_throttled")[1].split()[0] == "0"


area.program(
    "more open files than allowed",
    "import os, resource as r\nr.setrlimit(r.RLIMIT_NOFILE, (r.getrlimit(r.RLIMIT_NOFILE)[1],) * 2)\nkept = []\ntry:\n"
    "    while len(kept) < 5000: kept.append(os.open('/', 0))\nexcept OSError: pass\n"
    "print(len(kept) == 5000)",
    area.defence(
        "a number of open files",
        change=without_limits("nofile"),
        configuration=lambda told: told["limits"].update(open_files=None),
    ),
    impossible=hard_limit("RLIMIT_NOFILE", 6000),
)
area.program(
    "a file larger than allowed",
    "import os\nopen('big', 'w')\ntry: os.truncate('big', (4 << 30) + 1)\nexcept OSError: pass\n"
    "print(os.stat('big').st_size > 4 << 30)",
    area.defence("a size of files", change=without_limits("fsize")),
    impossible=hard_limit("RLIMIT_FSIZE", 5 << 30),
)
CORE = """
import os, resource, signal
try: resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
except (OSError, ValueError): pass
if os.fork() == 0: os.abort()
print(os.WCOREDUMP(os.wait()[1]))
"""


def no_core_file(backend: Any) -> str | None:
    with open("/proc/sys/kernel/core_pattern") as file:
        pattern = file.read()
    return "this machine pipes core dumps" if pattern.startswith("|") else hard_limit("RLIMIT_CORE", MIB)(backend)


area.program("leave a core dump", CORE, area.defence("no core dumps", change=without_limits("core")), impossible=no_core_file)
area.program(
    "use up the machine's terminals",
    "import os\nkept = []\ntry:\n    while len(kept) < 80: kept.append(os.open('/dev/ptmx', os.O_RDWR))\nexcept OSError: pass\n"
    "print(len(kept) == 80)",
    area.defence(
        "a number of terminals",
        change=lambda steps: tuple(
            step._replace(arguments=(1000,)) if step.operation == "terminals" else step for step in steps
        ),
    ),
)
SHARED = area.defence(
    "/dev/shm has a size",
    change=lambda steps: tuple(
        step._replace(arguments=("/dev/shm", 1 << 33, 0o1777)) if step.arguments[:1] == ("/dev/shm",) else step
        for step in steps
    ),
)
FILL_SHARED = """
import os
try: open('/dev/shm/x', 'wb').write(bytes(80 << 20))
except OSError: pass
print(os.stat('/dev/shm/x').st_size == 80 << 20)
"""


@area.attack("fill /dev/shm beyond its size", SHARED)
async def fill_shared(arena: Arena) -> bool:
    return await arena.program(FILL_SHARED, limits={"shm": 64 * MIB})


# -- what the kernel counts for the server's user as well -------------------------------------------------------------------

QUEUED = area.defence("signals and message queues under way are bounded", change=without_limits("sigpending", "msgqueue"))
LOCKED = area.defence("locked memory is bounded", change=without_limits("memlock"))
area.program(
    "use up the watches on files of the server's user",
    PRELUDE + "kept = []\nwhile len(kept) < 40 and (fd := libc.inotify_init1(0)) >= 0: kept.append(fd)\nprint(len(kept) == 40)",
    COUNTS,
)
area.program(
    "use up the signals of the server's user",
    PRELUDE + "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\ncount = 0\n"
    "while count < 6000 and libc.sigqueue(os.getpid(), 40, None) == 0: count += 1\nprint(count == 6000)",
    QUEUED,
    impossible=hard_limit("RLIMIT_SIGPENDING", 7000),
)
area.program(
    "use up the message queues of the server's user",
    PRELUDE + "count = 0\n"
    "while count < 5 and libc.mq_open(b'/%d' % count, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0: count += 1\nprint(count == 5)",
    QUEUED,
    impossible=hard_limit("RLIMIT_MSGQUEUE", 500_000),
)
area.program(
    "lock memory",
    PRELUDE + "here = mmap.mmap(-1, 2 << 20)\n"
    "print(libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(here))), 2 << 20) == 0)",
    LOCKED,
    impossible=hard_limit("RLIMIT_MEMLOCK", 3 << 20),
)

# -- what belongs to no process --------------------------------------------------------------------------------------------

COUNTED = area.defence(
    "what belongs to no process counts as memory",
    patches=(
        Patch(LIMITS, "            sysv::used_bytes(processes)\n", "            0\n"),
        Patch(LIMITS, "            sysv::remove(processes);\n", ""),
    ),
)
HELD = """
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
made = 0
for _ in range(10):
    segment = libc.shmget(0, 16 << 20, 0o1600)
    if segment < 0: break
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 16 << 20)
    libc.shmdt(place)
    made += 1
    time.sleep(0.01)
time.sleep(1.5)
print(made == 10)
"""
SEMAPHORES = """
made = 0
while made < 90 and libc.semget(0, 32000, 0o1600) >= 0:
    made += 1
    time.sleep(0.001)
time.sleep(1.5)
print(made == 90)
"""
for _name, _source in {"shared memory that nobody is attached to": HELD, "semaphores": SEMAPHORES}.items():

    @area.attack(f"memory bomb of {_name}", COUNTS, COUNTED)
    async def held(arena: Arena, source: str = _source) -> bool:
        with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
            async with arena.box(limits={"memory": 100 * MIB}) as box:
                result = await box.python(PRELUDE + source)
                assert result.stderr == ""
                # Whoever comes next finds nothing of it in the way.
                if "True" not in result.stdout:
                    await asyncio.sleep(0.5)
                    assert (await box.sh("sleep 0.4; echo on")).stdout == "on\n"
                return bool(result.stdout == "True\n")


BUFFERS = area.defence(
    "what sockets hold counts as memory",
    patches=(
        Patch(LIMITS, " + self.sockets.bytes + self.kernel", " + self.kernel"),
        Patch(LIMITS, "self.shares.total(self.stored) + self.sockets.bytes;", "self.shares.total(self.stored);"),
    ),
)
SOCKETS = {
    "Unix sockets": "socket.socketpair()",
    "datagrams": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "connections": "(socket.create_connection(listener.getsockname()), listener.accept()[0])",
}
FULL = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
kept, total = [], 0
while total < 160 << 20 and len(kept) < 1900:
    kept.append({pair})
    kept[-1][0].setblocking(False)
    try:
        while True: total += kept[-1][0].send(bytes(32768))
    except BlockingIOError: pass
time.sleep(1.5)
print(total >= 160 << 20)
"""
for _name, _source in SOCKETS.items():

    @area.attack(f"memory bomb of {_name} that nobody reads", BUFFERS)
    async def unread(arena: Arena, pair: str = _source) -> bool:
        with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
            async with arena.box(limits={"memory": 80 * MIB}) as box:
                result = await box.python(FULL.format(pair=pair))
                assert result.stderr == "" and (result.stdout or (result.returncode, result.exit["oom_killed"]) == (137, True))
                return bool(result.stdout == "True\n")


UNSEEN = area.defence(
    "sockets that are in no table count as memory",
    patches=(
        Patch(
            "init/src/limits/sockets.rs",
            "        self.add_unseen(&counts, count.saturating_sub(self.seen + asking + UNSEEN));\n",
            "        let _ = (Sockets::add_unseen, asking);\n",
        ),
    ),
)
RESET = """
import array, fcntl, socket, struct, termios, time
listener = socket.create_server(("127.0.0.1", 0))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
kept, total, come = [], 0, array.array("i", [0])
while total < 120 << 20 and len(kept) < 900:  # What had come before its sender reset a connection is kept.
    sender, own = socket.create_connection(listener.getsockname()), listener.accept()[0]
    kept.append(own)
    sender.setblocking(False)
    try:
        while True: sender.send(bytes(32768))
    except BlockingIOError: pass
    fcntl.ioctl(own.fileno(), termios.FIONREAD, come)
    total += come[0]
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sender.close()
time.sleep(1.5)
print(total >= 120 << 20)
"""
BEGUN = """
import socket, time
kept = []
libc.connect.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
for number in range(4):  # A datagram that is begun and never sent, of a socket that is connected to nothing.
    if os.fork() == 0:
        for _ in range(900):
            own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            own.connect(("127.0.0.1", 9))
            own.send(bytes(60000), 0x8000)
            libc.connect(own.fileno(), bytes(16), 16)
            kept.append(own)
        time.sleep(6)
        os._exit(0)
time.sleep(4.5)
print(True)
"""
for _name, _source in {"connections that were reset": RESET, "datagrams that are never sent": BEGUN}.items():

    @area.attack(f"memory bomb of {_name}", UNSEEN)
    async def unseen(arena: Arena, source: str = _source) -> bool:
        with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
            async with arena.box(limits={"memory": 80 * MIB}) as box:
                result = await box.python(PRELUDE + source)
                return bool(result.stdout == "True\n")


IN_GROUPS = area.defence(
    "groups that do not count sockets are not alone",
    patches=(Patch(LIMITS, "if group.limit > 0 && self.sockets.bytes > group.limit {", "if false {"),),
)


def ungrouped(backend: Any) -> str | None:
    """For `impossible`: nobody keeps the memory but process 1."""
    return None if backend._facts.groups else "there are no control groups to use here"


@area.attack("memory bomb of datagrams beside a control group", IN_GROUPS, impossible=ungrouped)
async def beside_a_group(arena: Arena) -> bool:
    async with arena.box(limits={"memory": 80 * MIB}) as box:
        result = await box.python(PRELUDE + BEGUN)
        return bool(result.stdout == "True\n")


KERNEL = area.defence(
    "what the kernel holds for processes counts as memory",
    patches=(
        Patch(LIMITS, " + self.kernel.bytes.values().sum::<u64>()", ""),
        Patch(OF_MEMORY, "kibibytes(&text, PAGE_TABLES).saturating_add(swapped)", "swapped"),
        Patch(OF_MEMORY, ".saturating_add(kernel).saturating_add(kibibytes(&status, PAGE_TABLES))", ""),
    ),
)
WATCHES = area.defence("watches of epoll are bounded", configuration=unwatched("watches"))
WAITED_FOR = """
import os, select, sys, time
wanted, files, sets = int(sys.argv[1]), [os.eventfd(0) for _ in range(1000)], []
while wanted > 0:
    sets.append(select.epoll())
    for file in files[:wanted]: sets[-1].register(file)
    wanted -= len(files)
time.sleep(6)
print(True)
"""
HELD_BY_THE_KERNEL = {
    "tables of pages": """
import mmap, time
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
whole = mmap.mmap(-1, 1 << 36, flags=flags, prot=mmap.PROT_READ)
whole.madvise(15)  # Small pages: each of these is the one page of zeros, which is nobody's.
for place in range(0, 1 << 36, 1 << 21): whole[place]
time.sleep(0.7)
print(True)
""",
    "mappings": PRELUDE
    + """
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
begin = libc.mmap(None, 1 << 29, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, -1, 0)
for page in range(0, 60_000, 2): libc.mprotect(begin + page * 4096, 4096, 1)
for _ in range(7):
    if os.fork() == 0: break
time.sleep(4)
print(True)
""",
    "pipes": """
import os, time
kept, total = [], 0
while total < 60 << 20 and len(kept) < 1900:
    kept.append(os.pipe())
    os.set_blocking(kept[-1][1], False)
    try:
        while True: total += os.write(kept[-1][1], bytes(4096))
    except BlockingIOError: pass
time.sleep(0.7)
print(total >= 60 << 20)
""",
    "sockets": """
import os, socket, time
kept = []
for _ in range(15):
    kept.append([socket.socket().detach() for _ in range(3000)])
    if os.fork() == 0: break
    for number in kept.pop(): os.close(number)
time.sleep(4)
print(True)
""",
}


async def takes_memory(arena: Arena, memory: int, source: str, *arguments: str) -> bool:
    with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
        async with arena.box(limits={"memory": memory}) as box:
            result = await box.python(source, *arguments)
            whole = result.returncode == 0 and "True" in result.stdout
            assert result.stderr == "" and (whole or (result.returncode, result.exit["oom_killed"]) == (137, True))
            return whole


for _name, _source in HELD_BY_THE_KERNEL.items():

    @area.attack(f"memory bomb of {_name}", KERNEL, *([UNSEEN] if _name == "sockets" else []))
    async def kernel_memory(arena: Arena, source: str = _source) -> bool:
        return await takes_memory(arena, 40 * MIB if "pipe" in source else 80 * MIB, source)


NODES = area.defence(
    "files in memory are bounded, and count without what is in them",
    patches=(
        Patch("init/src/confine.rs", ",nr_inodes={files}", ""),
        Patch(OF_MEMORY, " + found.used_inodes * INODE_BYTES", ""),
        Patch("init/src/confine.rs", "let files = ", "let _files = "),
    ),
)
EMPTY = """
import os, time
try:
    for number in range(100_000): os.close(os.open(f"/dev/shm/{number:0>200}", os.O_WRONLY | os.O_CREAT))
except OSError: pass
time.sleep(1.5)
print(number == 99_999)
"""


@area.attack("memory bomb of empty files in /dev/shm", NODES)
async def empty_files(arena: Arena) -> bool:
    """Each takes more than a KiB of the kernel's memory."""
    with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
        return await arena.program(EMPTY, limits={"memory": 80 * MIB})


@area.attack("memory bomb of watches of epoll", KERNEL)
async def watches(arena: Arena) -> bool:
    with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, watches=None)):
        return await takes_memory(arena, 40 * MIB, WAITED_FOR, "200000")


@area.attack("use up what the server's user may wait for", WATCHES, impossible=ids_apart)
async def waiting(arena: Arena) -> bool:
    async with arena.box() as box:
        result = await box.python(WAITED_FOR, str(arena.backend._facts.watches + 20_000))
        assert result.stdout or (result.returncode, "watches of epoll" in result.stderr) == (137, True)
        return bool(result.stdout == "True\n")


# -- time ------------------------------------------------------------------------------------------------------------------

LIFETIME = area.defence("a lifetime", configuration=lambda told: told.update(max_lifetime_seconds=None))
IDLE = area.defence("an idle time", configuration=lambda told: told.update(idle_timeout_seconds=None))


@area.attack("live longer than allowed", LIFETIME)
async def lifetime(arena: Arena) -> bool:
    async with arena.box(max_lifetime_seconds=0.3) as box:
        _, running = box.start(
            "python3", "-I", "-c", "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)"
        )
        begin = time.monotonic()
        while box.link.ended() is None and time.monotonic() - begin < 4:
            await asyncio.sleep(0.02)
        running.close()
        return box.link.ended() is None


@area.attack("stay although idle", IDLE)
async def idle(arena: Arena) -> bool:
    async with arena.box(idle_timeout_seconds=0.3) as box:
        await box.sh("setsid sleep 60 >/dev/null 2>&1 </dev/null &")
        begin = time.monotonic()
        while box.link.ended() is None and time.monotonic() - begin < 4:
            await asyncio.sleep(0.02)
        return box.link.ended() is None


# -- output ----------------------------------------------------------------------------------------------------------------

WINDOW = area.defence(
    "a window of output",
    patches=(
        Patch("init/src/output.rs", "pub const WINDOW_BYTES: usize = 1 << 20;", "pub const WINDOW_BYTES: usize = 1 << 30;"),
    ),
)


@area.attack("fill process 1 with output that nobody takes", WINDOW)
async def output(arena: Arena) -> bool:
    async with arena.box() as box:
        exec_id, subscription = box.start("sh", "-c", "head -c 60000000 /dev/zero; sleep 60")
        pid = box.process_1
        begin = time.monotonic()
        while (grown := resident_bytes(pid) > 50 * MIB) is False and time.monotonic() - begin < 3:
            await asyncio.sleep(0.02)
        await box.link.cancel(exec_id)
        subscription.close()
        return grown


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# -- what is over before anybody looks -------------------------------------------------------------------------------------

LOOKED = area.defence(
    "what short commands leave is looked at",
    patches=(
        Patch(
            LIMITS,
            "            self.disk.touched(looper);\n            self.running = false;\n",
            "            self.running = false;\n",
        ),
        Patch(LIMITS, "        if self.changed {\n            self.disk.touched(looper);\n        }\n", ""),
    ),
)


@area.attack("fill the disk by short commands", LOOKED)
async def short(arena: Arena) -> bool:
    async with arena.box(limits={"disk": 8 * MIB}) as box:
        for number in range(40):
            exec_id, subscription = box.start("sh", "-c", f"head -c 2000000 /dev/zero > {number}; sleep 0.02")
            if (await box.finish(exec_id, subscription, acknowledge=False)).returncode != 0:
                return False
    return True


# -- descriptors on their way ----------------------------------------------------------------------------------------------

SHARE = area.defence(
    "a sandbox has less open than its server",
    patches=(Patch("server/backends/local/bounds.py", "OPEN_FILES_SHARE = 2\n", "OPEN_FILES_SHARE = 1\n"),),
)
SENT = """
import array, errno, os, socket, time
many = array.array("i", [os.open("/", os.O_RDONLY)] * 250)
full, pair, said = [], socket.socketpair(), False
while True:  # Others that share the count may make room again.
    try:
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)], socket.MSG_DONTWAIT)
    except BlockingIOError:
        full.append(pair)
        pair = socket.socketpair()
    except OSError as error:
        if not said:
            print(errno.errorcode[error.errno], flush=True)
        said = True
        time.sleep(0.005)
"""


@area.attack("have no other sandbox made, by descriptors on their way", SHARE, impossible=ids_apart)
async def descriptors(arena: Arena) -> bool:
    return await no_other(arena, {})


PROCESS_1_HAS_MORE = area.defence(
    "process 1 may have more open than commands",
    patches=(Patch("server/backends/local/plan.py", "(1 if options.root else bounds.OPEN_FILES_SHARE)", "1"),),
)


@area.attack("have no other sandbox reach the network, by descriptors on their way", PROCESS_1_HAS_MORE, impossible=ids_apart)
async def egress(arena: Arena) -> bool:
    return await no_other(arena, {"network": aviato.NetworkOptions(egress_mode="internet")})


async def no_other(arena: Arena, options: dict[str, Any]) -> bool:
    """Whether others with these options do not come up while one sends descriptors as long as it is let."""
    state = make_state_dir()
    with arena.programs():
        # Fewer than other sandboxes may have open, whose process 1 can go on sending meanwhile.
        server = await asyncio.to_thread(lambda: start_server(state, before=["prlimit", "--nofile=3000:3000"]))
        try:
            async with aviato.Sandbox(base_url=server.url) as sandbox:
                sending = sandbox.exec(["python3", "-I", "-c", SENT])
                assert await anext(aiter(sending.stdout)) == "ETOOMANYREFS\n"
                # Others of this user share the count, and fill it or make room now and then: what happens more often counts.
                made = {True: 0, False: 0}
                while max(made.values()) < 3:
                    try:
                        async with asyncio.timeout(5):
                            # It ends with its server.
                            await aviato.Sandbox(base_url=server.url, **options).exec(["true"])
                        made[True] += 1
                    except (TimeoutError, aviato.AviatoError):
                        made[False] += 1
                    await asyncio.sleep(0.5)
                return made[False] > made[True]
        finally:
            await asyncio.to_thread(server.stop)
            remove(state)


# -- processors ------------------------------------------------------------------------------------------------------------

SHARED_OUT = area.defence(
    "processors are shared out by sandbox",
    patches=(
        Patch(
            "init/src/pool/processors.rs",
            "        self.directory.as_ref()?;\n",
            "        self.directory.as_ref().filter(|_| false)?;\n",
        ),
    ),
)
SESSIONS = """
import os, sys, time
session, read, write = sys.argv[2] == "sessions", *os.pipe()
for _ in range(int(sys.argv[3])):
    if os.fork() == 0:
        if session: os.setsid()
        os.close(write)
        os.read(read, 1)
        end = time.monotonic() + float(sys.argv[1])
        while time.monotonic() < end: pass
        os._exit(0)
begin = time.monotonic()
os.close(write)  # All of them begin.
try:
    while True: os.wait()
except ChildProcessError: pass
used = os.times()
print(begin, time.monotonic(), used.children_user + used.children_system)
"""
BUSY = """
import time
due = 0.0
while True:
    if (now := time.monotonic()) >= due:
        print(now, time.process_time(), flush=True)
        due = now + 0.02
"""


def no_sharing(backend: Any) -> str | None:
    there = "cpu" in dict(backend._facts.groups)
    return None if there else "no control groups share out the processors here"


def by_session(backend: Any) -> str | None:
    with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
        return no_sharing(backend) or ("this kernel shares them out by session" if file.read().strip() == "1" else None)


for _kind, _why_not in (("sessions", no_sharing), ("processes", by_session)):

    @area.attack(f"take the processors of other sandboxes by many {_kind}", SHARED_OUT, impossible=_why_not)
    async def crowd(arena: Arena, kind: str = _kind) -> bool:
        """By what one process of another sandbox gets of the processors meanwhile: whoever else is busy takes from both."""
        async with arena.box() as many, arena.box() as one:
            exec_id, subscription = one.start("python3", "-I", "-c", BUSY)
            async for frame in subscription:
                if frame.type == FrameType.DATA:
                    break
            begin, end, taken = map(float, (await many.python(SESSIONS, "1.5", kind, "150")).stdout.split())
            await one.link.cancel(exec_id)
            lines = (await one.finish(exec_id, subscription)).stdout.splitlines()
        ran = [float(spent) for now, spent in (line.split() for line in lines[1:-1]) if begin <= float(now) <= end]
        return (ran[-1] - ran[0] if ran else 0.0) < taken / 10
