"""Process 1: its memory, its descriptors, its life, and what it says of commands."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aviato.server.link.ended import SandboxGone
from aviato.server.shared_memory import Memory
from aviato.wire.frames import FrameType, encode
from tests.attacks.mutate import UNDUMPABLE
from tests.attacks.pairs.kernel import FAMILIES
from tests.attacks.programs import PRELUDE
from tests.attacks.registry import Area, Arena, Patch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

area = Area(__name__)
SYS = "init/src/sys.rs"
CLOSED = area.defence("process 1 may not be dumped", steps=UNDUMPABLE)

MEMORY = """
try:
    with open("/proc/1/maps") as file: start = int(file.readline().split("-")[0], 16)
except OSError:
    start = 1 << 40  # The attempt itself is refused before an address matters.
here = buffer(bytes(4))
far, near = buffer(struct.pack("QQ", start, 4)), buffer(struct.pack("QQ", ctypes.addressof(here), 4))
"""
INTO = {
    "read the memory of process 1": MEMORY + "print(call('process_vm_readv', 1, near, 1, far, 1, 0) == 4)",
    "take a descriptor of process 1": "print(call('pidfd_getfd', call('pidfd_open', 1, 0), 3, 0) > 0)",
    "compare descriptors with process 1": "print(call('kcmp', 1, os.getpid(), 0, 1, 1) >= 0)",
    "trace process 1": "print(call('ptrace', 0x4206, 1, 0, 0) == 0)",
    "attach to process 1": (
        "print(call('ptrace', 16, 1, 0, 0) == 0 and os.waitpid(1, 1 << 30)[0] == 1)\ncall('ptrace', 17, 1, 0, 0)"
    ),
}
for _name, _source in INTO.items():
    area.program(_name, PRELUDE + _source, CLOSED, FAMILIES["other processes"])

LOOK = """
def attempt(action):
    try: return bool(action())
    except OSError: return False
print(any((
    attempt(lambda: open("/proc/1/maps").read(100)),
    attempt(lambda: os.listdir("/proc/1/fd")),
    attempt(lambda: os.readlink("/proc/1/exe")),
    attempt(lambda: os.open("/proc/1/mem", os.O_RDWR)),
    attempt(lambda: os.write(os.open("/proc/1/oom_score_adj", os.O_WRONLY), b"500")),
)))
"""
area.program("look at process 1 in /proc", PRELUDE + LOOK, CLOSED)

# -- its words -------------------------------------------------------------------------------------------------------------

INHERITED = area.defence(
    "descriptors of process 1 are not inherited",
    patches=(Patch(SYS, "            check(fcntl(target, 2, 1 as c_int))?;\n", ""),),
)
FORGED = {
    "returncode": 0,
    "signal": None,
    "timed_out": False,
    "oom_killed": False,
    "cancelled": False,
    "duration_seconds": 0.1,
    "stdout_bytes_total": 0,
    "stderr_bytes_total": 0,
    "cpu_seconds": 0.0,
    "max_rss_bytes": 1,
}
FORGE = """
import os, sys, time
frames = bytes.fromhex(sys.argv[1])
for fd in range(3, 256):
    try: os.write(fd, frames)
    except OSError: pass
time.sleep(0.3)
sys.exit(7)
"""


@area.attack("forge its own good end", INHERITED)
async def forge(arena: Arena) -> bool:
    end = json.dumps(FORGED).encode()
    frames = b"".join(encode(FrameType.EXIT, end, channel=channel) for channel in range(1, 16))
    async with arena.box() as box:
        result = await box.python(FORGE, frames.hex())
        if arena.off:
            return bool(result.exit is not None and result.returncode == 0)
        assert (result.returncode, result.error) == (7, None)
        return False


LENT = area.defence(
    "memory that a client lends is not inherited",
    patches=(Patch(SYS, "recvmsg(fd.as_raw_fd(), &mut head, MSG_CMSG_CLOEXEC)", "recvmsg(fd.as_raw_fd(), &mut head, 0)"),),
)


@area.attack("have memory that a client lends", LENT)
async def lent(arena: Arena) -> bool:
    never = asyncio.get_running_loop().create_future()

    async def ready() -> AsyncIterator[bytes]:
        yield await never

    async with arena.box() as box:
        await box.put("first", b"1")
        with Memory(os.memfd_create("lent")) as memory:
            memory.ready = ready()
            writing = asyncio.ensure_future(box.link.write_file("f", memory.chunks(7), size_bytes=7, memory=memory))
            await asyncio.sleep(0)
            await box.link.ping()
            listed = (await box.sh("ls -l /proc/self/fd")).stdout
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        return "memfd:lent" in listed


# -- its life --------------------------------------------------------------------------------------------------------------

UNHEARING = area.defence(
    "process 1 has no handler of a signal from inside",
    patches=(Patch(SYS, "if IGNORED.contains(&number) { SIG_IGN } else { SIG_DFL }", "_exit as usize"),),
)
SIGNALS = """
for number in range(65):
    for target in (1, -1) if number in (0, 18) else (1,):
        try: os.kill(target, number)
        except OSError: pass
        try: signal.pidfd_send_signal(os.pidfd_open(1), number)
        except (OSError, ValueError): pass
read, write = os.pipe()
for number in (9, 19, 15, 2, 0):
    fcntl.fcntl(read, fcntl.F_SETOWN, 1)
    fcntl.fcntl(read, 10, number)  # F_SETSIG
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write, b"x")
"""


@area.attack("end process 1 by a signal", UNHEARING)
async def signals(arena: Arena) -> bool:
    async with arena.box() as box:
        try:
            assert (await box.python(PRELUDE + SIGNALS)).returncode == 0
            # A handler of Python's waits for its turn; a command that leaves somebody behind is Python's to watch.
            await box.sh("sleep 60 & true")
            return bool((await box.run("true")).returncode != 0)
        except SandboxGone:
            return True


ROBBED = """
import resource
try: resource.prlimit(int(sys.argv[1]), resource.RLIMIT_CPU, (0, 0))
except PermissionError: raise SystemExit(0)
while True: os.write(1, bytes(1 << 16))
"""


async def is_robbed(box: Any, number: int) -> bool:
    try:
        assert (await box.python(PRELUDE + ROBBED, str(number))).returncode == 0
        return bool((await box.run("true")).returncode != 0)
    except SandboxGone:
        return True


@area.attack("take the processor from process 1", FAMILIES["process 1"])
async def robbed(arena: Arena) -> bool:
    """The kernel kills who has used up a limit; then the sandbox is lost, and the machine would get the blame."""
    async with arena.box() as box:
        return await is_robbed(box, 1)


LEASE = """
shutil.copy("/bin/true", "program")
held = os.open("program", os.O_RDONLY)
signal.signal(signal.SIGIO, signal.SIG_IGN)
print(libc.fcntl(held, 1024, 1), flush=True)
time.sleep(60)
"""


@area.attack("hold process 1 up by a lease on a program that it starts", FAMILIES["leases"])
async def lease(arena: Arena) -> bool:
    """Opening what someone holds a write lease on waits for him, 45 s: process 1 with everything that it does."""
    async with arena.box() as box:
        exec_id, subscription = box.start("python3", "-I", "-c", PRELUDE + LEASE)
        while not (await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"\n"):
            pass
        starting = asyncio.create_task(box.run("./program"))
        done, _ = await asyncio.wait({starting}, timeout=5)
        if not done:
            starting.cancel()
            return True
        assert starting.result().returncode == 0
        await box.link.cancel(exec_id)
        return False


FORKED = area.defence(
    "process 1 waits for no birth that somebody inside can stop",
    patches=(Patch("init/src/spawn.rs", " && !by.processes.signal_all(0),", ","),),
)
STOPS = """
import os, signal
print("ready", flush=True)
while True:
    number = os.fork()  # Where the numbers are by now: a busy machine lets some pass.
    if not number: os._exit(0)
    os.waitpid(number, 0)
    for _ in range(2000):
        for ahead in (number + 1, number + 2, number + 3):
            try: os.kill(ahead, signal.SIGSTOP)
            except ProcessLookupError: continue
            number = ahead
"""


@area.attack("hold process 1 up by stopping a command in the moment of its birth", FORKED)
async def newborn(arena: Arena) -> bool:
    async with arena.box() as box:
        _, subscription = box.start("python3", "-I", "-c", STOPS)
        while not (await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"ready\n"):
            pass
        # A busy machine seldom runs both at once, and hostile code tries on.
        for _ in range(1500 if arena.off else 150):
            exec_id, running = box.start("true")
            try:
                await asyncio.wait_for(box.link.ping(), 4)
            except TimeoutError:
                return True
            finally:
                running.close()
            await box.link.cancel(exec_id)
        return False


UNTRACED = area.defence(
    "who makes process 1 its tracer is killed",
    patches=(Patch("init/src/commands.rs", "if status == Status::Stopped {", "if false {"),),
)


@area.attack("live on behind one's own result", UNTRACED)
async def traced(arena: Arena) -> bool:
    """A child can make its parent its tracer; when it then stops, the parent is told as if it had ended."""
    source = f"{PRELUDE}call('ptrace', 0, 0, 0, 0)\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)"
    async with arena.box() as box:
        exec_id, subscription = box.start("python3", "-I", "-c", source)
        try:
            await asyncio.wait_for(box.finish(exec_id, subscription), 6)
        except TimeoutError:
            return True  # Nor is that an end.
        return "python3" in (await box.run("ps", "-e")).stdout


FIRST = area.defence(
    "files are looked at before they are opened",
    patches=(
        Patch("init/src/files/read.rs", "if found.kind() != sys::S_IFREG {", "if false {"),
        Patch("init/src/files/read.rs", "O_RDONLY | O_NONBLOCK | O_NOCTTY", "O_RDONLY | O_NOCTTY"),
    ),
)


@area.attack("hold process 1 up by a FIFO that is read as a file", FIRST)
async def fifo(arena: Arena) -> bool:
    async with arena.box() as box:
        await box.sh("mkfifo pipe")
        reading = asyncio.create_task(box.get("pipe"))
        done, _ = await asyncio.wait({reading}, timeout=5)
        if done:
            assert getattr(reading.exception(), "reason", None) == "not_a_regular_file"
            return False
        reading.cancel()
        return True


@area.attack("feed a reader of files without end", FIRST)
async def endless(arena: Arena) -> bool:
    async with arena.box() as box:
        await box.sh("ln -s /dev/zero result")
        begin, got = time.monotonic(), 0
        try:
            async for piece in box.link.read_file("result"):
                got += len(piece)
                if got > 1 << 20 or time.monotonic() - begin > 5:
                    return True
        except Exception as error:
            assert getattr(error, "reason", None) == "not_a_regular_file", error
        return False


# -- its time --------------------------------------------------------------------------------------------------------------

LINGER = area.defence(
    "a result does not wait for those who keep its streams",
    patches=(Patch("init/src/command.rs", "LINGER_SECONDS: f64 = 0.1;", "LINGER_SECONDS: f64 = 1000.0;"),),
)
KEEPS = "setsid sh -c \"trap '' HUP; : >kept; exec sleep 60\" & until [ -e kept ]; do sleep 0.02; done; exit 3"
for _name, _terminal in {"pipes": None, "terminal": (80, 24)}.items():

    @area.attack(f"hold one's result back by keeping its {_name}", LINGER)
    async def keep(arena: Arena, terminal: tuple[int, int] | None = _terminal) -> bool:
        async with arena.box() as box:
            exec_id, subscription = box.start("sh", "-c", KEEPS, terminal=terminal)
            try:
                result = await asyncio.wait_for(box.finish(exec_id, subscription), 6)
            except TimeoutError:
                return True
            assert result.returncode == 3
            return False


DIALS = area.defence(
    "process 1 waits for no connection inside",
    patches=(
        Patch(SYS, "socket(family, SOCK_STREAM | O_CLOEXEC | O_NONBLOCK, 0)", "socket(family, SOCK_STREAM | O_CLOEXEC, 0)"),
    ),
)
DEAF = """
import socket, time
listener = socket.socket()
listener.bind(("127.0.0.1", 8000))
listener.listen(0)
print("deaf", flush=True)
time.sleep(60)
"""


@area.attack("hold process 1 up by a port where nobody accepts", DIALS)
async def deaf(arena: Arena) -> bool:
    async with arena.box(exposes_ports=True) as box:
        _, subscription = box.start("python3", "-I", "-c", DEAF)
        while not (await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"deaf\n"):
            pass
        channel = await arena.backend.open_port_channel(box.id)
        dials = [asyncio.create_task(channel.dial(8000)) for _ in range(8)]
        try:
            await asyncio.sleep(0.1)
            await asyncio.wait_for(box.link.ping(), 5)
            return False
        except TimeoutError:
            return True
        finally:
            subscription.close()
            for dial in dials:
                dial.cancel()
            for done in await asyncio.gather(*dials, return_exceptions=True):
                if not isinstance(done, BaseException):
                    done.close()
            channel.close()
