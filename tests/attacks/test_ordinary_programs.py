"""What the filter must leave alone."""

from __future__ import annotations

import pytest

from tests.attacks import oneself

pytestmark = pytest.mark.anyio

PYTHON = {
    "threads on a processor of their own": """
import os, threading
def work():
    os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
""",
    "multiprocessing": """
import multiprocessing
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(abs, range(-3, 3)) == [3, 2, 1, 0, 1, 2]
""",
    "asyncio": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=-1)
    assert (await process.communicate())[0] == b"hi\\n"
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    server.close()
asyncio.run(main())
""",
    "limits and priorities of its own": """
import os, resource, signal, subprocess
resource.prlimit(0, resource.RLIMIT_CPU, (60, 60))
child = subprocess.Popen(["sleep", "60"])
resource.prlimit(child.pid, resource.RLIMIT_CPU, (50, 50))
os.setpriority(os.PRIO_PROCESS, child.pid, 15)
os.nice(1)
os.kill(child.pid, signal.SIGSTOP)
child.kill()
assert child.wait() == -9
""",
    "sockets": """
import socket
socket.socketpair()
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM): socket.socket(family, kind).close()
assert socket.if_nameindex() and socket.getaddrinfo("localhost", 80)
""",
    "room for a file": """
import os
for fd in (os.open("file", os.O_RDWR | os.O_CREAT), os.open("/dev/shm/file", os.O_RDWR | os.O_CREAT), os.memfd_create("x")):
    os.posix_fallocate(fd, 0, 3 << 20)
    assert os.fstat(fd).st_size == 3 << 20 and os.fstat(fd).st_blocks * 512 >= 3 << 20
""",
    "terminals and locks": """
import fcntl, pty, termios
assert pty.spawn(["sh", "-c", "tput cols >/dev/null 2>&1; stty -a > /dev/null && echo fine"]) == 0
with open("lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    fcntl.fcntl(file, fcntl.F_SETOWN, 0)
""",
    "a filter of its own": """
import ctypes, os, struct
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(allow)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
assert os.system("true") == 0
""",
}
SHELL = {
    "gcc": "echo 'int main(){return 0;}' > a.c && gcc -fsanitize=address,undefined a.c -o a && ./a",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline",
    "node": 'node -e \'new (require("worker_threads").Worker)("setTimeout(() => {}, 1)", {eval: true})\'',
    "java": "java -version",
    "gdb": "gdb --batch -ex run -ex bt --args /bin/true 2>&1 | grep 'exited normally'",
    "strace": "strace -f sh -c 'true | true' 2>&1 | grep exit_group",
    "gdb attached": "sleep 60 & gdb --batch -p $! -ex bt 2>&1 | grep detached; kill $!",
    "strace attached": "sleep 60 & p=$!; strace -p $p -o said & until grep -q 'TracerPid:.[1-9]' /proc/$p/status;"
    " do sleep 0.01; done; kill $p; wait; grep SIGTERM said",
    "gcc leaks": "echo 'void *malloc(long); int main(){malloc(7);return 0;}' > a.c && gcc -w -fsanitize=address a.c -o a"
    " && ! ./a 2> said && grep 'SUMMARY: AddressSanitizer: 7 byte' said",
    "tar": "touch f && tar cf t.tar f && rm f && tar xf t.tar && test -e f",
    "pip": "python3 -m pip --version || python3 -m pip --version 2>&1 | grep 'No module named pip'",
    "bash": "set -m; sleep 0.01 & wait; ulimit -n 100; nice -n 5 true; taskset -p $$; renice -n 12 $$",
}


async def run_where_there_is(name, box, script):
    program = name.split()[0]
    if name != "pip" and (await box.sh(f"command -v {program}")).returncode != 0:
        pytest.skip(f"the sandbox has no {program}")
    result = await box.run("bash", "-ec", script)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", PYTHON)
async def test_python(box, name):
    await box.put("/workspace/program.py", PYTHON[name].encode())
    result = await box.run("python3", "program.py")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


@pytest.mark.parametrize("name", SHELL)
async def test_other_programs(box, name):
    await run_where_there_is(name, box, SHELL[name])


@pytest.mark.parametrize("name", oneself.PYTHON)
async def test_of_oneself_by_python(box, name):
    result = await box.python(oneself.program(oneself.PYTHON[name]))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("name", oneself.SHELL)
async def test_of_oneself_by_the_shell(box, name):
    await run_where_there_is(name, box, oneself.SHELL[name])


@pytest.mark.parametrize("name", oneself.C)
async def test_of_oneself_by_c(box, name):
    source, script = oneself.C[name]
    await box.put("program.c", source.encode())
    await run_where_there_is("gcc", box, script)
