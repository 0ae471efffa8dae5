"""What is tried inside. Each program prints `True` where it got what it wanted, or the error that it was refused with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyseccomp

from aviato.server.backends.local.rules import LATE_NUMBERS
from tests.attacks.mutate import CAPABILITIES

CALLS = (
    *("add_key", "bpf", "chroot", "clone", "clone3", "close_range", "fallocate", "fanotify_init", "fcntl", "fsopen"),
    *("getsockopt", "io_setup", "io_uring_setup", "setsockopt"),
    *("ioctl", "ioprio_set", "kcmp", "keyctl", "migrate_pages", "mount", "move_pages"),
    *("open_tree", "perf_event_open", "personality", "prctl"),
    *("pidfd_getfd", "pidfd_open", "prlimit64", "process_vm_readv", "ptrace", "quotactl", "reboot"),
    *("request_key", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
    *(
        "setdomainname",
        "setgroups",
        "sethostname",
        "setns",
        "setpriority",
        "socket",
        "umount2",
        "unshare",
        "userfaultfd",
        "vmsplice",
    ),
)


def number(call: str) -> int:
    """Of a system call here; negative where there is none."""
    found = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call)
    return found if found >= 0 else LATE_NUMBERS.get(call, -1)


PRELUDE = f"""
import ctypes, errno, fcntl, mmap, os, pty, shutil, signal, struct, sys, time
NUMBERS = {json.dumps({call: number(call) for call in CALLS})}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(name, *arguments):
    given = [one if one is None or isinstance(one, (bytes, ctypes.Array)) else ctypes.c_ulong(one % 2**64) for one in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *given)
    if result < 0:
        print(errno.errorcode[ctypes.get_errno()])
        raise SystemExit(0)
    return result
def buffer(data): return ctypes.create_string_buffer(data, len(data))
def child():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"x")
        time.sleep(60)
    os.read(read, 1)
    return pid
"""

EACH = """
import ast
def attempt(source):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        try: eval(source); print("done", flush=True)
        finally: sys.stdout.flush(); os._exit(0)
    os.close(write)
    said = os.read(read, 100).decode().strip()
    os.waitpid(pid, 0)
    return said
print({name: attempt(source) for name, source in ast.literal_eval(sys.argv[1]).items()})
"""
"""After `PRELUDE`: makes each of the calls that its argument has by name, and prints what became of it."""

LIMITS_BY_NUMBER = {
    "limits": "call('prlimit64', {0}, 0, buffer(struct.pack('QQ', 3600, 3600)), None)",
    "limits, upper half": "call('prlimit64', {0} | 1 << 32, 0, buffer(struct.pack('QQ', 3600, 3600)), None)",
}
TURNS_BY_NUMBER = {
    "priority": "call('setpriority', 0, {0}, 19)",
    "priority, upper half": "call('setpriority', 1 << 32, {0} | 1 << 32, 19)",
    "scheduler": "call('sched_setscheduler', {0}, 5 | 1 << 30, buffer(bytes(4)))",
    "attributes": "call('sched_setattr', {0}, buffer(struct.pack('<IIQiIQQQ', 48, 5, 1, 0, 0, 0, 0, 0)), 0)",
    "parameters": "call('sched_setparam', {0}, buffer(bytes(4)))",
    "affinity": "call('sched_setaffinity', {0}, 8, buffer(struct.pack('Q', 1)))",
    "input priority": "call('ioprio_set', 1, {0}, 2 << 13 | 7)",
}
PAGES_BY_NUMBER = {
    "pages": "call('migrate_pages', {0}, 8, buffer(bytes(8)), buffer(bytes(8)))",
    "places of pages": "call('move_pages', {0}, 0, None, None, None, 0)",
}


def of(number: int | str, calls: dict[str, str]) -> str:
    """For `EACH`: the calls on a process or thread, by its number or a name that the program has for it."""
    return repr({name: source.format(number) for name, source in calls.items()})


PRIORITY = "print(call('setpriority', {}) == 0)"
SCHEDULE = "print(call('sched_{}', {}) == 0)"
NEW = {"mount": 1 << 17, "cgroup": 1 << 25, "uts": 1 << 26, "ipc": 1 << 27, "user": 1 << 28, "pid": 1 << 29, "net": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attempt.

    Attributes:
        family: the rules that refuse it; None: the filter as a whole, which knows one way of calling only.
        source: the program; it ends with a line as described above.
        refused: what it prints where the filter stands.
        steps: another wall in front of it. Each must be enough, and without both it must succeed.
        reaches: the machine may lack the feature, or keep it for its own root: without the filter any other answer will do.
    """

    family: str | None
    source: str
    refused: str = "EPERM"
    steps: tuple[str, ...] = ()
    reaches: bool = False


def _mounts() -> dict[str, Attack]:
    own: dict[str, Any] = {"family": "mounts", "steps": CAPABILITIES}
    return {
        "mount": Attack(source="print(call('mount', b'none', b'/tmp', b'tmpfs', 0, None) == 0)", **own),
        "umount": Attack(source="print(call('umount2', b'/proc', 2) == 0)", **own),
        "chroot": Attack(source="os.mkdir('/tmp/d'); print(call('chroot', b'/tmp/d') == 0)", **own),
        "fsopen": Attack(source="print(call('fsopen', b'tmpfs', 0) > 0)", refused="ENOSYS", **own),
        "open_tree": Attack(source="print(call('open_tree', -100, b'/usr', 1) > 0)", refused="ENOSYS", **own),
    }


def _namespaces() -> dict[str, Attack]:
    own: dict[str, Any] = {"family": "namespaces", "steps": CAPABILITIES}
    clone = "pid = call('clone', {} | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nprint(os.waitpid(pid, 0)[1] == 0)"
    clone3 = f"pid = call('clone3', buffer(struct.pack('<8Q', {NEW['user']}, 0, 0, 0, 17, 0, 0, 0)), 64)"
    attacks = {f"unshare {name}": f"print(call('unshare', {flag}) == 0)" for name, flag in NEW.items() if name != "uts"}
    attacks |= {f"clone {name}": clone.format(flag) for name, flag in NEW.items()}
    attacks["setns"] = "print(call('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0) == 0)"
    found = {name: Attack(source=source, **own) for name, source in attacks.items()}
    found["clone3"] = Attack(source=clone3 + "\nif pid == 0: os._exit(0)\nprint(pid > 0)", refused="ENOSYS", **own)
    return found


def _process_1() -> dict[str, Attack]:
    sources = {
        "prlimit of process 1": "print(call('prlimit64', 1, 0, buffer(struct.pack('QQ', 3600, 3600)), None) == 0)",
        "prlimit, upper half": "print(call('prlimit64', 1 | 1 << 32, 0, buffer(struct.pack('QQ', 3600, 3600)), None) == 0)",
        "setpriority of process 1": PRIORITY.format("0, 1, 19"),
        "setpriority, upper half": PRIORITY.format("1 << 32, 1 | 1 << 32, 19"),
        "setpriority of a group": PRIORITY.format("1, 0, 19"),
        "setpriority of a user": PRIORITY.format("2, 0, 19"),
        "sched_setscheduler": SCHEDULE.format("setscheduler", "1, 5 | 1 << 30, buffer(bytes(4))"),
        "sched_setattr": SCHEDULE.format("setattr", "1, buffer(struct.pack('<IIQiIQQQ', 48, 5, 1, 0, 0, 0, 0, 0)), 0"),
        "sched_setparam": SCHEDULE.format("setparam", "1, buffer(bytes(4))"),
        "sched_setaffinity": SCHEDULE.format("setaffinity", "1, 8, buffer(struct.pack('Q', 1))"),
        "ioprio_set of process 1": "print(call('ioprio_set', 1, 1, 2 << 13 | 7) == 0)",
        "ioprio_set of a group": "print(call('ioprio_set', 2, 0, 2 << 13 | 7) == 0)",
        "ioprio_set of a user": "print(call('ioprio_set', 3, 0, 2 << 13 | 7) == 0)",
    }
    # Capabilities that commands lack stand before all but the limits and a command's own group.
    bare = ("prlimit", "setpriority of a group", "ioprio_set of a group")
    walls = {name: () if name.startswith(bare) else CAPABILITIES for name in sources}
    return {name: Attack(family="process 1", source=source, steps=walls[name]) for name, source in sources.items()}


def _others() -> dict[str, Attack]:
    read = """
there, here = buffer(b"secret"), buffer(bytes(6))
far, near = (buffer(struct.pack("QQ", ctypes.addressof(one), 6)) for one in (there, here))
print(call("process_vm_readv", child(), near, 1, far, 1, 0) == 6 and here.raw == b"secret")
"""
    sources = {
        "process_vm_readv": read,
        "pidfd_getfd": "print(call('pidfd_getfd', call('pidfd_open', child(), 0), 1, 0) > 0)",
        "kcmp": "print(call('kcmp', os.getpid(), child(), 0, 1, 1) >= 0)",
    }
    return {name: Attack(family="other processes", source=source) for name, source in sources.items()}


def _kernel() -> dict[str, Attack]:
    perf = "struct.pack('<IIQQQQQ', 1, 112, 0, 0, 0, 0, 1 << 5 | 1 << 6).ljust(112, bytes(1))"
    return {
        "setdomainname": Attack(family="machine", source="print(call('setdomainname', b'x', 1) == 0)", steps=CAPABILITIES),
        "reboot": Attack(family="machine", source="call('reboot', 1, 2, 3, None)", steps=CAPABILITIES, reaches=True),
        "quotactl": Attack(family="machine", source="print(call('quotactl', 0x80000100, None, 0, None) == 0)", reaches=True),
        "fanotify": Attack(family="machine", source="print(call('fanotify_init', 0x200, 0) > 0)", reaches=True),
        "bpf": Attack(family="bpf", source="print(call('bpf', 9999, None, 0) == 0)", reaches=True),
        "perf": Attack(family="perf", source=f"print(call('perf_event_open', buffer({perf}), 0, -1, -1, 0) > 0)", reaches=True),
        "add_key": Attack(family="keys", source="print(call('add_key', b'user', b'name', b'secret', 6, -2) > 0)"),
        "keyctl": Attack(family="keys", source="print(call('keyctl', 0, -2, 1) > 0)"),
        "request_key": Attack(family="keys", source="call('request_key', b'user', b'none', None, 0)", reaches=True),
        "io_uring": Attack(
            family="io_uring", source="print(call('io_uring_setup', 4, buffer(bytes(120))) > 0)", refused="ENOSYS", reaches=True
        ),
        **_counts(),
        "a core of one's own": Attack(
            family="core scheduling", source="print(call('prctl', 62, 1, 0, 0, 0) == 0)", reaches=True
        ),
        "userfaultfd": Attack(family="userfaultfd", source="print(call('userfaultfd', 1 | os.O_CLOEXEC) > 0)", reaches=True),
        "personality": Attack(family="personality", source="print(call('personality', 1 << 22) >= 0)"),
        "personality, upper half": Attack(family="personality", source="print(call('personality', 1 << 22 | 1 << 32) >= 0)"),
    }


def _counts() -> dict[str, Attack]:
    option = "import socket\nsock = socket.socket(socket.{})\nprint(call('setsockopt', sock.fileno(), {}, {}, {}, {}) == 0)"
    label = "buffer(socket.inet_pton(socket.AF_INET6, '::1') + struct.pack('!IBBHHHI', 5, 0, 1, 256, 0, 0, 0))"
    compiled = "code := buffer(struct.pack('HBBI', 6, 0, 0, 1)), buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))"
    compiled = f"({compiled})[1]"
    sources = {
        "flow label": option.format("AF_INET6, socket.SOCK_DGRAM", 41, 32, label, 32),
        "flow label, upper half": option.format("AF_INET6, socket.SOCK_DGRAM", "41 | 1 << 32", "32 | 1 << 32", label, 32),
        "filter of a socket": option.format("AF_INET, socket.SOCK_DGRAM", 1, 26, compiled, 16),
        "filter of a pair": option.format("AF_UNIX", 1, 26, compiled, 16),
        "filter of a port": option.format("AF_INET, socket.SOCK_DGRAM", 1, 51, compiled, 16).replace(
            "\nprint", "\nsock.setsockopt(1, socket.SO_REUSEPORT, 1)\nsock.bind(('127.0.0.1', 0))\nprint"
        ),
    }
    found = {name: Attack(family="machine's counts", source=source) for name, source in sources.items()}
    groups = "print(call('setgroups', {}, buffer(bytes(4 << 16))) == 0)"
    own: dict[str, Any] = {"family": "groups of a process", "refused": "EINVAL", "reaches": True}
    setup = "print(call('io_setup', 128, buffer(bytes(8))) == 0)"
    return {
        **found,
        "io_setup": Attack(family="machine's counts", source=setup, refused="ENOSYS", reaches=True),
        "groups of a process": Attack(source=groups.format("1 << 16"), **own),
        "groups of a process, upper half": Attack(source=groups.format("1 << 16 | 1 << 32"), **own),
        "pages in pipes": Attack(family="pages in pipes", source=PAGES_IN_PIPES, refused="ENOSYS"),
        **_uncounted(),
        **_own_descriptors(),
    }


def _uncounted() -> dict[str, Attack]:
    own: dict[str, Any] = {"family": "uncounted memory"}
    option = "import socket\nsock = socket.socket()\nprint(call('setsockopt', sock.fileno(), {}, {}, {}) == 0)"
    key = "buffer(struct.pack('=HHI120xBBHI80s', 2, 0, 0x7f000001, 0, 0, 4, 0, b'key!')), 216"
    keys = {"a key of a socket": (6, 14), "a key of a socket, more": (6, 32), "a newer key of a socket": (6, 38)}
    one = "buffer(struct.pack('i', 1)), 4"
    receive = "import socket\nsock = socket.socket()\n"
    receive += "print(call('getsockopt', sock.fileno(), {}, {}, buffer(bytes(64)), buffer(struct.pack('i', 64))) == 0)"
    return {
        "places of futexes": Attack(source="print(call('prctl', 78, 1, 16, 0, 0) == 0)", reaches=True, **own, refused="EINVAL"),
        "places of futexes, upper half": Attack(
            source="print(call('prctl', 78 | 1 << 32, 1, 16, 0, 0) == 0)", reaches=True, **own, refused="EINVAL"
        ),
        "pages that wait to be sent": Attack(source=option.format(1, 60, one), **own),
        "pages that wait to be sent, upper half": Attack(source=option.format("1 | 1 << 32", "60 | 1 << 32", one), **own),
        **{name: Attack(source=option.format(*of, key), reaches=True, **own) for name, of in keys.items()},
        "pages that have been received": Attack(source=receive.format(6, 35), reaches=True, **own),
        "pages that have been received, upper half": Attack(
            source=receive.format("6 | 1 << 32", "35 | 1 << 32"), reaches=True, **own
        ),
    }


def _own_descriptors() -> dict[str, Attack]:
    """A thread has a file that no other thread shows."""
    own: dict[str, Any] = {"family": "descriptors of a thread"}
    hide = """
import threading
def hide():
    global own, said
    said = libc.syscall(ctypes.c_long(NUMBERS[{!r}]), *[ctypes.c_ulong(one) for one in {}])
    if said == 0: own = os.memfd_create("x")
    else: said = errno.errorcode[ctypes.get_errno()]
thread = threading.Thread(target=hide)
thread.start()
thread.join()
if said == 0:
    try: os.fstat(own); said = "seen"
    except OSError: said = True
print(said)
"""
    born = """
flags = 0x10000 | 0x100 | 0x800 | 0x200
stack = ctypes.create_string_buffer(1 << 16)
run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
libc.pause.restype = ctypes.c_int
got = libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.addressof(stack) + 65000 & ~15, flags, None)
print(True if got > 0 else errno.errorcode[ctypes.get_errno()], flush=True)
os._exit(0)
"""
    return {
        "descriptors of one's own": Attack(source=hide.format("unshare", "(0x400,)"), **own),
        "descriptors of one's own from a range on": Attack(
            source=hide.format("close_range", "(1 << 20, 1 << 21, 2)"), **own, refused="EINVAL"
        ),
        "a thread that is born with them": Attack(source=born, **own, refused="EINVAL"),
    }


PAGES_IN_PIPES = """
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
read, write = os.pipe()
fcntl.fcntl(write, 1031, 1 << 16)
for number in range(16):  # Each page is nobody's but the pipe's, which shows one byte of it.
    page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
    ctypes.memset(page, number, 4096)
    call("vmsplice", write, buffer(struct.pack("PL", page, 1)), 1, 2)
    libc.munmap(page, 4096)
print(os.read(read, 99) == bytes(range(16)))
"""


def _sockets() -> dict[str, Attack]:
    def open_one(*arguments: int) -> str:
        return f"print(call('socket', {', '.join(map(str, arguments))}) > 0)"

    own: dict[str, Any] = {"family": "sockets"}
    return {
        "raw socket": Attack(source=open_one(2, 3, 1), steps=CAPABILITIES, **own),
        "raw socket, version 6": Attack(source=open_one(10, 3 | 0o2000000, 58), steps=CAPABILITIES, **own),
        "packet socket by its old name": Attack(source=open_one(2, 10, 768), steps=CAPABILITIES, reaches=True, **own),
        "packet socket": Attack(source=open_one(17, 3, 768), refused="EAFNOSUPPORT", steps=CAPABILITIES, **own),
        "multipath": Attack(source=open_one(2, 1, 262), refused="EPROTONOSUPPORT", reaches=True, **own),
        "multipath, upper half": Attack(source=open_one(2, 1, 262 | 1 << 32), refused="EPROTONOSUPPORT", reaches=True, **own),
        "netlink of the firewall": Attack(source=open_one(16, 3, 12), refused="EPROTONOSUPPORT", reaches=True, **own),
        "netlink of devices": Attack(source=open_one(16, 3, 15), refused="EPROTONOSUPPORT", **own),
    }


def _files() -> dict[str, Attack]:
    tried = """
pid, terminal = pty.fork()
if pid == 0:
    {call}
    sys.stdout.flush()
    os._exit(0)
said = b""
while b"\\n" not in said:
    said += os.read(terminal, 100)
print(said.decode().split()[0])
"""
    own: dict[str, Any] = {"family": "terminals"}
    push = "print(call('ioctl', 0, {}, b'x') == 0)"
    lease = "shutil.copy('/bin/true', 'program')\nfd = os.open('program', os.O_RDONLY)\nprint(call('fcntl', fd, {}, 1) == 0)"
    room: dict[str, Any] = {"family": "preallocation", "refused": "ENOTSUP"}
    file = "fd = os.open('file', os.O_RDWR | os.O_CREAT)\n"
    request = "print(call('ioctl', fd, {}, buffer(struct.pack('hhqqi16x', 0, 0, 0, 1 << 20, 0))) == 0)"
    return {
        "fallocate": Attack(source=file + "print(call('fallocate', fd, 0, 0, 1 << 20) == 0)", **room),
        "fallocate, size kept": Attack(source=file + "print(call('fallocate', fd, 1, 0, 1 << 20) == 0)", **room),
        "fallocate, zeros, upper half": Attack(
            source=file + "print(call('fallocate', fd, 16 | 1 << 33, 0, 4096) == 0)", **room
        ),
        "fallocate of memory": Attack(
            source="fd = os.memfd_create('x')\nprint(call('fallocate', fd, 0, 0, 1 << 20) == 0)", **room
        ),
        "RESVSP": Attack(source=file + request.format(0x40305828), reaches=True, **room),
        "RESVSP64, upper half": Attack(source=file + request.format(0x4030582A | 1 << 32), reaches=True, **room),
        "TIOCSTI": Attack(source=tried.format(call=push.format(0x5412)), reaches=True, **own),
        "TIOCSTI, upper half": Attack(source=tried.format(call=push.format(0x5412 | 1 << 32)), reaches=True, **own),
        "line discipline": Attack(source=tried.format(call="print(call('ioctl', 0, 0x5423, buffer(bytes(4))) == 0)"), **own),
        "lease on a program": Attack(family="leases", source=lease.format(1024), refused="EINVAL"),
        "lease, upper half": Attack(family="leases", source=lease.format(1024 | 1 << 32), refused="EINVAL"),
    }


ATTACKS: dict[str, Attack] = {
    **_mounts(),
    **_namespaces(),
    **_process_1(),
    **_others(),
    **_kernel(),
    **_sockets(),
    **_files(),
}

LOCKED_IN_SOCKETS = """
import array, errno, fcntl, os, socket, time
held = os.open("/", os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX)
def send(sock, *fds):
    while True:
        try:
            return sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        except OSError as error:  # An ordinary user's sandboxes share one count of them.
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.02)
pair = socket.socketpair()
send(pair[0], held)
for _ in range(800):  # The kernel finds out later that nobody has them, and closes one link after the other.
    before, pair = pair, socket.socketpair()
    send(pair[0], *(end.fileno() for end in before))
    for end in before:
        end.close()
send(pair[0], *(end.fileno() for end in pair))
print(True)
"""
"""Holds a lock on / by a descriptor that outlives it: in a socket in a socket and so on, the last of which is in itself."""
