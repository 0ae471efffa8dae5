"""What can be written in /proc and /sys, found by a walk from inside: nothing that is not on a list, with why it may."""

from __future__ import annotations

import json

import pytest

from aviato.server.backends.local import landlock_calls as calls
from tests.attacks import registry
from tests.attacks.registry import DEFENCES, built
from tests.real_backend import open_backend

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
registry.load()

OF_A_PROCESS = {
    "attr": "security modules: only the process itself, and only to have less",
    "autogroup": "gives its own session a smaller share; more needs a capability",
    "clear_refs": "forgets which of its own pages were touched",
    "comm": "its own name, which threads are given: the kernel takes it from no other process",
    "coredump_filter": "of core files, which nobody writes here",
    "fail-nth": "has its own system calls fail, on kernels for tests",
    "gid_map": "written once, before any command was there",
    "latency": "forgets where it has waited",
    "loginuid": "itself, and no other user than the one it is",
    "make-it-fail": "needs a capability of the machine's",
    "mem": "of what it may debug: commands of its own sandbox",
    "oom_adj": "makes itself more likely to be killed; less needs a capability",
    "oom_score_adj": "as `oom_adj`, of which it is the newer form",
    "patch_state": "only read, whatever its mode says",
    "projid_map": "needs a capability",
    "sched": "forgets its own statistics",
    "setgroups": "written once, before any command was there",
    "timens_offsets": "needs a capability",
    "timers": "only read, whatever its mode says",
    "timerslack_ns": "how late its own timers may be; another's needs a capability",
    "uid_map": "written once, before any command was there",
}
"""What each process has: it, and others of its sandbox, may open these for writing."""

WALK = """
import json, os, stat, subprocess
other = subprocess.Popen(["sleep", "60"])
processes = {"1": "1", str(os.getpid()): "self", str(other.pid): "other"}
own, found = os.stat("/").st_dev, set()
def shown(path):
    parts = path.split("/")
    if parts[1] == "proc" and len(parts) > 2:
        parts[2] = processes.get(parts[2], parts[2])
        if parts[3:4] == ["task"]: del parts[3:5]
    return "/".join(parts)
def opens(path):
    try: fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError: return False
    try:
        # Opened by anybody, some are closed to whoever writes to another process's; root opens whatever its own users have, and
        # most of it has nothing that could be written to.
        return bool(path[:8] != "/proc/1/" and os.fstat(fd).st_mode & 0o222) or bool(os.write(fd, b"0"))
    except OSError: return False
    finally: os.close(fd)
def makes(path):
    try: os.mkdir(path + "/made")
    except OSError: return False
    return True
def walk(path):
    try: there = os.lstat(path)
    except OSError: return
    kind = stat.S_IFMT(there.st_mode)
    if there.st_dev == own or kind == stat.S_IFLNK or there.st_rdev == os.makedev(1, 3): return
    if kind != stat.S_IFDIR:
        if opens(path): found.add(shown(path))
        return
    if makes(path): found.add(shown(path) + "/")
    try: names = os.listdir(path)
    except OSError: return
    for name in names:
        if path != "/proc" or not name.isdecimal() or name in processes: walk(path + "/" + name)
walk("/proc"), walk("/sys")
other.kill(), other.wait()
print(json.dumps(sorted(found)))
"""


async def writable(box):
    """Paths; what threads have is taken for what their process has."""
    result = await box.python(WALK)
    assert (result.stderr, result.returncode) == ("", 0)
    return json.loads(result.stdout)


def unknown(paths):
    """Those that nothing is said of above."""
    found = []
    for path in paths:
        _, top, process, name = [*path.split("/"), "", ""][:4]
        if (top, process in ("self", "other"), name in OF_A_PROCESS) != ("proc", True, True):
            found.append(path)
    return found


async def test_nothing_but_what_is_listed_can_be_written(box):
    paths = await writable(box)
    assert "/proc/self/comm" in paths, "the walk has found nothing"
    assert unknown(paths) == []


async def test_the_walk_finds_what_is_not_covered(backend, boxes):
    """The kernel's own settings belong to no user that a sandbox has; these anybody may write to."""
    if "pressure" not in backend._facts.proc:
        pytest.skip("this kernel does not measure pressure")
    async with built(backend, (DEFENCES["kernel settings are read only"],)), boxes.make_box(backend) as box:
        assert "/proc/pressure/cpu" in unknown(await writable(box))


async def test_threads_can_be_named_and_processes_offered_to_the_kernel(box):
    source = """
import ctypes, os, threading
libc, go = ctypes.CDLL(None), threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
libc.pthread_setname_np.argtypes = ctypes.c_ulong, ctypes.c_char_p
print(libc.pthread_setname_np(thread.ident, b"worker"), open(f"/proc/self/task/{thread.native_id}/comm").read().strip())
go.set()
own = {"comm": "main", "oom_score_adj": "900", "coredump_filter": "0x1", "clear_refs": "1", "timerslack_ns": "60000"}
for name, value in own.items():
    with open(f"/proc/self/{name}", "w") as file: file.write(value)
print(open("/proc/self/comm").read().strip(), open("/proc/self/oom_score_adj").read().strip())
"""
    result = await box.python(source)
    assert (result.stdout, result.stderr) == ("0 worker\nmain 900\n", "")


@pytest.fixture
async def landlocked(boxes):
    if not calls.abi():
        pytest.skip("this kernel has no Landlock")
    async for opened in open_backend("landlock"):
        async with boxes.make_box(opened) as box:
            yield box


async def test_without_namespaces_nothing_at_all_can_be_written(landlocked):
    assert await writable(landlocked) == []
