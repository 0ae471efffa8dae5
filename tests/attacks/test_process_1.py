"""Looking into process 1, being traced by it, and processes outside. More is tried in `pairs/process_1.py`."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

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
        pids = [str(other.process_1), str(os.getpid()), str(os.getppid())]
        assert all(int(pid) > 100 for pid in pids)
        for steps, refused in (((), "ESRCH EPERM"), (FILTER, "ESRCH ESRCH")):
            with without(backend, steps=steps):
                async with boxes.make_box(backend) as box:
                    result = await box.python(PRELUDE + ELSEWHERE, *pids)
                    assert result.stdout.splitlines() == [f"{refused} ESRCH ESRCH"] * 3, result.stderr
        await other.link.cancel(sleeping[0])
        assert (await other.finish(*sleeping)).exit["cancelled"]
