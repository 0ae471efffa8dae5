"""What programs see of their sandbox's limits: processors, memory, shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviato.server.backends.local import groups
from tests.ordinary.table import Row, table

MIB = 1 << 20
ONE = {"cpu": 0.5}
HALF_GIB = {"memory": 512 * MIB}
BOTH = ONE | HALF_GIB
GUIDE = "Limits that programs see"
IN_C = "cat > a.c <<'E'\n%s\nE\ngcc -fopenmp a.c -o a && ./a"
THREADS = IN_C.replace("%s", '#include <omp.h>\n#include <stdio.h>\nint main() { printf("%d\\n", omp_get_max_threads()); }')
IN_CPP = """
printf '#include <thread>\\n#include <iostream>\\nint main() { std::cout << std::thread::hardware_concurrency(); }' > a.cc
"""
JAVA = "cat > A.java <<'E'\npublic class A { public static void main(String[] a) { System.out.println(%s); } }\nE\njava A.java"
MAKE = """
printf 'all: a b\\na b:\\n\\t@echo $$MAKEFLAGS | grep -o "j[0-9]*" | head -1\\n' > Makefile
make -s -j$(nproc) | sort -u
"""


def of_one(name: str, command: str, *needs: str, **more: object) -> Row:
    """A command that prints how many processors it sees."""
    return Row(name, command, "1", needs, limits=ONE, **more)  # type: ignore[arg-type]


def not_there(*, says: str | None = None) -> dict[str, object]:
    """Where there is no root directory of one's own the machine's files are seen."""
    return {"differs": {"landlock": says}, "guide": GUIDE}


PROCESSORS = [
    of_one("nproc", "nproc"),
    of_one("sched_getaffinity", "python3 -c 'import os; print(len(os.sched_getaffinity(0)))'"),
    of_one("os.cpu_count", "python3 -c 'import os; print(os.cpu_count())'", **not_there(says="[0-9]+")),
    of_one("multiprocessing", "python3 -c 'import multiprocessing as m; print(m.Pool()._processes)'", **not_there()),
    of_one(
        "os.process_cpu_count",
        "python3 -c 'import os; print(os.process_cpu_count() if hasattr(os, \"process_cpu_count\") else 1)'",
    ),
    of_one("getconf", "getconf _NPROCESSORS_ONLN", **not_there(says="[0-9]+")),
    of_one("OpenMP", THREADS, "gcc"),
    of_one("std::thread", f"{IN_CPP}g++ a.cc -o a && ./a", "g++", **not_there(says="[0-9]+")),
    of_one("Node's parallelism", "node -p 'os.availableParallelism()'", "node"),
    of_one("a JVM's processors", JAVA.replace("%s", "Runtime.getRuntime().availableProcessors()"), "java"),
    of_one("xargs", "seq 3 | xargs -P 0 -n 1 true; taskset -cp $$ | grep -c ': [0-9]*$'", "taskset"),
    of_one("Perl", "perl -e 'print `nproc`'", "perl"),
    Row("make", MAKE, "j1|", ("make",), limits=ONE),
    Row("lscpu", "lscpu | grep 'On-line CPU'", r"On-line CPU\(s\) list:\s+\d+", ("lscpu",), limits=ONE, **not_there(says=".*")),
    Row("a limit of all of them", "nproc", str(len(os.sched_getaffinity(0))), limits={"cpu": len(os.sched_getaffinity(0))}),
    Row("without a limit", "nproc", str(len(os.sched_getaffinity(0)))),
    Row(
        "threads that choose another",
        "python3 -c 'import os; print(os.sched_setaffinity(0, os.sched_getaffinity(0)))'",
        "None",
        limits=ONE,
    ),
]
FILES = [
    Row("cpu.max", "cat /sys/fs/cgroup/cpu.max", "50000 100000", limits=ONE, **not_there()),
    Row("memory.max", "cat /sys/fs/cgroup/memory.max", str(512 * MIB), limits=HALF_GIB, **not_there()),
    Row("no limit of processors", "cat /sys/fs/cgroup/cpu.max", "max 100000", limits=HALF_GIB, **not_there()),
    Row(
        "version 1, memory",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes",
        str(512 * MIB),
        limits=HALF_GIB,
        **not_there(),
    ),
    Row(
        "version 1, processors",
        "cd /sys/fs/cgroup/cpu; cat cpu.cfs_quota_us cpu.cfs_period_us",
        "50000\n100000",
        limits=ONE,
        **not_there(),
    ),
    Row("processes", "cat /sys/fs/cgroup/pids.max", "100", limits=HALF_GIB | {"processes": 100}, **not_there()),
    Row("without limits", "ls -A /sys/fs/cgroup", "", **not_there()),
    Row(
        "groups of one's own alone",
        "cat $(find /sys/fs/cgroup -name cgroup.procs) /dev/null | sort -u | grep -cv '^0$' || true; "
        "find /sys/fs/cgroup -mindepth 2 -type d | wc -l",
        r"\d+\n0",
        limits=BOTH,
        **not_there(),
    ),
]
MEMORY = [
    Row("free", "free -m | awk '/Mem/ { print $2 }'", "512", ("free",), limits=HALF_GIB, **not_there(says=r"\d+")),
    Row("meminfo", "grep MemTotal /proc/meminfo", "MemTotal: +524288 kB", limits=HALF_GIB, **not_there(says=".*")),
    Row("Node's memory", "node -p 'os.totalmem()'", str(512 * MIB), ("node",), limits=HALF_GIB, **not_there(says=r"\d+")),
    Row("Node's limit", "node -p 'process.constrainedMemory()'", f"{512 * MIB}|0", ("node",), limits=HALF_GIB, **not_there()),
    Row("top", "TERM=dumb top -b -n 1 | grep 'iB Mem' | grep -c ' 512.0 total'", "1", ("top",), limits=HALF_GIB, **not_there()),
    Row("vmstat", "vmstat -s | head -1", " *524288 K total memory", ("vmstat",), limits=HALF_GIB, **not_there()),
    Row("without a limit of memory", "grep -c MemTotal /proc/meminfo; nproc", r"1\n1", limits=ONE),
    Row(
        "a heap that is told",
        "java -XX:MaxRAM=512m -XX:+PrintFlagsFinal -version | grep -cw 'MaxHeapSize *= 134217728'",
        "1",
        ("java",),
    ),
]
SHARED = [
    Row("half of the memory", "df -k --output=size /dev/shm | tail -1", str(256 << 10), limits=HALF_GIB, **not_there()),
    Row("as asked for", "df -k --output=size /dev/shm | tail -1", str(96 << 10), limits={"shm": 96 * MIB}, **not_there()),
    Row(
        "more than half",
        "head -c 90M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x",
        str(90 * MIB),
        limits={"shm": 100 * MIB, "memory": 150 * MIB},
        **not_there(),
    ),
    Row(
        "shared memory of Python's",
        "python3 -c 'from multiprocessing.shared_memory import SharedMemory as S; s = S(create=True, size=100 << 20);"
        " s.buf[-1] = 1; print(s.size); s.close(); s.unlink()'",
        str(100 * MIB),
        **not_there(),
    ),
]

test_a_command = table([*PROCESSORS, *FILES, *MEMORY, *SHARED])


@pytest.mark.anyio
async def test_sandboxes_are_spread_over_the_processors(carrier, boxes):
    """Not all of them have the first one."""
    _, backend = carrier
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        pytest.skip("this machine has one processor")
    script = ("python3", "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    async with boxes.make_box(backend, limits=ONE) as first:
        assert (await first.run(*script)).stdout == f"[{there[0]}]\n"
        async with boxes.make_box(backend, limits=ONE) as second:
            assert (await second.run(*script)).stdout == f"[{there[1]}]\n"
    async with boxes.make_box(backend, limits=ONE) as third:
        assert (await third.run(*script)).stdout == f"[{there[0]}]\n"
    assert set(backend._affinity._loads.values()) == {0.0}


WRITES = """
import os
for directory, _, names in os.walk("/sys/fs/cgroup"):
    for path in [os.path.join(directory, name) for name in names if directory != "/sys/fs/cgroup"]:
        try:
            os.chmod(path, 0o666)
        except OSError:
            pass
        try:
            with open(path, "w") as file:
                file.write("1")
            print("wrote", path)
        except OSError:
            pass
try:
    os.mkdir("/sys/fs/cgroup/memory/own")
    print("made one")
except OSError:
    print(os.path.exists("/sys/fs/cgroup/memory/memory.usage_in_bytes"))
"""


@pytest.mark.anyio
async def test_its_own_groups_are_read_only(carrier, boxes):
    kind, backend = carrier
    found = dict(backend._facts.groups)
    if kind != "local" or "memory" not in found or groups.UNIFIED in found:
        pytest.skip("sandboxes see no control groups here")
    async with boxes.make_box(backend, limits=BOTH) as box:
        assert (await box.python(WRITES)).stdout == "True\n"
        own = Path(found["memory"]) / f"aviato-{box.id}" / "memory.limit_in_bytes"
        assert int(own.read_text()) == 512 * MIB
