"""An ordinary user who has no watch of epoll left: servers and clients start and go on, and so do sandboxes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys

import pytest

from aviato.server.backends.local import filters
from aviato.server.backends.local.rules import Condition, Rule
from aviato.system import event_loop
from tests.conftest import make_state_dir, remove, start_server, stop_embedded

CONTROL_ADD = 1
FULL = filters.compile_rules((Rule("epoll", ("epoll_ctl",), errno.ENOSPC, (Condition(1, CONTROL_ADD),)),))
"""The kernel's answer to whoever wants to wait for another descriptor."""
UNDER_IT = """
import os, sys
from aviato.server.backends.local import syscalls
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.load_filter(bytes.fromhex(sys.argv[1]))
os.execvp(sys.argv[2], sys.argv[2:])
"""
BEFORE = (sys.executable, "-c", UNDER_IT, FULL.hex())
CLIENT = """
import urllib.request
from aviato import NetworkOptions, Sandbox
with Sandbox(network=NetworkOptions(egress_mode="internet"), ports=[8000]) as sandbox:
    assert sandbox.exec(["cat"], stdin="given").result().stdout == "given"
    sandbox.write_file("f", b"x" * 3_000_000).result()
    assert len(sandbox.read_file("f").result()) == 3_000_000
    fetch = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.2/"
    assert sandbox.exec(["sh", "-c", fetch]).result().stdout == "403"
    serving = sandbox.exec(["python3", "-m", "http.server", "8000"])
    while True:
        try:
            urllib.request.urlopen(sandbox.service_urls[8000], timeout=10).read()
        except OSError:
            continue
        break
    serving.cancel()
print("went on")
"""
ordinary = pytest.mark.skipif(os.geteuid() == 0, reason="who shares no count with sandboxes has the faster loop")


@ordinary
@pytest.mark.parametrize("kind", ["embedded", "serve"])
def test_client_server_and_supervisor_go_on(kind):
    """All of them are under the limit from the start, which is when uvloop would end the first two."""
    state = make_state_dir()
    server = start_server(state, before=BEFORE) if kind == "serve" else None
    address = {"AVIATO_STATE_DIR": str(state)} if server is None else {"AVIATO_BASE_URL": server.url}
    try:
        command = [*BEFORE, sys.executable, "-c", CLIENT]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **address}, timeout=250, check=False)
        assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
        assert server is None or server.process.poll() is None
    finally:
        if server is not None:
            server.stop()
        stop_embedded(state)
        remove(state)


LIMITED = """
import asyncio, socket, sys
from aviato.system import event_loop
from aviato.server.backends.local import syscalls
async def main():
    loop = asyncio.get_running_loop()
    ours, theirs = (pair := socket.socketpair()), (other := socket.socketpair())
    for sock in (*ours, *theirs): sock.setblocking(False)
    early = loop.create_task(loop.sock_recv(pair[0], 10))
    await asyncio.sleep(0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.load_filter(bytes.fromhex(sys.argv[1]))
    late = loop.create_task(loop.sock_recv(other[0], 10))
    await asyncio.sleep(0)
    pair[1].send(b"early")
    print(await early)
    other[1].send(b"late")
    print(await late)
    print(loop.remove_reader(other[0]))
    reader, writer = await asyncio.open_connection(sock=other[0])
    writer.write(b"x" * 3_000_000)  # It waits to write as well as to read.
    got = 0
    while got < 3_000_000: got += len(await loop.sock_recv(other[1], 1 << 20))
    await writer.drain()
    print(got)
    writer.close()
with asyncio.Runner(loop_factory=event_loop.with_overflow) as runner: runner.run(main())
"""


def test_what_waits_already_and_what_comes_later():
    done = subprocess.run([sys.executable, "-c", LIMITED, FULL.hex()], capture_output=True, text=True, timeout=250, check=False)
    assert (done.stdout, done.stderr) == ("b'early'\nb'late'\nFalse\n3000000\n", "")


def test_what_epoll_had_no_room_for_moves_there_once_it_has():
    """And what is closed or changed meanwhile is found where it is."""
    selector = event_loop.OverflowSelector()
    register = selector._selector.register
    pairs = [socket.socketpair() for _ in range(3)]
    full = [True]

    class Full:
        def __getattr__(self, name):
            return getattr(epoll, name)

        def register(self, *given):
            if full[0]:
                raise OSError(errno.ENOSPC, "")
            register(*given)

    epoll = selector._selector
    selector._selector = Full()
    try:
        for number, (ours, _) in enumerate(pairs):
            selector.register(ours, 1, number)
        pairs[1][1].send(b"x")
        assert [key.data for key, _ in selector.select(1)] == [1]
        selector.modify(pairs[0][0], 2, "writes")
        assert selector.get_key(pairs[0][0]).data == "writes" == selector.get_map()[pairs[0][0].fileno()].data
        assert sorted(str(key.data) for key, _ in selector.select(1)) == ["1", "writes"]
        assert selector.unregister(pairs[1][0]).data == 1
        full[0], selector._due = False, 0.0
        assert [key.data for key, _ in selector.select(1)] == ["writes"]
        assert not selector._overflows and selector.get_key(pairs[2][0]).data == 2
        with pytest.raises(KeyError):
            selector.register(pairs[2][0], 1)
    finally:
        selector.close()
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_root_has_the_faster_one():
    loop = event_loop.loop_factory()()
    assert isinstance(loop, asyncio.SelectorEventLoop) is (os.geteuid() != 0)
    loop.close()
