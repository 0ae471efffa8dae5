"""Attacks on a sandbox's own process 1, and through it on the verdict."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from aviato.server.supervisor.subscription import SandboxGone
from tests.attacks.mutate import FILTER, UNDUMPABLE, without
from tests.attacks.programs import PRELUDE

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

LOOK = """
def attempt(action):
    try:
        return bool(action()) or "nothing"
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps({
    **{name: attempt(lambda: open(f"/proc/1/{name}", "rb").read(100)) for name in ("environ", "maps", "auxv", "io")},
    **{name: attempt(lambda: os.listdir(f"/proc/1/{name}")) for name in ("fd", "map_files", "root/")},
    **{name: attempt(lambda: os.readlink(f"/proc/1/{name}")) for name in ("exe", "cwd", "root", "ns/net", "ns/mnt")},
    "mem": attempt(lambda: os.open("/proc/1/mem", os.O_RDWR) > 0),
    **{name: attempt(lambda: os.write(os.open(f"/proc/1/{name}", os.O_WRONLY), b"1")) for name in (
        "oom_score_adj", "oom_adj", "autogroup", "timerslack_ns", "coredump_filter", "comm", "clear_refs", "sched")},
}))
"""


async def look(box):
    result = await box.python(f"import json\n{PRELUDE}{LOOK}")
    return {name: said for name, said in json.loads(result.stdout).items() if said != "ENOENT"}


async def test_looking_into_it(backend, boxes, box):
    """Also where everyone has every capability: the way in is that process 1 may not be dumped."""
    said = await look(box)
    assert len(said) > 15
    assert {name: why for name, why in said.items() if why not in ("EACCES", "EPERM", "EINVAL")} == {}
    with without(backend, steps=(*UNDUMPABLE, *FILTER)):
        async with boxes.make_box(backend) as open_one:
            said = await look(open_one)
    wanted = ("environ", "maps", "fd", "exe", "cwd", "root", "ns/net", "mem", "oom_score_adj", "timerslack_ns")
    assert {name: said[name] for name in wanted if said[name] is not True} in ({}, {"environ": "nothing"})


MEMORY = """
with open("/proc/1/maps") as file: start = int(file.readline().split("-")[0], 16)
far, near = buffer(struct.pack("QQ", start, 4)), buffer(struct.pack("QQ", ctypes.addressof(here), 4))
"""
INTO = {
    "process_vm_readv": "here = buffer(bytes(4))\n{memory}print(call('process_vm_readv', 1, near, 1, far, 1, 0) == 4)",
    "pidfd_getfd": "print(call('pidfd_getfd', call('pidfd_open', 1, 0), 3, 0) > 0)",
    "kcmp": "print(call('kcmp', 1, os.getpid(), 0, 1, 1) >= 0)",
    "ptrace": "print(call('ptrace', 0x4206, 1, 0, 0) == 0)",
}


@pytest.mark.parametrize("name", INTO)
async def test_its_memory_and_descriptors(backend, boxes, name):
    """Two walls: the filter, and that process 1 may not be dumped. Each holds alone; without both the attack succeeds."""
    blind = INTO[name].replace("{memory}", "far = near = buffer(struct.pack('QQ', ctypes.addressof(here), 4))\n")
    seeing = INTO[name].replace("{memory}", MEMORY)
    for families, steps, source in (((), (), blind), ((), UNDUMPABLE, seeing), (("other processes",), (), blind)):
        with without(backend, *families, steps=steps):
            async with boxes.make_box(backend) as box:
                assert (await box.python(PRELUDE + source)).stdout == "EPERM\n"
                assert (await box.run("true")).returncode == 0
    with without(backend, "other processes", steps=UNDUMPABLE):
        async with boxes.make_box(backend) as box:
            assert (await box.python(PRELUDE + seeing)).stdout == "True\n"


SIGNALS = """
for number in range(65):
    for target in (1, -1) if number in (0, 18) else (1,):
        try: os.kill(target, number)
        except OSError: pass
        try: signal.pidfd_send_signal(os.pidfd_open(1), number)
        except (OSError, ValueError): pass
read, write = os.pipe()
for number in (9, 19, 15, 0):
    fcntl.fcntl(read, fcntl.F_SETOWN, 1)
    fcntl.fcntl(read, 10, number)  # F_SETSIG
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write, b"x")
print("done")
"""


async def test_signals(box):
    """From inside its own namespace, the kernel drops those that it has no handler for; those of descriptors, too."""
    result = await box.python(PRELUDE + SIGNALS)
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr
    assert (await box.run("true")).returncode == 0


ORPHAN = """
if os.fork() == 0:
    while os.getppid() != 1: pass
    libc.ptrace(0, 0, 0, 0)
    os.abort()
"""


async def test_making_it_a_tracer(box):
    """Who stops then is not over: it would live on behind its own result."""
    begin = time.monotonic()
    for stop in ("os.kill(os.getpid(), signal.SIGSTOP)", "os.execv('/bin/sleep', ['sleep', '60'])", "os.abort()"):
        result = await box.python(f"{PRELUDE}call('ptrace', 0, 0, 0, 0)\n{stop}\ntime.sleep(60)")
        assert (result.returncode, result.exit["signal"]) == (137, 9)
    # An orphan has the same parent.
    await box.python(PRELUDE + ORPHAN)
    while len((await box.run("ps", "-e")).stdout.splitlines()) > 3:
        assert time.monotonic() - begin < 20
        await asyncio.sleep(0.01)


ROBBED = """
import resource
try: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))
except PermissionError: raise SystemExit("refused")
while True: os.write(1, bytes(1 << 16))
"""


async def test_taking_its_processor_away(backend, boxes):
    """The kernel kills who has used up a limit; then the sandbox is lost, and the machine would get the blame."""
    async with boxes.make_box(backend) as box:
        assert (await box.python(PRELUDE + ROBBED)).stderr == "refused\n"
        assert (await box.run("true")).returncode == 0
    with without(backend, "process 1"):
        async with boxes.make_box(backend) as box:
            with pytest.raises(SandboxGone):
                await box.python(PRELUDE + ROBBED)


LEASE = """
shutil.copy("/bin/true", "program")
held = os.open("program", os.O_RDONLY)
signal.signal(signal.SIGIO, signal.SIG_IGN)
print(libc.fcntl(held, 1024, 1), flush=True)
time.sleep(60)
"""


async def lease(box):
    exec_id, subscription = box.start("python3", "-I", "-c", PRELUDE + LEASE)
    while not (frame := await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"\n"):
        pass
    begin = time.monotonic()
    starting = asyncio.create_task(box.run("./program"))
    done, _ = await asyncio.wait({starting}, timeout=1)
    await box.link.cancel(exec_id) if done else None
    return frame.payload, bool(done), time.monotonic() - begin, starting


async def test_a_lease_on_a_program_that_it_starts(backend, boxes):
    """Opening what someone holds a write lease on waits for him, 45 s: process 1 with everything that it does."""
    async with boxes.make_box(backend) as box:
        said, done, seconds, starting = await lease(box)
        assert (said, done, (await starting).returncode) == (b"-1\n", True, 0) and seconds < 1
    with without(backend, "leases"):
        async with boxes.make_box(backend) as box:
            said, done, _, starting = await lease(box)
            assert (said, done) == (b"0\n", False)
            starting.cancel()


ELSEWHERE = """
def attempt(name, *arguments):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(NUMBERS[name]), *[ctypes.c_ulong(one) for one in arguments])
    return errno.errorcode[ctypes.get_errno()]
there = buffer(struct.pack("QQ", 4096, 16))
for pid in map(int, sys.argv[1:]):
    print(attempt("ptrace", 16, pid, 0, 0), attempt("process_vm_readv", pid, *[ctypes.addressof(there), 1] * 2, 0),
          attempt("pidfd_open", pid, 0), attempt("prlimit64", pid, 7, ctypes.addressof(there), 0))
"""


async def test_processes_of_other_sandboxes_and_of_the_machine(backend, boxes):
    """By the filter, and without it since they have no number there: those of the machine mean nothing in a sandbox."""
    async with boxes.make_box(backend) as other:
        sleeping = other.start("sleep", "60", stdin=True)
        await other.link.ping()
        supervisor = backend._held[other.id].pidfd
        with open(f"/proc/self/fdinfo/{supervisor}") as file:
            outside = next(line.split()[1] for line in file if line.startswith("Pid:"))
        pids = [outside, str(os.getpid()), str(os.getppid())]
        assert all(int(pid) > 100 for pid in pids)
        for steps, refused in (((), "EPERM EPERM"), (FILTER, "ESRCH ESRCH")):
            with without(backend, steps=steps):
                async with boxes.make_box(backend) as box:
                    result = await box.python(PRELUDE + ELSEWHERE, *pids)
                    assert result.stdout.splitlines() == [f"{refused} ESRCH ESRCH"] * 3, result.stderr
        await other.link.cancel(sleeping[0])
        assert (await other.finish(*sleeping)).exit["cancelled"]
