"""Attacks on what sandboxes without namespaces promise. Each must fail, and succeed without what stands in front of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from aviato.server.backends.local import landlock_calls as calls
from tests.attacks.programs import PRELUDE, number
from tests.landlock.victims import neighbour, subreaper_of

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

NUMBERS = {
    name: number(name) for name in ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
}
NUMBERS |= {name: number(name) for name in ("shmget", "mq_open", "semget")}
SENDS = f"""{PRELUDE}
NUMBERS.update({NUMBERS!r})
info = buffer(struct.pack("iii", 10, 0, -1).ljust(128, bytes(1)))
def send(how, pid, number=9):
    if how == "kill": call("kill", pid, number)
    if how == "kill, upper half": call("kill", pid | 1 << 32, number)
    if how == "group": call("kill", -pid, number)
    if how == "tkill": call("tkill", pid, number)
    if how == "tgkill": call("tgkill", pid, pid, number)
    if how == "queue": call("rt_sigqueueinfo", pid, number, info)
    if how == "thread queue": call("rt_tgsigqueueinfo", pid, pid, number, info)
    if how == "pidfd": call("pidfd_send_signal", call("pidfd_open", pid, 0), number, None, 0)
    if how == "directory": call("pidfd_send_signal", os.open(f"/proc/{{pid}}", os.O_RDONLY), number, None, 0)
    if how == "everyone": call("kill", -1, number)
    if how == "file":
        a, b = __import__("socket").socketpair()
        fcntl.fcntl(a, 8, pid)
        try:
            fcntl.fcntl(a, 10, number)
        except OSError as error:
            print(errno.errorcode[error.errno])
            raise SystemExit
        fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        b.send(b"x")
how, pid = sys.argv[1], int(sys.argv[2])
send(how, pid)
time.sleep(0.05)
try:
    state = open(f"/proc/{{pid}}/stat").read().rpartition(") ")[2][0]
except OSError:
    state = "gone"
print(state in ("gone", "Z", "X"))
"""
WAYS = (
    "kill",
    "kill, upper half",
    "group",
    "tkill",
    "tgkill",
    "queue",
    "thread queue",
    "pidfd",
    "directory",
    "everyone",
    "file",
)


async def reaped(pid):
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"{pid} lives on"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", WAYS)
async def test_killing_the_supervisor(backend, boxes, box, inside, without, how):
    pid = inside(box).supervisor
    result = await box.python(SENDS, how, str(pid))
    assert result.stdout.split()[0] != "True", result
    assert (await box.run("true")).returncode == 0
    with without(families=("signals",)):
        async with boxes.make_box(backend) as open_one:
            pid = inside(open_one).supervisor
            open_one.start("python3", "-I", "-c", SENDS, how, str(pid))
            assert (await asyncio.wait_for(open_one.link.wait_ended(), 5)).reason == "lost"
            await reaped(pid)


PARENT = SENDS.replace("int(sys.argv[2])", "os.getppid()")


@pytest.mark.parametrize("how", [way for way in WAYS if way != "directory"])
async def test_killing_ones_own_subreaper(backend, boxes, box, without, how):
    result = await box.python(PARENT, how)
    assert result.stdout.split()[0] != "True", result
    with without(families=("signals",)):
        async with boxes.make_box(backend) as open_one:
            if how not in ("everyone",):  # which kills process 1 as well
                result = await open_one.python(PARENT, how)
                assert result.exit["returncode"] == 137 or result.stdout == "True\n", result


LOOK = """
import sys
def opened(path):
    try:
        open(path, "rb").read(1)
    except OSError:
        return False
    return True
print(any([opened(f"/proc/{sys.argv[1]}/{name}") for name in ("environ", "maps", "mem", "cwd/x", "auxv", "io")]))
"""


async def test_looking_into_the_supervisor_and_subreapers(box, inside):
    """They may not be dumped; another command of the sandbox may."""
    box.start("sleep", "77.5")
    subreaper = subreaper_of(inside(box), "77.5")
    assert (await box.python(LOOK, str(inside(box).supervisor))).stdout == "False\n"
    assert (await box.python(LOOK, str(subreaper))).stdout == "False\n"
    assert (await box.python(LOOK, str(inside(box).named("77.5")[0]))).stdout == "True\n"


async def test_processes_of_the_same_uid(backend, boxes, box, without):
    """Looked into, signalled: Landlock alone stands there."""
    if backend._abi < calls.SCOPES_ABI:
        pytest.skip("not promised before Linux 6.12")
    with neighbour(backend, box) as process:
        assert (await box.python(LOOK, str(process.pid))).stdout == "False\n"
        assert (await box.python(SENDS, "kill", str(process.pid))).stdout == "EPERM\n"
        assert process.poll() is None
    with without(steps=("restrict",)):
        async with boxes.make_box(backend) as open_one:
            with neighbour(backend, open_one) as process:
                assert (await open_one.python(LOOK, str(process.pid))).stdout == "True\n"
                await open_one.python(SENDS, "kill", str(process.pid))
                assert process.wait(5) == -signal.SIGKILL


async def test_another_sandbox(backend, boxes, box, inside, without):
    """Its files, whatever modes it gives them, and its processes."""
    script = "exec 3< {}/secret && read line <&3 && echo $line"
    async with boxes.make_box(backend) as other:
        await other.put("secret", b"secret\n")
        await other.sh("chmod 777 . .. secret")
        sleeper, subscription = other.start("sleep", "1234")
        place = backend._directories.path(other.id) + "/root/workspace"
        subreaper = subreaper_of(inside(other), "1234")
        pid = inside(other).named("1234")[0]
        assert "secret" not in (await box.sh(script.format(place))).stdout
        for one in (pid, subreaper, inside(other).supervisor):
            assert (await box.sh(f"kill -9 {one}")).returncode != 0
        assert inside(other).named("1234") == [pid]
        with without(steps=("restrict",)):
            # Where the server is root another wall stands in front of it.
            os.chmod(backend._directories.path(other.id), 0o711)
            async with boxes.make_box(backend) as open_one:
                assert (await open_one.sh(script.format(place))).stdout == "secret\n"
        await other.link.cancel(sleeper)
        assert (await other.finish(sleeper, subscription)).returncode == 137


FILES = {
    "a file of the server's user": "open(sys.argv[1] + '/secret').read()",
    "the directory of one": "os.listdir(sys.argv[1])",
    "writing to it": "open(sys.argv[1] + '/secret', 'a').write('x')",
    "truncating it": "os.truncate(sys.argv[1] + '/secret', 0)",
    "removing it": "os.remove(sys.argv[1] + '/secret')",
    "making one": "open(sys.argv[1] + '/made', 'w')",
    "linking it": "os.link(sys.argv[1] + '/secret', sys.argv[1] + '/link')",
    "moving it": "os.rename(sys.argv[1] + '/secret', sys.argv[1] + '/moved')",
    "by way of a symlink": "os.symlink(sys.argv[1] + '/secret', 'symlink'); open('symlink').read()",
    "by way of the root of a process": "open(f'/proc/self/root{sys.argv[1]}/secret').read()",
    "a socket there": "os.mknod(sys.argv[1] + '/socket', 0o140600)",
}


@pytest.mark.parametrize("name", FILES)
async def test_files_of_the_servers_user(backend, boxes, box, without, name):
    source = f"import os, sys\ntry:\n    {FILES[name]}\n    print(True)\nexcept OSError as error:\n    print(error.strerror)"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        secret = Path(directory) / "secret"
        secret.write_text("secret")
        os.chmod(directory, 0o777)
        secret.chmod(0o666)
        said = (await box.python(source, directory)).stdout
        assert said != "True\n" and secret.read_text() == "secret", said
        assert [path.name for path in Path(directory).iterdir()] == ["secret"]
        with without(steps=("restrict",)):
            async with boxes.make_box(backend) as open_one:
                assert (await open_one.python(source, directory)).stdout == "True\n"


async def test_files_of_the_machine(box):
    """What is nobody's business, whoever asks."""
    script = "cat /etc/shadow; for f in /root /home /var/log /tmp /run /var/lib /dev /dev/shm /; do ls $f; done"
    assert (await box.sh(f"({script}) 2>/dev/null")).stdout == ""
    script = "for d in /tmp /var/tmp /dev/shm /usr /etc /run /; do touch $d/made-inside && echo $d; done 2>/dev/null"
    assert (await box.sh(script)).stdout == ""


async def test_the_file_calls_follow_no_link_out(backend, box):
    """Process 1 is bound as its commands are."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory, "secret").write_text("secret")
        await box.sh(f"ln -s {directory}/secret file; ln -s {directory} folder")
        for path in ("file", "folder/secret", f"{directory}/secret"):
            with pytest.raises(Exception, match="Permission denied"):
                await box.get(path)
            with pytest.raises(Exception, match="Permission denied"):
                await box.put(path, b"changed")
        with pytest.raises(Exception, match="Permission denied"):
            await box.link.list_files("folder/.")
        with pytest.raises(Exception, match="Permission denied"):
            await box.link.remove("folder/secret", False)
        assert Path(directory, "secret").read_text() == "secret"


SOCKETS = """
import socket, sys
family, address = {"unix": (socket.AF_UNIX, sys.argv[2]), "abstract": (socket.AF_UNIX, "\\0" + sys.argv[2]),
    "tcp": (socket.AF_INET, ("127.0.0.1", int(sys.argv[2] or 0) if sys.argv[1] == "tcp" else 0))}[sys.argv[1]]
try:
    with socket.socket(family) as one:
        one.connect(address)
    print(True)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("kind", ["unix", "abstract", "tcp"])
async def test_sockets_of_the_machine(backend, boxes, box, without, kind):
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
        with socket.socket(family) as listener:
            name = f"aviato-test-{os.getpid()}"
            path = f"{directory}/s"
            listener.bind(("127.0.0.1", 0) if kind == "tcp" else path if kind == "unix" else f"\0{name}")
            listener.listen()
            if kind == "unix":
                os.chmod(path, 0o777)
            where = str(listener.getsockname()[1]) if kind == "tcp" else path if kind == "unix" else name
            assert (await box.python(SOCKETS, kind, where)).stdout == "Address family not supported by protocol\n"
            if kind != "unix" and backend._abi >= 6:  # Landlock is a wall of its own there.
                with without(families=("sockets",)):
                    async with boxes.make_box(backend) as half:
                        assert (await half.python(SOCKETS, kind, where)).stdout in (
                            "Permission denied\n",
                            "Operation not permitted\n",
                        )
            with without(families=("sockets",), steps=("restrict",)):
                async with boxes.make_box(backend) as open_one:
                    assert (await open_one.python(SOCKETS, kind, where)).stdout == "True\n"


async def test_nobody_reaches_the_supervisors_own_socket(backend, box):
    """Whoever spoke to it could run commands in another sandbox, and so could whoever spoke to the server."""
    source = "import os, socket\ntry:\n    socket.socket(socket.AF_UNIX).connect(os.environ['PWD'] + '/../../s'); print(True)\n"
    source += "except OSError as error: print(error.strerror)"
    assert (await box.sh(f'exec python3 -c "{source}"')).stdout == "Address family not supported by protocol\n"
    assert (await box.sh('cat ../../note; echo \'{"reason": "lost"}\' >> ../../note; rm ../../s')).returncode != 0
    assert (await box.run("true")).returncode == 0


async def test_memory_shared_with_the_machine(backend, boxes, box, without):
    source = SENDS.split("info =")[0] + "print(call('shmget', 0x5EC2E7, 4096, 0o1666) >= 0)"
    assert (await box.python(source)).stdout == "ENOSYS\n"
    with without(families=("ipc",)):
        async with boxes.make_box(backend) as open_one:
            assert (await open_one.python(source)).stdout == "True\n"
            subprocess.run(["ipcrm", "-M", "0x5EC2E7"], check=True)


ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        os.execvp("sleep", ["sleep", sys.argv[1]])
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[2]))
"""


async def test_daemons_do_not_outlive_a_timeout(box, inside):
    left = await box.python(ESCAPE, "111.5", "0")
    assert left.returncode == 0
    result = await box.python(ESCAPE, "222.5", "60", timeout=0.5)
    assert result.exit["timed_out"]
    await inside(box).gone("222.5")
    # What another command has left behind is none of that, and goes with its own.
    assert len(inside(box).named("111.5")) == 1
    await box.link.cancel(left.exec_id)
    await inside(box).gone("111.5")


async def test_daemons_do_not_outlive_the_sandbox(backend, boxes, inside):
    """Stopped, or destroyed without being asked, or its process 1 killed by the machine."""
    for way in ("stopped", "destroyed", "supervisor killed"):
        async with boxes.make_box(backend) as box:
            name = f"{333 + len(way)}.5"
            await box.python(ESCAPE, name, "0")
            deadline = time.monotonic() + 5
            while len(found := inside(box).named(name)) != 1:
                assert time.monotonic() < deadline, found
                await asyncio.sleep(0.01)
            [pid] = found
            if way == "stopped":
                assert (await box.link.stop(0)).reason == "stopped"
            if way == "supervisor killed":
                os.kill(inside(box).supervisor, signal.SIGKILL)
        await reaped(pid)


async def test_who_kills_anothers_subreaper_kills_what_it_kept(box, inside):
    """Commands of a sandbox trust each other, but nothing escapes its time by that."""
    exec_id, subscription = box.start("python3", "-I", "-c", ESCAPE, "444.5", "60")
    subreaper = subreaper_of(inside(box), "444.5\0" + "60")
    deadline = time.monotonic() + 5
    while len(inside(box).named("444.5")) < 2:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert (await box.sh(f"kill -9 {subreaper}")).returncode == 0
    result = await box.finish(exec_id, subscription)
    assert (result.returncode, result.exit["signal"]) == (137, 9)
    await inside(box).gone("444.5")


async def test_a_stopped_subreaper_holds_nothing_up(box, inside):
    exec_id, subscription = box.start("sleep", "555.5")
    subreaper = subreaper_of(inside(box), "555.5")
    assert (await box.sh(f"kill -STOP {subreaper}")).returncode == 0
    await box.link.cancel(exec_id)
    assert (await box.finish(exec_id, subscription)).exit["cancelled"]


async def test_a_child_that_has_its_subreaper_trace_it(box):
    source = PRELUDE + "call('ptrace', 0, 0, 0, 0)\nos.kill(os.getpid(), 19)\nprint('went on')"
    assert (await box.python(source)).returncode == 137
    assert (await box.run("true")).returncode == 0


async def test_a_fork_bomb(backend, boxes, inside):
    async with boxes.make_box(backend, limits={"processes": 100}) as box:
        result = await box.run("bash", "-c", "f() { f | f & }; f; sleep 60", timeout=8)
        assert result.returncode == 137
        await inside(box).gone()
        assert (await box.run("true")).returncode == 0
