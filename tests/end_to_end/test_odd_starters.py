"""Whatever the process had that started the embedded server: everybody else's sandboxes are those of a fresh one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviato.system import inheritance
from tests.conftest import embedded_pids, make_state_dir, remove, stop_embedded
from tests.matrices import deep

"""Each row is some processes one after the other."""
IN_SANDBOX = """
import ctypes, json, os, resource
libc = ctypes.CDLL(None)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
names = ["SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"]
mask = os.umask(0)
print(json.dumps({
    "limits": {number: resource.getrlimit(number) for number in range(16)},
    "status": {name: status.get(name, "").strip() for name in [*names, "Groups", "THP_enabled"]},
    "affinity": sorted(os.sched_getaffinity(0)),
    "policy": os.sched_getscheduler(0),
    "nice": os.nice(0),
    "io": libc.syscall(251 + 1 if os.uname().machine == "x86_64" else 31, 1, 0),
    "umask": mask,
    "oom": open("/proc/self/oom_score_adj").read(),
    "slack": libc.prctl(30, 0, 0, 0, 0),
    "personality": libc.personality(0xffffffff),
    "coredump": open("/proc/self/coredump_filter").read() if os.path.exists("/proc/self/coredump_filter") else None,
    "environment": dict(os.environ),
    "directory": os.getcwd(),
}))
"""
SECOND = f"""
import aviato, json
with aviato.Sandbox() as sandbox:
    done = sandbox.exec(["python3", "-c", {IN_SANDBOX!r}]).result(90)
    assert done.returncode == 0, done.stderr
    limits = {{name: limit.value for name, limit in sandbox.limits.items()}}
    print(json.dumps({{"inside": json.loads(done.stdout), "limits": limits}}))
"""
FIRST = "import aviato; aviato.Sandbox().exec(['true']).result(90)"
SOFT = (
    "small = dict(FSIZE=1 << 16, NOFILE=64, STACK=1 << 20, AS=1 << 30, CORE=0, CPU=50, DATA=1 << 29, MEMLOCK=0, SIGPENDING=5,"
    " MSGQUEUE=0, RSS=1 << 20, NPROC=3000)\n"
    "for name, value in small.items():\n"
    "    number = getattr(resource, 'RLIMIT_' + name)\n"
    "    resource.setrlimit(number, (value, resource.getrlimit(number)[1]))"
)
ODD_VARIABLES = {
    **dict.fromkeys(("HOME", "TMPDIR", "SSL_CERT_FILE", "PATH", "BASH_ENV", "CONDA_PREFIX"), "/nowhere"),
    **dict.fromkeys(("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "LD_BIND_NOW"), "1"),
    **dict.fromkeys(("http_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    "PYTHONPATH": f"/nowhere:{os.environ.get('PYTHONPATH', '')}",
    "PYTHONHASHSEED": "5",
    "PYTHONOPTIMIZE": "2",
    "PYTHONMALLOC": "debug",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_PERTURB_": "170",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=1",
    "LANG": "tr_TR.ISO8859-9",
    "LC_ALL": "C",
    "TZ": "Asia/Kathmandu",
}
ODD: dict[str, str] = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "all signals ignored": "[signal.signal(n, signal.SIG_IGN) for n in signal.valid_signals() - {9, 19}]",
    "all signals blocked": "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())",
    "one processor": "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})",
    "no mask": "os.umask(0)",
    "a mask that takes all": "os.umask(0o777)",
    "small soft limits": SOFT,
    "an unlimited stack": "resource.setrlimit(3, (resource.getrlimit(3)[1], resource.getrlimit(3)[1]))",
    "cores": "resource.setrlimit(4, (resource.getrlimit(4)[1], resource.getrlimit(4)[1]))",
    "no random addresses": "libc.personality(0x0040000)",
    "another personality": "libc.personality(0x0020000 | 0x0400000 | 0x0200000)",
    "coarse timers": "libc.prctl(29, 900_000_000, 0, 0, 0)",
    "no huge pages": "libc.prctl(41, 1, 0, 0, 0)",
    "batch": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "idle input and output": "libc.syscall(251 if os.uname().machine == 'x86_64' else 30, 1, 0, 3 << 13)",
    "whole cores dumped": "open('/proc/self/coredump_filter', 'w').write('0x7f')",
    "a directory that is gone": "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "a reaper of orphans": "libc.prctl(36, 1, 0, 0, 0)",
    "dies with its parent": "libc.prctl(1, 15, 0, 0, 0)",
    "odd variables": "",
}
AS_ROOT = {
    "nicer than others": "os.nice(7)",
    "only where nobody else runs": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
}
"""What root can put back, and an ordinary user has for good."""
SETTING = "import ctypes, os, resource, signal, sys, tempfile; libc = ctypes.CDLL(None); "


def begin(how: str, program: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that has done something to itself first, and then exec."""
    source = f"{SETTING}{how}\nos.execv(sys.executable, [sys.executable, '-c', {program!r}])"
    given = {**os.environ, **environment, "AVIATO_STATE_DIR": str(state)}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=600, env=given, check=False)
    said = [line for line in done.stderr.splitlines() if "slow to start" not in line]  # As it may be on a busy machine.
    assert (done.returncode, said) == (0, [])
    return done


def seen(state: Path) -> Any:
    """What an ordinary process finds in a sandbox of its own."""
    return json.loads(begin("", SECOND, state).stdout)


def _both(one: Any, other: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The leaves of two nests of dictionaries, by the names that lead there."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        yield "", (one, other)
        return
    for name in {**one, **other}:
        yield from ((f"{name} {rest}", both) for rest, both in _both(one.get(name), other.get(name)))


@pytest.fixture(scope="module")
def fresh() -> Iterator[Any]:
    """What there is where an ordinary process has started the server."""
    state = make_state_dir()
    yield seen(state)
    stop_embedded(state)
    remove(state)


SHORT = ("SIGCHLD ignored", "small soft limits")


@pytest.mark.parametrize("kind", [*SHORT, *deep(sorted({*ODD, *AS_ROOT} - {*SHORT}))])
def test_it_decides_nothing_for_others(fresh: Any, state: Path, kind: str) -> None:
    begin({**ODD, **AS_ROOT}[kind], FIRST, state, **(ODD_VARIABLES if kind == "odd variables" else {}))
    assert len(embedded_pids(state)) == 1
    assert {name: both for name, both in _both(seen(state), fresh) if both[0] != both[1]} == {}
    assert len(embedded_pids(state)) == (2 if kind in AS_ROOT and os.getuid() else 1)


MAY_RAISE = inheritance.can(inheritance.SYS_RESOURCE)
"""Root usually; in some machines' containers not even root."""
HARD = {
    "FSIZE": (1 << 26, "file_size", 1 << 26),
    "NPROC": (3000, "processes", None),
    "AS": (1 << 30, "memory", 1 << 30),
    "DATA": (1 << 29, "memory", 1 << 29),
    "NOFILE": (1024, "open_files", 512),
    "CPU": (600, None, None),
    "STACK": (8 << 20, None, None),
    "MEMLOCK": (0, None, None),
    "SIGPENDING": (64, None, None),
    "MSGQUEUE": (0, None, None),
}
"""Hard limit → what it is set to, and which limit of a sandbox says how much of it holds."""


@pytest.mark.parametrize("kind", ["FSIZE", *deep(sorted(set(HARD) - {"FSIZE"}))])
def test_a_hard_limit_is_of_a_server_of_its_own_which_says_what_holds(fresh: Any, state: Path, kind: str) -> None:
    most, name, held = HARD[kind]
    limit = f"number = resource.RLIMIT_{kind}; resource.setrlimit(number, ({most}, {most}))"
    bounded = json.loads(begin(limit, SECOND, state).stdout)
    if held is not None and not MAY_RAISE:
        assert bounded["limits"][name] == held
    assert seen(state) == fresh
    assert len(embedded_pids(state)) == (1 if MAY_RAISE else 2)


FILTER = """
import struct
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.c_char_p(struct.pack("HxxxxxxP", 1, ctypes.addressof(program))), 0, 0) == 0
"""
"""All calls are let through."""
STAYS = {
    "no new privileges": "libc.prctl(38, 1, 0, 0, 0)",
    "a filter of system calls": FILTER,
    "first to be killed": "open('/proc/self/oom_score_adj', 'w').write('700')",
    "names of its own": "assert libc.unshare(0x04000000) == 0 or libc.unshare(0x14000000) == 0",
}


@pytest.mark.parametrize("kind", deep(STAYS))
def test_what_nothing_gives_back_is_of_a_server_of_its_own(fresh: Any, state: Path, kind: str) -> None:
    begin(STAYS[kind], FIRST, state)
    assert seen(state) == fresh
    assert len(embedded_pids(state)) == (1 if MAY_RAISE and kind == "first to be killed" else 2)
