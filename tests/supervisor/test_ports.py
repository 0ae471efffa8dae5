"""Process 1's part in ports: connections made inside, and listeners that it keeps out of reach of what runs there."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

pytestmark = pytest.mark.anyio

LISTEN = "import socket,sys,time; s=socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(int(sys.argv[2])); "


@pytest.fixture
async def box(make_box):
    async with make_box(exposes_ports=True) as made:
        yield made


@pytest.fixture
async def channel(box, backend):
    channel = await backend.open_port_channel(box.id)
    yield channel
    channel.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def ready(box, channel, port, queue, then):
    box.start("python3", "-c", LISTEN + then, str(port), str(queue))
    async with asyncio.timeout(60):
        while True:
            try:
                (await channel.dial(port)).close()
                return
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)


async def test_connections_are_made_inside(box, channel):
    with pytest.raises(ConnectionRefusedError):
        await channel.dial(8000)
    await ready(box, channel, 8000, 100, "[c.close() for c, _ in iter(s.accept, None) if c.sendall(b'hi') is None]")
    before = descriptors()
    socks = await asyncio.gather(*(channel.dial(8000) for _ in range(50)))
    for sock in socks:
        assert sock.getpeername() == ("127.0.0.1", 8000)
        sock.setblocking(True)
        assert sock.recv(10) == b"hi"
        sock.close()
    assert descriptors() == before
    # The host's own programs are somewhere else.
    with socket.create_server(("127.0.0.1", 0)) as outside, pytest.raises(ConnectionRefusedError):
        await channel.dial(outside.getsockname()[1])


async def test_a_kept_listener_comes_back_over_a_new_connection(box, backend):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        first = await backend.open_port_channel(box.id)
        assert await first.kept() == {}
        await first.keep(8000, listener)
        await first.keep(9000, listener)
    for _ in range(2):
        second = await backend.open_port_channel(box.id)
        kept = await second.kept()
        assert list(kept) == [8000, 9000] and all(sock.getsockname() == address for sock in kept.values())
        with socket.create_connection(address), kept[8000] as again:
            again.accept()[0].close()
        kept[9000].close()
        assert not first.open, "a newer connection replaces the older"
        first = second
    first.close()
    await box.link.stop(0)
    await backend.destroy(box.id)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_a_listener_inside_is_made_once_and_given_out_again(box, backend):
    connect = "import socket; s = socket.create_connection(('127.0.0.1', 3128), 20); print(s.recv(10).decode())"
    first = await backend.open_port_channel(box.id)
    with await first.listen(3128) as listener:
        assert listener.getsockname() == ("127.0.0.1", 3128)
    # Nobody has it outside now; who connects waits.
    exec_id, asking = box.start("python3", "-c", connect)
    second = await backend.open_port_channel(box.id)
    with await second.listen(3128) as listener:
        listener.setblocking(False)
        sock, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), 60)
        with sock:
            await asyncio.get_running_loop().sock_sendall(sock, b"hello")
    assert (await box.finish(exec_id, asking)).stdout == "hello\n"
    await ready(box, second, 3129, 10, "time.sleep(100)")
    with pytest.raises(OSError, match="in use"):
        await second.listen(3129)
    assert await second.kept() == {}
    second.close()


async def test_a_listener_of_the_host_is_out_of_reach_inside(box, channel):
    source = """
import ctypes, os, socket
for path in ("/proc/1/fd", "/proc/1/fdinfo", "/proc/1/task/1/fd"):
    try:
        print(path, os.listdir(path))
    except PermissionError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
pidfd = libc.syscall(434, 1, 0)
taken = [fd for fd in range(64) if libc.syscall(438, pidfd, fd, 0) >= 0]
print(taken, sorted(os.listdir("/proc/self/fd"))[:3], sum("0A" in line.split()[3:4] for line in open("/proc/net/tcp")))
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await channel.keep(8000, listener)
        result = await box.python(source)
        assert result.stdout == "[] ['0', '1', '2'] 0\n", result.stderr
        with pytest.raises(AssertionError):
            port = listener.getsockname()[1]
            result = await box.python(f"import socket; socket.create_connection(('127.0.0.1', {port}))")
            assert "Refused" not in result.stderr


async def test_who_listens_and_never_accepts_holds_up_nobody(box, channel):
    await ready(box, channel, 8001, 100, "[c.sendall(b'hi') for c, _ in iter(s.accept, None)]")
    await ready(box, channel, 8000, 0, "time.sleep(100)")
    before = descriptors()
    stuck = [asyncio.create_task(channel.dial(8000)) for _ in range(200)]
    for _ in range(20):
        async with asyncio.timeout(60):
            (await channel.dial(8001)).close()
            await box.link.ping()
    done, _ = await asyncio.wait(stuck, timeout=0.2)
    assert len(done) < 5
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    for task in done:
        task.result().close()
    assert await channel.kept() == {}
    assert descriptors() <= before


async def test_nonsense_costs_the_connection_and_nothing_else(box, backend):
    for message in (
        b"\xff",
        b"[]",
        b"{}",
        b'{"id": 1, "op": "dial", "port": "x"}',
        b'{"id": 1, "op": "keep"}',
        b'{"id": 1, "op": "listen"}',
    ):
        channel = await backend.open_port_channel(box.id)
        channel._sock.send(message)
        async with asyncio.timeout(60):
            while channel.open:
                await asyncio.sleep(0.01)
    channel = await backend.open_port_channel(box.id)
    assert await channel.kept() == {}
    channel.close()
    assert (await box.run("true")).returncode == 0
