"""The proxy by itself: a client on one side, a stand-in for the internet at the loopback on the other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from ipaddress import ip_address

import pytest

from aviato.server.egress import journal as journal_module
from aviato.server.egress import proxy as proxy_module
from aviato.server.egress.journal import Journal
from aviato.server.egress.lookup import LOOKUPS_A_SANDBOX, Lookup
from aviato.server.egress.own import is_own
from aviato.server.egress.policy import make_policy, networks
from aviato.server.egress.proxy import Proxy
from aviato.server.link.listeners import SocketListener
from aviato.server.port_relay import relay
from aviato.server.service import egress as egress_module

pytestmark = pytest.mark.anyio
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


class Host:
    """A server of the internet; what it gets is in `got`, a connection each."""

    def __init__(self, address="127.0.0.1", answer=ANSWER):
        self.address, self.answer, self.got, self.writers = address, answer, [], []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, self.address, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.close()
        await asyncio.sleep(0.01)

    async def _serve(self, reader, writer):
        got = bytearray()
        self.got.append(got)
        self.writers.append(writer)
        with contextlib.suppress(OSError):
            if callable(self.answer):
                await self.answer(got, reader, writer)
            else:
                got += await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer)
                while data := await reader.read(65536):
                    got += data
        writer.close()


class Inside:
    """What a sandbox has: connections to its proxy."""

    def __init__(self, mode="internet", allowed=("127.0.0.0/8", "::1/128"), names=None):
        self.lookup, self.notes, self.asked = Lookup(), [], []
        self.names = names or {}
        self.lookup.resolve = self._resolve
        self.asker = asyncio.Semaphore(LOOKUPS_A_SANDBOX)
        self.proxy = Proxy(make_policy(mode, networks(allowed)), self.lookup, self.asker, self.notes.append)
        self.tasks, self.writers = [], []

    def _resolve(self, host):
        self.asked.append(host)
        found = self.names.get(host, [])
        if callable(found):
            found = found()
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return found

    async def open(self):
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.tasks.append(asyncio.create_task(self.proxy.serve(theirs)))
        reader, writer = await asyncio.open_connection(sock=ours)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, data):
        """Send, and read until the proxy closes."""
        reader, writer = await self.open()
        task = self.tasks[-1]
        writer.write(data)
        async with asyncio.timeout(60):
            answer = await reader.read()
            writer.close()
            await task
        return answer

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for writer in self.writers:
            writer.close()
        for task in self.tasks:
            task.cancel()
        for result in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), repr(result)
        self.lookup.close()


def status(answer):
    return int(answer.split()[1])


async def test_a_request_and_its_answer():
    async with Host() as host, Inside(names={"a.example": ["127.0.0.1"]}) as inside:
        answer = await inside.ask(b"GET http://a.example:%d/x HTTP/1.1\r\nHost: evil.example\r\nA: b\r\n\r\n" % host.port)
        assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: close\r\n\r\nhi"
        assert host.got == [b"GET /x HTTP/1.1\r\nHost: a.example:%d\r\na: b\r\nConnection: close\r\n\r\n" % host.port]
        (note,) = inside.notes
        wanted = {
            "method": "GET",
            "host": "a.example",
            "port": host.port,
            "address": "127.0.0.1",
            "verdict": "passed",
            "status": 200,
        }
        assert wanted.items() <= note.items() and note["sent_bytes"] == len(host.got[0])


async def test_one_request_a_connection():
    """A second one behind the first could ask the same machine for a host that is not allowed."""
    second = b"GET /secret HTTP/1.1\r\nHost: other.example\r\n\r\n"
    async with Host(answer=patient) as host, Inside(names={"a.example": ["127.0.0.1"]}) as inside:
        for first in (
            b"GET http://a.example:%d/ HTTP/1.1\r\n\r\n",
            b"POST http://a.example:%d/ HTTP/1.1\r\nContent-Length: 2\r\n\r\nab",
            b"POST http://a.example:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nA: b\r\n\r\n",
        ):
            assert (await inside.ask(first % host.port + second)).endswith(b"hi")
        assert [bytes(got).rpartition(b"\r\n\r\n")[2] for got in host.got[:2]] == [b"", b"ab"]
        assert host.got[2].endswith(b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        assert not any(b"secret" in got for got in host.got)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET http://u@a.example/ HTTP/1.1\r\n\r\n", 400),
        (b"GET https://a.example/ HTTP/1.1\r\n\r\n", 501),
        (b"POST http://a.example/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET http://a.example/ HTTP/1.1\r\nA: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01" + b"x" * 40_000, 431),
        (b"GET http://nowhere.example/ HTTP/1.1\r\n\r\n", 403),
    ],
)
async def test_refusals(data, expected):
    async with Inside() as inside:
        answer = await inside.ask(data)
        assert status(answer) == expected and b"aviato: " in answer
        assert inside.notes[0]["verdict"] == ("unreachable" if expected == 403 else "malformed")


async def test_a_malformed_chunk_ends_both_sides():
    async with Host(answer=until_closed) as host, Inside() as inside:
        request = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n"
        assert status(await inside.ask(request % host.port)) == 400


async def patient(got, reader, writer):
    """Answers once it has all of one request, and keeps listening."""
    got += await reader.readuntil(b"\r\n\r\n")
    if b"content-length: 2" in got:
        got += await reader.readexactly(2)
    elif b"transfer-encoding: chunked" in got:
        got += await reader.readuntil(b"0\r\n\r\n")
    writer.write(ANSWER)
    await until_closed(got, reader, writer)


async def until_closed(got, reader, writer):
    while data := await reader.read(65536):
        got += data


async def echo(got, reader, writer):
    while data := await reader.read(65536):
        got += data
        writer.write(data)
    writer.write(b"bye")


async def test_a_tunnel():
    async with Host(answer=echo) as host, Inside(["a.example"], names={"a.example": ["127.0.0.1"]}) as inside:
        reader, writer = await inside.open()
        writer.write(b"CONNECT a.example:%d HTTP/1.1\r\n\r\nearly" % host.port)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert await reader.readexactly(5) == b"early"
        data = bytes(range(256)) * 8192
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.write_eof()
        assert await reader.read() == b"bye"
        await inside.tasks[0]
        assert inside.notes[0]["sent_bytes"] == len(data) + 5 and inside.notes[0]["received_bytes"] == len(data) + 8


async def test_the_address_that_was_checked_is_the_one_that_is_asked():
    """Rebinding: a name whose second answer is another address than its first."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]
    async with (
        Host("127.0.0.1") as good,
        Inside(allowed=["127.0.0.1/32"], names={"a.example": lambda: answers.pop(0)}) as inside,
    ):
        request = b"GET http://a.example:%d/ HTTP/1.1\r\n\r\n" % good.port
        assert status(await inside.ask(request)) == 200 and inside.asked == ["a.example"]
        answer = await inside.ask(request)
        assert status(answer) == 403 and len(good.got) == 1 and b"127.0.0.2" not in answer
        assert "127.0.0.2 is loopback" in inside.notes[1]["why"]


async def test_of_many_addresses_only_those_that_may_be():
    names = {"a.example": ["10.0.0.1", "169.254.169.254", "::ffff:127.0.0.2", "127.0.0.1"]}
    async with Host() as host, Inside(allowed=["127.0.0.1/32"], names=names) as inside:
        assert status(await inside.ask(b"GET http://a.example:%d/ HTTP/1.1\r\n\r\n" % host.port)) == 200
        assert inside.notes[0]["address"] == "127.0.0.1"


async def test_services_of_the_machine_are_out_of_reach():
    names = {"a.example": ["127.0.0.1", "::1"], "localhost": ["127.0.0.1"], "metadata.example": ["169.254.169.254"]}
    async with Host() as host, Inside(allowed=(), names=names) as inside:
        for name in (
            "a.example",
            "localhost",
            "127.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "metadata.example",
        ):
            for request in (f"GET http://{name}:{host.port}/ HTTP/1.1\r\n\r\n", f"CONNECT {name}:{host.port} HTTP/1.1\r\n\r\n"):
                assert status(await inside.ask(request.encode())) == 403
        for name in ("127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1%00", "[::1%25lo]"):
            assert status(await inside.ask(f"CONNECT {name}:{host.port} HTTP/1.1\r\n\r\n".encode())) == 400
        assert host.got == []


async def test_the_same_requests_reach_it_without_the_check_of_addresses(monkeypatch):
    """The control of the test above, and of the one for rebinding."""
    monkeypatch.setattr("aviato.server.egress.policy._kind", lambda address: None)
    monkeypatch.setattr(proxy_module, "is_own", lambda address: False)
    async with Host() as host, Inside(allowed=(), names={"a.example": ["127.0.0.1"]}) as inside:
        for name in ("a.example", "127.0.0.1", "[::ffff:127.0.0.1]"):
            assert status(await inside.ask(f"GET http://{name}:{host.port}/ HTTP/1.1\r\n\r\n".encode())) == 200
        assert len(host.got) == 3


async def test_the_machines_own_public_address_is_as_good_as_its_loopback(monkeypatch):
    assert is_own(ip_address("127.0.0.1")) and is_own(ip_address("::ffff:127.0.0.9"))
    monkeypatch.setattr(proxy_module, "is_own", lambda address: str(address) == "8.8.4.4")
    async with Inside(allowed=()) as inside:
        assert status(await inside.ask(b"CONNECT 8.8.4.4:443 HTTP/1.1\r\n\r\n")) == 403
        assert "the server's own" in inside.notes[0]["why"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="a network of its own needs root and ip")
def test_every_address_of_the_machine_is_its_own():
    """A second address of a network is left by the first one's: it is found in another way."""
    source = "import sys, ipaddress; from aviato.server.egress.own import is_own\n"
    source += "print(*(is_own(ipaddress.ip_address(text)) for text in sys.argv[1:]))"
    addresses = ["8.8.4.4", "8.8.4.5", "2600::5", "2600::6", "8.8.4.6", "2600::7", "9.9.9.9"]
    script = "ip link add out0 type veth peer name out1 || exit 77; for one in lo out0 out1; do ip link set $one up; done; "
    for one in addresses[:4]:
        script += f"ip address add {one}/{'64 dev out0 nodad' if ':' in one else '24 dev out0'} || exit 77; "
    script += "ip route add default dev out0; "
    command = ["unshare", "--net", "sh", "-c", script + 'exec "$@"', "sh", sys.executable, "-c", source, *addresses]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode == 77:
        pytest.skip(f"this machine makes no such network: {said.stderr}")
    assert said.stdout.split() == ["True"] * 4 + ["False"] * 3, said.stderr


@pytest.mark.parametrize(
    ("allowed", "expected"), [("10.0.0.0/8", 403), ("10.1.2.3/32", 200), ("10.1.2.0/24,10.1.2.3", 200), ("0.0.0.0/0", 403)]
)
async def test_a_network_that_the_server_stands_in_is_not_the_server(monkeypatch, allowed, expected):
    monkeypatch.setattr(proxy_module, "is_own", lambda address: str(address) == "10.1.2.3")
    async with Host(answer=ANSWER) as host, Inside(allowed=allowed.split(",")) as inside:

        async def dial(address, port):
            return await real(ip_address("127.0.0.1"), host.port)

        real = proxy_module._open
        monkeypatch.setattr(proxy_module, "_open", dial)
        for name in ("10.1.2.3", "[::ffff:10.1.2.3]"):
            assert status(await inside.ask(f"GET http://{name}/ HTTP/1.1\r\n\r\n".encode())) == expected
        if expected == 403:
            assert "the server's own" in inside.notes[0]["why"]


async def test_the_servers_own_address_behind_a_translator(monkeypatch):
    monkeypatch.setattr(proxy_module, "is_own", lambda address: str(address) == "8.8.4.4")
    async with Inside(allowed=()) as inside:
        assert status(await inside.ask(b"CONNECT [64:ff9b::808:404]:443 HTTP/1.1\r\n\r\n")) == 403


async def test_thousands_of_addresses_cost_no_more_than_some(monkeypatch):
    looked = []
    monkeypatch.setattr(proxy_module, "is_own", lambda address: looked.append(address) or True)
    names = {"a.example": [f"8.1.{n // 250}.{n % 250}" for n in range(4000)]}
    async with Inside(allowed=(), names=names) as inside:
        assert status(await inside.ask(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")) == 403
    assert len(looked) == proxy_module.MAX_LOOKED_AT


async def test_what_is_told_is_short():
    async with Inside(allowed=()) as inside:
        for request in (
            b"a" * 20_000 + b"://x/",
            b"http://" + b"a" * 20_000 + b"/",
            b"http://a.example:" + b"1" * 20_000 + b"/",
        ):
            assert len(await inside.ask(b"GET " + request + b" HTTP/1.1\r\n\r\n")) < 3000
        assert status(await inside.ask(b"G" * 65 + b" http://a.example/ HTTP/1.1\r\n\r\n")) == 400
    assert all(len(json.dumps(note)) < 3000 for note in inside.notes)


async def test_without_descriptors_nobody_knows_whose_an_address_is(monkeypatch):
    def full(address):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(proxy_module, "is_own", full)
    async with Inside(allowed=()) as inside:
        assert status(await inside.ask(b"CONNECT 8.8.4.4:443 HTTP/1.1\r\n\r\n")) == 403


async def test_a_name_that_is_not_allowed_is_never_looked_up():
    """Else names would carry data out (a DNS tunnel)."""
    async with Inside(["a.example", "*.b.example"], names={"x.b.example": ["10.0.0.1"]}) as inside:
        for name in ("secret-data.evil.example", "xa.example", "b.example"):
            answer = await inside.ask(f"CONNECT {name}:443 HTTP/1.1\r\n\r\n".encode())
            assert status(answer) == 403 and b"the allow-list of this sandbox does not have" in answer.partition(b"\r\n")[0]
        assert inside.asked == []
        assert status(await inside.ask(b"CONNECT x.b.example:443 HTTP/1.1\r\n\r\n")) == 403 and inside.asked == ["x.b.example"]


async def test_names_that_hang_hold_up_only_their_own_sandbox(monkeypatch):
    monkeypatch.setattr("aviato.server.egress.lookup.SECONDS", 2.0)
    release = threading.Event()
    names = {"slow.example": lambda: release.wait(20) and ["127.0.0.1"], "fast.example": ["127.0.0.1"]}
    try:
        async with Host() as host, Inside(names=names) as slow, Inside(names=names) as other:
            other.lookup.close()
            other.proxy._lookup = other.lookup = slow.lookup
            request = b"GET http://%s.example:%d/ HTTP/1.1\r\n\r\n"
            waiting = [asyncio.create_task(slow.ask(request % (b"slow", host.port))) for _ in range(20)]
            while len(slow.asked) < LOOKUPS_A_SANDBOX:
                await asyncio.sleep(0.01)
            assert status(await other.ask(request % (b"fast", host.port))) == 200
            assert {status(await task) for task in waiting} == {504}
            assert slow.asked.count("slow.example") == LOOKUPS_A_SANDBOX, "nobody asks again while the first still hang"
            release.set()
            assert status(await slow.ask(request % (b"slow", host.port))) == 200
    finally:
        release.set()


async def test_who_sends_no_head_is_cut(monkeypatch):
    monkeypatch.setattr(proxy_module, "HEAD_SECONDS", 0.2)
    async with Inside() as inside:
        reader, writer = await inside.open()
        writer.write(b"GET http://a.example/ HT")
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""


async def pour(got, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        got += b"x" * 65536
        await writer.drain()


@pytest.mark.parametrize("request_line", ["GET http://127.0.0.1:{}/", "CONNECT 127.0.0.1:{}"])
async def test_an_answer_that_nobody_reads_waits_and_is_cut(monkeypatch, request_line):
    monkeypatch.setattr(proxy_module, "IDLE_SECONDS", 0.5)
    async with Host(answer=pour) as host, Inside() as inside:
        _, writer = await inside.open()
        writer.write(f"{request_line.format(host.port)} HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(60):
            await inside.tasks[0]
        assert 0 < len(host.got[0]) < 64 << 20


async def test_a_client_that_leaves_ends_it():
    async with Host(answer=until_closed) as host, Inside() as inside:
        for line in ("GET http://127.0.0.1:{}/", "CONNECT 127.0.0.1:{}"):
            _, writer = await inside.open()
            writer.write(f"{line.format(host.port)} HTTP/1.1\r\n\r\n".encode())
            while len(inside.tasks) > len(host.got):
                await asyncio.sleep(0.01)
            writer.close()
            async with asyncio.timeout(60):
                await inside.tasks[-1]


@pytest.mark.parametrize("turns", range(8))
async def test_one_that_is_cut_at_its_end_closes_both_sides(monkeypatch, turns):
    opened, dial, receive = [], proxy_module._open, Proxy._receive

    async def remembered(*where):
        opened.append(await dial(*where))
        return opened[-1]

    async def received(*arguments):
        await receive(*arguments)
        cut(turns)

    def cut(left):
        if left:
            asyncio.get_running_loop().call_soon(cut, left - 1)
        else:
            inside.tasks[0].cancel()

    monkeypatch.setattr(proxy_module, "_open", remembered)
    monkeypatch.setattr(Proxy, "_receive", received)
    async with Host() as host, Inside() as inside:
        _, writer = await inside.open()
        writer.write(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % host.port)
        await asyncio.wait(inside.tasks)
        assert [sock.fileno() for sock in opened] == [-1]


async def test_an_answer_comes_through_before_the_request_is_all_there():
    async def early(got, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    async with Host(answer=early) as host, Inside() as inside:
        answer = await inside.ask(b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 1000\r\n\r\nx" % host.port)
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413 Too Large\r\n")


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"b" * 40_000]
)
async def test_an_answer_that_is_none_is_a_502(answer):
    async with Host(answer=answer) as host, Inside() as inside:
        got = await inside.ask(b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % host.port)
        assert status(got) == 502 and inside.notes[0]["verdict"] == "unreachable"


async def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with Inside() as inside:
        answer = await inside.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert status(answer) == 502 and b"Connection refused" in answer


async def test_the_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_FILE_BYTES", 20_000)
    journal = Journal(str(tmp_path))
    for _ in range(3):
        for n in range(1500):
            journal.note("sb-a", {"host": "a.example", "n": n})
        journal.note("sb-b", {"host": "b.example"})
        await journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sb-a.jsonl.1", "sb-b.jsonl"]
    lines = [json.loads(line) for line in (tmp_path / "sb-a.jsonl.1").read_text().splitlines()]
    assert lines[0] == {"host": "a.example", "n": 0} and lines[-1] == {"left_out": 500} and len(lines) == 1001
    assert (tmp_path / "sb-b.jsonl").stat().st_mode & 0o777 == 0o600
    journal.remove(["sb-a", "sb-b", "sb-c"])
    assert list(tmp_path.iterdir()) == []


async def longest_turn(seconds):
    """How long others had to wait for the loop, at worst, in its processor time: what else a busy machine does is not in it."""
    worst, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - began)
    return worst


@pytest.mark.parametrize("data", [b"1\r\nx\r\n" * 4096, b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"], ids=["small", "large"])
async def test_bodies_without_end_leave_others_their_turns(data):
    async with Host(answer=until_closed) as host, Inside() as inside:
        _, writer = await inside.open()
        writer.write(b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % host.port)
        pouring = asyncio.create_task(pour_into(writer, data))
        while not host.got or len(host.got[0]) < 10_000:
            await asyncio.sleep(0.01)
        assert await longest_turn(1.0) < 0.2
        assert len(data) > 100_000 or len(host.got[0]) < 100_000, "small chunks are slowed down"
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)


async def pour_into(writer, data):
    while True:
        writer.write(data)
        await writer.drain()


async def test_few_sandboxes_do_not_take_all_connections(monkeypatch):
    monkeypatch.setattr(egress_module.Egress, "_accept_from", lambda self, way: None)
    egress = egress_module.Egress(None, "/nowhere", [])
    egress.most_connections = 64
    accepted = []
    for number in range(3):
        ours, theirs = socket.socket(), socket.create_server(("127.0.0.1", 0))
        theirs.setblocking(False)
        way = egress_module._Way(f"sb-{number}", SocketListener(theirs), Idle())
        egress._ways[way.sandbox_id] = way
        clients = [socket.create_connection(theirs.getsockname()) for _ in range(40)]
        for _ in range(4):
            egress._accept(way)
        accepted.append(len(way.connections))
        for sock in (ours, *clients):
            sock.close()
    assert accepted == [32, 16, 8]
    await egress.shut()


async def test_a_place_wakes_who_can_have_it_and_nobody_else(monkeypatch):
    egress = egress_module.Egress(None, "/nowhere", [])
    egress.most_connections = 4
    ways, clients = [], []
    for number in range(30):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        ways.append(egress_module._Way(f"sb-{number}", SocketListener(listener), Idle()))
        egress._ways[ways[-1].sandbox_id] = ways[-1]
        if number != 3:
            clients += [socket.create_connection(listener.getsockname()) for _ in range(2)]
    for way in ways:
        egress._accept(way)
    first = next(way for way in ways if way.connections)
    served = [way for way in ways if way.connections]
    assert egress._connections == 4 == sum(len(way.connections) for way in ways)
    asked = []
    accept = egress_module.Egress._accept
    monkeypatch.setattr(egress_module.Egress, "_accept", lambda self, way: (asked.append(way), accept(self, way))[1])
    for _ in range(20):
        for task in list(first.connections):
            task.cancel()
        while egress._connections != 4 or any(task.cancelling() for way in ways for task in way.connections):
            await asyncio.sleep(0.001)
        first = next(way for way in ways if way.connections and way not in served[:-1])
        served.append(first)
    assert len(asked) < 150
    assert len({way.sandbox_id for way in served}) > 15
    await egress.shut()
    for sock in clients:
        sock.close()


class Idle:
    async def serve(self, sock):
        await asyncio.Event().wait()


async def test_connections_in_a_loop_are_slowed_down(monkeypatch):
    clock = 0.0
    monkeypatch.setattr(egress_module.time, "monotonic", lambda: clock)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        way = egress_module._Way("sb-a", SocketListener(ours), None, credited_at=clock)
        assert [way.may_connect() for _ in range(300)] == [True] * 256 + [False] * 44
        clock += 0.1
        assert [way.may_connect() for _ in range(20)] == [True] * 10 + [False] * 10
        clock += 1000
        assert sum(way.may_connect() for _ in range(1000)) == 256


async def test_little_waits_for_a_slow_reader():
    """Else a sandbox of many tunnels that nobody reads would fill the server's memory."""
    (ours, outer), (inner, theirs) = socket.socketpair(), socket.socketpair()
    for sock in (ours, outer, inner, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    relaying = asyncio.create_task(relay(outer, inner))
    sent, quiet = 0, 0
    while quiet < 20:
        try:
            sent += ours.send(b"x" * 4096)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            await asyncio.sleep(0.01)
    assert 64 << 10 <= sent < 200 << 10
    got = 0
    while got < sent:
        got += len(await asyncio.get_running_loop().sock_recv(theirs, 1 << 16))
    ours.close()
    theirs.close()
    async with asyncio.timeout(60):
        assert await relaying == (sent, 0)
