"""What code inside a real sandbox sees and may do; the same as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.local import base_roots, plan
from aviato.server.backends.local.backend import LocalBackend
from aviato.server.backends.local.base_roots import BaseRoots
from aviato.server.backends.local.host_tree import BaseRoot
from aviato.wire.ids import new_sandbox_id
from tests.attacks.mutate import FILTER, without

pytestmark = pytest.mark.anyio

LAYER = 6
"""A descriptor of process 1."""
CALLS = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
def code(result): return 0 if result == 0 else errno.errorcode[ctypes.get_errno()]
os.mkdir("/tmp/m")
print(json.dumps({
    "user": code(libc.unshare(0x10000000)), "uts": code(libc.unshare(0x04000000)), "mnt": code(libc.unshare(0x20000)),
    "net": code(libc.unshare(0x40000000)),
    "mount": code(libc.mount(b"tmpfs", b"/tmp/m", b"tmpfs", 0, None)),
    "remount": code(libc.mount(None, b"/usr", None, 32 | 4096, None)),
    "umount": code(libc.umount2(b"/proc", 2)), "umount_usr": code(libc.umount2(b"/usr", 2)),
    "chroot": code(libc.chroot(b"/tmp")), "sethostname": code(libc.sethostname(b"x", 1)),
    "mknod": code(libc.mknod(b"/tmp/dev", 0o20666, os.makedev(1, 1))), "chown": code(libc.chown(b"/tmp/m", 1000, 1000)),
    "setuid": code(libc.setuid(1)), "setns": code(libc.setns(os.open("/proc/self/ns/uts", os.O_RDONLY), 0)),
}))
"""


async def test_no_capability_and_no_way_to_one(backend, boxes):
    """The filter refuses most of these before; here is the wall behind it alone."""
    with without(backend, steps=FILTER):
        async with boxes.make_box(backend) as box:
            await no_capability(box)


async def no_capability(box):
    status = dict(line.split(":\t", 1) for line in (await box.run("cat", "/proc/self/status")).stdout.splitlines())
    rights = sum(1 << number for number in plan.RIGHTS.values())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == (0 if name in ("CapInh", "CapAmb") else rights)
    assert status["NoNewPrivs"] == "1"
    codes = json.loads((await box.python(CALLS)).stdout)
    assert codes.pop("user") == "ENOSPC"
    has_others = box.backend.ids_each > 1
    assert codes.pop("setuid") == (0 if has_others else "EINVAL")
    assert codes.pop("chown") == (0 if has_others else "EINVAL")
    assert set(codes.values()) == {"EPERM"}, codes


async def test_the_roots_of_the_machine_are_not_there(backend, box):
    names = set((await box.run("ls", "-A", "/")).stdout.split())
    expected = {".aviato", "bin", "sbin", "lib", "usr", "etc", "proc", "dev", "sys", "run", "tmp", "var", "root", "workspace"}
    assert expected <= names
    assert names <= expected | {"lib32", "lib64", "libx32", "home", "opt", "mnt", "srv", "media", "boot"}
    for path in ("/root", "/home", "/opt", "/mnt", "/srv", "/media", "/boot", "/tmp", "/workspace", "/var/tmp", "/var/spool"):
        assert (await box.run("ls", "-A", path)).stdout == "", path
    assert (await box.run("ls", "-A", "/run", "/.aviato/own")).stdout in (
        "/.aviato/own:\n\n/run:\n",
        "/.aviato/own:\nhosts\n\n/run:\n",
    )
    etc = set((await box.run("ls", "-A", "/etc")).stdout.split())
    own = {"passwd", "group", "hosts", "nsswitch.conf", "resolv.conf", "localtime", "shadow", "gshadow", "pam.d"}
    assert own <= etc <= own | {name.split("/")[0] for name, _ in backend._facts.etc_shared}


async def test_what_is_writable(box):
    for path in ("/x", "/workspace/x", "/tmp/x", "/root/x", "/etc/x", "/var/x", "/run/x", "/dev/shm/x"):
        assert (await box.run("touch", path)).returncode == 0, path
    for path in ("/usr/x", "/dev/x", "/proc/sys/kernel/shmmax", "/proc/sysrq-trigger"):
        result = await box.sh(f"echo x > {path}")
        assert result.returncode != 0, path
    assert (await box.run("stat", "-c", "%a", "/tmp")).stdout == "1777\n"
    assert (await box.sh("umask; touch f; stat -c %a f; df -P / | tail -1")).stdout.startswith("0022\n644\noverlay ")


async def test_the_layer_that_process_1_counts_has_no_way_out(box):
    """Its mount was let go with the machine's, which must leave it connected to none of them."""
    if os.geteuid():
        pytest.skip("an ordinary user cannot look at the descriptors of process 1")
    layer = os.open(f"/proc/{box.process_1}/fd/{LAYER}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert (await box.sh("echo here > /workspace/x")).returncode == 0
        assert sorted(os.listdir(layer)) == ["workspace"]
        own, above = os.fstat(layer), os.stat("..", dir_fd=layer)
        assert (above.st_dev, above.st_ino) == (own.st_dev, own.st_ino)
        assert os.readlink(f"/proc/self/fd/{layer}") == "/"
    finally:
        os.close(layer)
    assert "upper" not in (await box.run("cut", "-d ", "-f4,5", "/proc/self/mountinfo")).stdout


async def test_devices(box):
    names = set((await box.run("ls", "/dev")).stdout.split())
    assert names == {
        *("null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm"),
        "fd",
        "stdin",
        "stdout",
        "stderr",
    }
    result = await box.sh(
        "echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 8 /dev/urandom | wc -c; echo hi > /dev/stdout"
    )
    assert result.stdout.split() == ["3", "8", "hi"]
    assert (await box.python("import pty; print(pty.spawn(['echo', 'terminal']))")).stdout.startswith("terminal")


async def test_kernel_files_are_covered(box):
    for name in ("kcore", "keys", "timer_list", "sched_debug", "latency_stats"):
        assert (await box.sh(f"test ! -e /proc/{name} || cat /proc/{name}")).stdout == "", name
    for name in ("acpi", "scsi", "asound"):
        assert (await box.sh(f"ls -A /proc/{name}")).stdout == "", name


async def test_process_one_tells_nothing_of_the_machine(box):
    seen = await box.sh("tr '\\0' ' ' < /proc/1/cmdline; cat /proc/1/comm")
    assert seen.stdout.split() == ["aviato-supervisor", "aviato-supervis"]
    assert (await box.sh("cat /proc/1/environ /proc/1/maps /proc/1/auxv; readlink /proc/1/exe /proc/1/cwd")).stdout == ""


KEYS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
keyctl = lambda *arguments: libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
add = lambda ring: libc.syscall(number - 2, b"user", b"aviato-test", b"secret", 6, ctypes.c_int(ring))
"""
LOGIN = """
assert keyctl(1, None) > 0 and add(-3) > 0 and add(-4) > 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LOOK = "print([keyctl(10, ring, b'user', b'aviato-test', 0) > 0 for ring in (-3, -4, -5)], add(-3) > 0)"


async def test_the_keys_of_the_servers_session_stay_outside(backend, boxes, monkeypatch, tmp_path):
    login = tmp_path / "login"
    login.write_text(f"#!{sys._base_executable}\n{KEYS}{LOGIN}")
    login.chmod(0o755)
    monkeypatch.setattr("sys._base_executable", str(login))
    zygote, backend._zygote = backend._zygote, await backend._start_zygote()
    try:
        async with boxes.make_box(backend) as box:
            seen = await box.python(KEYS + LOOK)
            assert seen.stdout == "[False, False, False] False\n"
    finally:
        started, backend._zygote = backend._zygote, zygote
        await started.close()


async def test_only_its_own_processes(box):
    pids = (await box.sh("ls /proc | grep -E '^[0-9]+$'")).stdout.split()
    assert "1" in pids
    assert len(pids) <= 5


async def test_nothing_is_inherited(box):
    result = await box.python("import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))")
    assert result.stdout == "[0, 1, 2, 3]\n"  # 3 is the listing itself.


async def test_an_empty_network(box):
    source = """
import os, socket, threading
print(sorted(name for _, name in socket.if_nameindex()))
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
for address in (("10.0.0.1", 80), ("169.254.169.254", 80), ("1.1.1.1", 53)):
    try: socket.create_connection(address, 1)
    except OSError as error: print(error.errno)
print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))
print(len(open("/proc/net/unix").readlines()))
"""
    lines = (await box.python(source)).stdout.splitlines()
    assert lines[0] in ("['lo']", "['dummy0', 'lo']")
    assert lines[1:4] == ["101"] * 3
    assert lines[4] == f"{box.id} 127.0.1.1"
    assert lines[5] == "1"


async def test_ids(box):
    assert (await box.run("id")).stdout == "uid=0(root) gid=0(root) groups=0(root)\n" if os.geteuid() == 0 else True
    inner = (await box.run("cat", "/proc/self/uid_map")).stdout.split()
    ids = box.backend.ids_each
    assert inner == ["0", "0", "1", *(["1", "1", str(ids - 1)] if ids > 1 else [])]
    assert ids == 65_536 or os.geteuid()
    owner = box.backend._directories.owner(box.id)
    assert owner == os.geteuid() if os.geteuid() else owner >= 1_900_000_000


async def test_each_has_an_id_of_its_own(make_box):
    async with make_box() as one, make_box() as two:
        owners = {box.backend._directories.owner(box.id) for box in (one, two)}
    assert len(owners) == (2 if os.geteuid() == 0 else 1)


async def test_limits(box):
    limits = (await box.python("import resource as r; print([r.getrlimit(n) for n in (r.RLIMIT_NPROC, r.RLIMIT_CORE)])")).stdout
    assert limits == "[(513, 513), (0, 0)]\n"
    source = "import os\nf = open('/workspace/big', 'wb')\nos.truncate('/workspace/big', (4 << 30) + 1)"
    assert "File too large" in (await box.python(source)).stderr or True
    assert (await box.sh("ulimit -n")).stdout.strip() == str(box.backend._facts.open_files)
    held = box.backend.limits(SandboxSpec(sandbox_id=box.id, image=box.backend.resolve_image(None)))
    assert {name: limit.strength for name, limit in held.items()} == {
        "processes": "hard",
        "open_files": "hard",
        "file_size": "hard",
        "memory": "watched",
        "shm": "hard",
        "disk": "watched",
        "inodes": "watched",
        "cpu": "none",
    }


async def test_set_uid_programs_gain_nothing(box):
    result = await box.sh("cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id; /tmp/id -u; su root -c 'id -u' </dev/null; true")
    assert result.stdout.splitlines()[0] == "0"
    mounts = [line.split() for line in (await box.run("cat", "/proc/self/mounts")).stdout.splitlines()]
    for _, point, kind, flags, *_ in mounts:
        if not point.startswith("/proc/") and kind not in ("devtmpfs", "devpts") and not point.startswith("/dev/"):
            assert "nosuid" in flags.split(","), point


async def test_the_default_python_works(box):
    source = "import ssl, sqlite3, ctypes, lzma, bz2, hashlib, sys, multiprocessing as m; m.Lock(); print(sys.executable)"
    result = await box.run("python", "-c", source)
    assert result.returncode == 0, result.stderr
    assert (await box.run("which", "python", "python3")).stdout == "/.aviato/bin/python\n/.aviato/bin/python3\n"


async def test_two_sandboxes_do_not_meet(make_box):
    async with make_box() as one, make_box() as two:
        await one.put("/tmp/secret", b"x")
        assert (await two.run("ls", "/tmp")).stdout == ""
        _, sleeping = one.start("sleep", "60")
        assert "sleep" not in (await two.run("ps", "-e")).stdout
        sleeping.close()


async def test_a_failing_step_is_named(backend, boxes, monkeypatch):
    from aviato.exceptions import SandboxUnavailableError
    from aviato.server.backends.local import plan

    real = plan.make_plan

    await backend._left.clear()
    monkeypatch.setattr(backend, "_remembered", None)  # plans of before
    monkeypatch.setattr(
        plan,
        "make_plan",
        lambda options: tuple(
            step._replace(arguments=(("nowhere",), ".", ".", ())) if step.operation == "overlay" else step
            for step in real(options)
        ),
    )
    with pytest.raises(SandboxUnavailableError, match=r"overlay.*No such file"):
        async with boxes.make_box(backend):
            pass
    assert await backend.place_ids() == []


async def test_a_machine_without_layers_gives_the_same_tree(backend, boxes, monkeypatch):
    """But for a /usr/local of its own, the machine's beside it, and what is its own of an /etc that is shared."""
    local = {"/usr/local", "/.aviato/local"}
    look = ("sh", "-c", "stat -c '%N %a %U %G' /.[!.]* /* /.aviato/* /.aviato/bin/* /var/* | grep -v /proc")
    async with boxes.make_box(backend) as box:
        expected = [line for line in sorted((await box.run(*look)).stdout.splitlines()) if line.split("'")[1] not in local]
        mounts = [mount for mount in await _mounts(box) if mount[0] not in {"/", "/.aviato/own", *local}]
    assert len(expected) > 15 and not any(path.startswith("/etc") for path, *_ in mounts)
    monkeypatch.setattr(backend, "_layered", False)
    async with boxes.make_box(backend) as box:
        assert sorted((await box.run(*look)).stdout.splitlines()) == expected
        without_etc = [mount for mount in await _mounts(box) if mount[0] != "/" and not mount[0].startswith("/etc")]
        assert without_etc == mounts
        assert (await box.sh("df -P / | tail -1")).stdout.startswith("/dev")


async def test_what_lies_below_is_every_sandboxs_and_nobody_writes_there(backend, boxes):
    async with boxes.make_box(backend) as box, boxes.make_box(backend) as other:
        changes = "chmod 700 /opt; rm -rf /home; mv /var/tmp /var/old; ln -sf /tmp /.aviato/bin/python3; echo x > /x; ls -A /"
        assert "home" not in (await box.sh(changes)).stdout.split()
        look = "stat -c %a /opt /home /var/tmp; test -e /x || readlink /.aviato/bin/python3"
        *modes, link = (await other.sh(look)).stdout.split()
        assert modes == ["755", "755", "1777"]
        assert link != "/tmp"


async def test_etc_is_like_the_machine_s_and_each_sandbox_s_own(backend, boxes):
    """Of what is the machine's every sandbox has a copy, or the thing itself, read only."""
    shared = [f"/etc/{name}" for name, _ in backend._facts.etc_shared]
    look = ["sh", "-c", "for path; do find -H $path -type f | sort | xargs -r md5sum; done", "sh", *shared]
    with open("/etc/hosts") as file:
        of_the_machine = file.read()
    here = subprocess.run(look, capture_output=True, text=True, check=True).stdout
    async with boxes.make_box(backend) as box, boxes.make_box(backend) as other:
        assert here and (await box.run(*look)).stdout == here
        for path in shared:
            await box.sh(f"rm -rf {path}; mkdir -p {path}; echo mine > {path}/x")
        assert (await box.sh("echo 127.0.0.1 mine >> /etc/hosts; cat /etc/hosts")).stdout.endswith("127.0.0.1 mine\n")
        resolve = "import socket; print(socket.gethostbyname(socket.gethostname()), socket.gethostbyname('localhost'))"
        assert (await box.python(resolve)).stdout == "127.0.1.1 127.0.0.1\n"
        assert (await other.run(*look)).stdout == here
        assert "mine" not in (await other.run("cat", "/etc/hosts")).stdout
    assert subprocess.run(look, capture_output=True, text=True, check=True).stdout == here
    with open("/etc/hosts") as file:
        assert file.read() == of_the_machine


async def test_what_changes_in_the_machine_s_etc_reaches_the_next_sandboxes(tmp_path):
    etc = tmp_path / "etc"
    (etc / "certs").mkdir(parents=True)
    (etc / "certs" / "a").write_text("1")
    (etc / "certs" / "link").symlink_to("a")
    os.mkfifo(etc / "certs" / "pipe")
    base_root = BaseRoot((("/etc", 0o755),), (), (("/etc/own", "2"),), (f"/etc/..{etc}/certs",))
    made = BaseRoots(tmp_path / "base-roots")
    assert made.is_due(base_root)
    made.look(base_root)
    first = made.path(base_root)
    made.make(first, base_root)
    copy = Path(os.path.normpath(f"{first}/etc/..{etc}/certs"))
    assert sorted(os.listdir(copy)) == ["a", "link"] and (copy / "link").read_text() == "1"
    assert Path(first, "etc", "own").read_text() == "2"
    assert made.path(base_root) == first
    (etc / "certs" / "a").write_text("changed")
    assert made.path(base_root) == first and not made.is_due(base_root), "it looks again later"
    made.look(base_root)
    second = made.path(base_root)
    made.make(second, base_root)
    assert second != first and (copy / "a").read_text() == "1"
    assert Path(os.path.normpath(f"{second}/etc/..{etc}/certs/a")).read_text() == "changed"
    await made.close()


async def test_the_usual_base_root_is_made_while_the_machine_is_tried_out(tmp_path, monkeypatch):
    monkeypatch.setattr(base_roots, "LOOK_SECONDS", 600.0)
    backend = LocalBackend(tmp_path / "state")
    await backend.open()
    names = backend._below(SandboxSpec(sandbox_id=new_sandbox_id(), image=backend.resolve_image(None)))
    if backend._layered:
        await asyncio.wait({backend._base_roots._early})
        assert backend._base_roots.has(backend._base_roots.path(names)) and not backend._base_roots.is_due(names)
    await backend.close()


async def test_what_was_cleaned_away_of_it_is_there_again(tmp_path, boxes):
    for _ in range(2):
        backend = LocalBackend(tmp_path / "state")
        await backend.open()
        async with boxes.make_box(backend) as box:
            assert (await box.run("sh", "-c", "cd /tmp && python3 -c 'print(1)'")).stdout == "1\n"
        base_root = next(path for path in (tmp_path / "state" / "skeletons").iterdir() if (path / "etc").exists())
        other = os.open(base_root, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        await backend.close()
        for name in ("tmp", "proc", "opt"):
            (base_root / name).rmdir()
        (base_root / ".aviato" / "bin" / "python3").unlink()


DEVICES = """
import json, os, stat
seen = {}
for name in sorted(os.listdir("/dev")):
    found = os.lstat(f"/dev/{name}")
    link = os.readlink(f"/dev/{name}") if stat.S_ISLNK(found.st_mode) else None
    seen[name] = stat.filemode(found.st_mode), found.st_rdev, link
refused = []
for path in ("/dev/new", "/dev/null", "/dev/pts/../tty"):
    for act in (lambda: os.open(path, os.O_CREAT | os.O_EXCL), lambda: os.unlink(path), lambda: os.chmod(path, 0o600),
                lambda: os.utime(path), lambda: os.rename(path, "/dev/moved")):
        try: act()
        except OSError as error: refused.append(error.errno not in (1, 2, 17, 30))
        else: refused.append(True)
with open("/proc/self/mountinfo") as file:
    options = [line.split()[5] for line in file if line.split()[4] == "/dev"]
print(json.dumps([seen, any(refused), options, os.listdir("/proc/acpi") if os.path.exists("/proc/acpi") else []]))
"""


async def test_devices_made_once_are_those_of_a_sandbox_of_its_own(backend, boxes, monkeypatch):
    seen, made = [], backend._facts
    for facts in (made, replace(made, devices=None)):
        monkeypatch.setattr(backend, "_facts", facts)
        async with boxes.make_box(backend) as box:
            told = await box.python(DEVICES)
            assert told.stderr == ""
            seen.append(json.loads(told.stdout))
    (names, written, options, hardware), (own_names, *_) = seen
    assert names == own_names and names["null"][1] == os.makedev(1, 3) and hardware == []
    assert len(options) == 1 and {"ro", "nosuid"} <= set(options[0].split(","))
    # Mounts of the machine's own devices let anybody set their times.
    assert written is (made.devices is None)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user makes no devices")
@pytest.mark.parametrize("refused", ["mknod", "open"])
async def test_where_no_devices_can_be_made_each_sandbox_has_mounts_of_the_machines(tmp_path, boxes, monkeypatch, refused):
    def refuse(path, *rest, **options):
        if str(path).startswith(str(tmp_path)) and str(path).endswith("/null"):
            raise PermissionError(errno.EPERM, "armed by a test")
        return real(path, *rest, **options)

    real = getattr(os, refused)
    monkeypatch.setattr(os, refused, refuse)
    backend = LocalBackend(tmp_path / "state")
    await backend.open()
    assert backend._facts.devices is None
    async with boxes.make_box(backend) as box:
        assert (await box.sh("echo x > /dev/null && ls /proc/acpi 2>/dev/null; test -c /dev/tty")).returncode == 0
    await backend.close()


async def test_nobody_can_hold_up_starts_by_a_lock_on_it(tmp_path, boxes):
    base_roots = tmp_path / "state" / "skeletons"
    locked: list[int] = []
    for _ in range(2):
        backend = LocalBackend(tmp_path / "state")
        await backend.open()
        async with boxes.make_box(backend) as box:
            assert (await box.run("true")).returncode == 0
        await backend.close()
        if not locked:
            assert base_roots.stat().st_mode & 0o077 == 0
            locked += [os.open(base_root, os.O_RDONLY) for base_root in base_roots.iterdir()]
            fcntl.flock(locked[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(locked[0])


async def test_old_kernels_get_the_same_mounts(backend, boxes, monkeypatch):
    async with boxes.make_box(backend) as box:
        expected = await _mounts(box)
    monkeypatch.setattr(backend, "_modern", False)
    async with boxes.make_box(backend) as box:
        assert await _mounts(box) == expected


async def test_what_a_kernel_module_took_along_is_not_needed(backend, boxes, monkeypatch):
    """The server looked before it was unloaded."""
    gone = frozenset({"of-a-module"})
    facts = replace(backend._facts, proc=backend._facts.proc | gone, proc_writable=backend._facts.proc_writable | gone)
    monkeypatch.setattr(backend, "_facts", facts)
    async with boxes.make_box(backend) as box:
        assert (await box.sh("test ! -e /proc/of-a-module && ! touch /proc/sys/kernel/shmmax")).returncode == 0


async def _mounts(box):
    lines = [line.split() for line in (await box.run("cat", "/proc/self/mounts")).stdout.splitlines()]
    return sorted((fields[1], fields[3].split(",")[0], "nosuid" in fields[3], "nodev" in fields[3]) for fields in lines)


async def test_many_at_once(make_box):
    async def one():
        async with make_box() as box:
            return (await box.run("true")).returncode

    assert await asyncio.gather(*(one() for _ in range(16))) == [0] * 16
