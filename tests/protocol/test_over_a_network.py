"""Who may speak to a process 1 that anybody can connect to, and what it is there: docs/protocol.md, Over a network."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer
from aviato.server.backends.kubernetes.options import Security
from aviato.server.backends.kubernetes.reach import begin
from aviato.server.link.handshake import QUESTION, NotAuthentic, prove
from aviato.server.link.link import Configuration, Process1Link
from aviato.wire.frames import FrameDecoder, FrameType, encode
from tests.protocol.networked import PATIENCE_SECONDS, Place, place, told

pytestmark = pytest.mark.anyio

SAID_BYTES = 65
"""Of a server that proves the key."""
CONFIGURATION: dict[str, Any] = {
    "environment": {},
    "working_dir": "/workspace",
    "user": None,
    "nice": 0,
    "limits": {},
    "orphan_timeout_seconds": 60.0,
    "max_lifetime_seconds": None,
    "idle_timeout_seconds": None,
}


async def configured(there: Place, **fields: Any) -> Peer:
    """The first server of one."""
    return await greeted(await there.begun(), **fields)


async def greeted(sock: socket.socket, **fields: Any) -> Peer:
    peer = Peer(sock)
    await peer.send(FrameType.REQUEST, json.dumps({"op": "configure", **CONFIGURATION, **fields}).encode())
    await peer.ready()
    assert peer.hello, "it ended before HELLO"
    return peer


async def read(sock: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer at the end."""
    loop, found = asyncio.get_running_loop(), b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            try:
                piece = await loop.sock_recv(sock, count - len(found))
            except ConnectionError:
                piece = b""
            if not piece:
                break
            found += piece
    return found


async def say(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


def proof(key: bytes, nonce: bytes, kind: bytes = b"c", word: bytes = b"aviato server 1\0") -> bytes:
    """What a server says, by the page."""
    own = secrets.token_bytes(32)
    return kind + own + hmac.new(key, word + kind + nonce + own, hashlib.sha256).digest()


@pytest.fixture(params=["new", "running"])
async def there(request: pytest.FixtureRequest) -> Any:
    """One that waits for its plan, and one that has a server."""
    async with place() as made:
        peer = await configured(made) if request.param == "running" else None
        made.state = request.param
        yield made
        if peer is not None:
            assert (await peer.sh("echo on")).stdout == "on\n", "it was disturbed"
        assert (await made.server())[1] == request.param
        if peer is not None:
            peer.close()


async def test_who_does_not_prove_the_key_hears_nothing(there: Place) -> None:
    for wrong in (
        lambda nonce: proof(secrets.token_bytes(32), nonce),
        lambda nonce: proof(there.key, nonce, b"x"),
        lambda nonce: proof(there.key, secrets.token_bytes(32)),
        lambda nonce: proof(there.key, nonce, word=b"aviato process 1\0"),
        lambda nonce: proof(there.key, nonce)[:-1] + b"\0",
        lambda nonce: b"GET / HTTP/1.1\r\nHost: sandbox\r\n\r\n" * 4,
    ):
        sock = there.dial()
        await say(sock, wrong(await read(sock, 32)))
        assert await read(sock, 1) == b""
    with pytest.raises(NotAuthentic) as caught:
        await prove(there.dial(), secrets.token_bytes(32))
    assert not caught.value.wrong_key


async def test_what_was_said_once_proves_nothing_again(there: Place) -> None:
    if there.state == "new":
        sock = there.dial()
        said = proof(there.key, await read(sock, 32))
        await say(sock, said)
        assert len(await read(sock, 33)) == 33
        sock.close()
    else:
        said = proof(there.key, await read(there.dial(), 32))
    again = there.dial()
    await read(again, 32)
    await say(again, said)
    assert await read(again, 1) == b""


async def test_a_question_takes_nobody_s_place(there: Place) -> None:
    """Who knows the key hears the state, whoever has it, and nothing more; what he said is no proof of another kind."""
    sock = there.dial()
    said = proof(there.key, await read(sock, 32), b"q")
    await say(sock, said)
    answer = await read(sock, 34)
    assert (answer[:1], len(answer)) == (there.state[:1].encode(), 33)
    assert await prove(there.dial(), there.key, kind=QUESTION) == there.state
    for kind in (b"c", b"q"):
        again = there.dial()
        await read(again, 32)
        await say(again, kind + said[1:])
        assert await read(again, 1) == b""


async def test_one_that_is_cut_anywhere_changes_nothing(there: Place) -> None:
    for count in range(SAID_BYTES):
        sock = there.dial()
        await say(sock, proof(there.key, await read(sock, 32))[:count])
        sock.close()


async def test_strangers_that_say_nothing_keep_nobody_away(there: Place) -> None:
    strangers = [there.dial() for _ in range(300)]
    assert len(await read(strangers[-1], 32)) == 32
    # The oldest has gone for a newer one.
    assert len(await read(strangers[0], 33)) == 32
    assert not has_said_more(strangers[-1])


FLOOD = """
import socket, sys
kept = []
for number in range(1000):
    kept.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20, (f"127.{number % 200}.7.1", 0)))
assert len(kept[-1].recv(32, socket.MSG_WAITALL)) == 32
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only the machine's root makes networks")
async def test_strangers_of_the_inside_have_no_server_go() -> None:
    async with place(own_network=True) as there:
        peer = await configured(there)
        server = there.dial()
        nonce = await read(server, 32)
        seen = await peer.run("python3", "-I", "-c", FLOOD, str(there.port))
        assert (seen.result["returncode"], seen.stderr) == (0, "")
        await say(server, proof(there.key, nonce))
        assert (await read(server, 33))[:1] == b"r"
        peer.close()


def has_said_more(sock: socket.socket) -> bool:
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


async def test_one_byte_at_a_time(there: Place) -> None:
    sock = there.dial()
    said = proof(there.key, await read(sock, 32))
    for at in range(SAID_BYTES - 1):
        await say(sock, said[at : at + 1])
        await asyncio.sleep(0.002)
    assert not has_said_more(sock)
    if there.state == "new":
        await say(sock, said[-1:])
        assert (await read(sock, 33))[:1] == b"n"
    sock.close()


@pytest.mark.parametrize("there", ["new"], indirect=True)
async def test_one_that_takes_too_long_is_let_go(there: Place) -> None:
    began, sock = asyncio.get_running_loop().time(), there.dial()
    await say(sock, proof(there.key, await read(sock, 32))[:-1])
    assert await read(sock, 1) == b""
    assert 9 < asyncio.get_running_loop().time() - began < 15


class Between:
    """Stands between a server and a real process 1.

    Args:
        there: that one.
        change: what it makes of the answer.
    """

    def __init__(self, there: Place, change: Any, step: int = 1 << 16) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self._theirs.setblocking(False)
        self._there, self._change, self._step = there, change, step

    async def relay(self) -> None:
        sock = self._there.dial()
        await self._pass_on(await read(sock, 32))
        await say(sock, await read(self._theirs, SAID_BYTES))
        said = await read(sock, 33)
        sock.close()  # Else process 1 waits for its plan.
        await self._pass_on(self._change(said))

    async def _pass_on(self, data: bytes) -> None:
        for at in range(0, len(data), self._step):
            await say(self._theirs, data[at : at + self._step])
            await asyncio.sleep(0)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


@pytest.mark.parametrize("there", ["new"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda said: b"r" + said[1:],
        lambda said: b"x" + said[1:],
        lambda said: said[:-1] + bytes([said[-1] ^ 1]),
        lambda said: said[:1] + bytes(32),
    ],
)
async def test_a_server_believes_nobody_who_does_not_know_the_key(there: Place, change: Any) -> None:
    between = Between(there, change)
    _, proved = await asyncio.gather(between.relay(), prove(between.ours, there.key), return_exceptions=True)
    between.close()
    assert isinstance(proved, NotAuthentic) and proved.wrong_key


@pytest.mark.parametrize("there", ["new"], indirect=True)
async def test_a_server_reads_not_a_byte_behind_it(there: Place) -> None:
    between = Between(there, lambda said: said + b"frames", step=1)
    _, state = await asyncio.gather(between.relay(), prove(between.ours, there.key))
    assert state == "new" and await read(between.ours, 6) == b"frames"
    between.close()


async def test_a_server_waits_only_so_long() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.send(b"x" * 31)
    with pytest.raises(TimeoutError):
        await prove(ours, bytes(32), seconds=0.1)
    theirs.close()
    with pytest.raises(NotAuthentic) as caught:
        await prove(ours, bytes(32))
    assert not caught.value.wrong_key
    ours.close()


async def test_it_waits_for_another_server_until_it_has_its_plan() -> None:
    async with place() as there:
        whole = json.dumps(told("restricted")).encode()
        head = len(whole).to_bytes(4, "big")
        for said in (b"", head[:2], head, head + whole[:-1], ((1 << 20) + 1).to_bytes(4, "big"), b"\0\0\0\x01{"):
            sock, state = await there.server()
            assert state == "new"
            await say(sock, said)
            if said[:2] == b"\0\x10" or said.endswith(b"\x01{"):
                assert await read(sock, 1) == b""
            sock.close()
        peer = await configured(there)
        assert (await peer.sh("echo on")).stdout == "on\n"
        peer.close()


async def trickle(sock: socket.socket, seconds: float) -> None:
    """A plan that never becomes whole."""
    await say(sock, (1 << 20).to_bytes(4, "big"))
    while True:
        await say(sock, b" ")
        await asyncio.sleep(seconds)


async def test_a_server_that_says_its_plan_slowly_keeps_no_other_away() -> None:
    async with place() as there:
        slow, state = await there.server()
        assert state == "new"
        saying = asyncio.ensure_future(trickle(slow, 0.05))
        strangers = [there.dial() for _ in range(50)]
        async with asyncio.timeout(5):
            peer = await configured(there)
            assert (await peer.sh("echo on")).stdout == "on\n"
            assert await read(slow, 1) == b""
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        assert len(await read(strangers[-1], 32)) == 32
        peer.close()


async def test_a_plan_has_to_be_whole_in_time() -> None:
    async with place() as there:
        began, (slow, _) = asyncio.get_running_loop().time(), await there.server()
        saying = asyncio.ensure_future(trickle(slow, 1.0))
        assert await read(slow, 1) == b""
        assert 9 < asyncio.get_running_loop().time() - began < 15
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        peer = await configured(there)
        peer.close()


async def test_a_plan_that_fails_is_told_everybody() -> None:
    async with place() as there:
        sock, _ = await there.server()
        await begin(sock, {"plan": [["watch_sockets", [], ""], ["no_such_step", [], ""]], "filter": ""})
        [frame] = FrameDecoder().feed(await read(sock, 1 << 16))
        said = json.loads(frame.payload)
        assert frame.type == FrameType.ERROR and said["reason"] == "start_failed" and "no_such_step" in said["message"]
        sock.close()
        assert await there.status() == 85
        assert there.process.stderr is not None
        assert there.log.read_text() == there.process.stderr.read().decode() != ""
        assert "no_such_step" in there.log.read_text()


INSIDE = """
import os, socket, sys
port, parts = int(sys.argv[1]), []
for name in ("environ", "mem", "maps", "auxv"):
    try:
        parts.append(open(f"/proc/1/{name}", "rb").read())
    except OSError as error:
        parts.append(type(error).__name__)
def heard(said):
    sock = socket.create_connection(("127.0.0.1", port), 20)
    nonce = sock.recv(32, socket.MSG_WAITALL)
    sock.sendall(said)
    try:
        return len(nonce), sock.recv(1)
    except ConnectionError:
        return len(nonce), b""
for said in (b"c" + bytes(64), os.urandom(65) + bytes(64)):
    assert heard(said) == (32, b""), said
print(*parts)
print("AVIATO_KEY" in os.environ, [name for name in os.environ if name.startswith(("KUBERNETES_", "AVIATO_"))])
"""


@pytest.mark.parametrize("security", ["restricted", "root"])
async def test_a_command_without_the_key_can_do_nothing_with_it(security: Security) -> None:
    async with place(security, {"KUBERNETES_PORT": "tcp://10.0.0.1", "OF_IMAGE": "1"}) as there:
        peer = await configured(there)
        seen = await peer.run("python3", "-I", "-c", INSIDE, str(there.port))
        assert seen.stderr == ""
        assert seen.stdout == "PermissionError " * 3 + "PermissionError\nFalse []\n"
        assert (await peer.sh("id -u; grep CapEff /proc/self/status")).stdout.split()[0] == (
            "0" if security == "root" else "65532"
        )
        assert not peer.closed.is_set() and not peer.takes_descriptors.is_set()
        peer.close()


FOUND = """
import os, sys
wanted, parts = [word.encode() for word in sys.argv[1:]], []
for top, directories, files in os.walk("/"):
    directories[:] = [name for name in directories if os.path.join(top, name) not in ("/sys", "/usr", "/lib", "/lib64")]
    for name in files:
        path = os.path.join(top, name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                said = file.read(1 << 20) or b""
        except OSError:
            continue
        parts += [path for word in wanted if word in said and not path.endswith("cmdline")]
print(parts, os.listdir("/.aviato-key"), [name for name in os.environ if name.startswith("AVIATO_")])
"""


@pytest.mark.parametrize("security", ["restricted", "root"])
async def test_a_key_that_came_in_a_file_is_nowhere(security: Security) -> None:
    """Neither its own nor the pool's, of which it was made."""
    pool_key = secrets.token_bytes(32)
    async with place(security, pool_key=pool_key) as there:
        peer = await configured(there)
        words = [pool_key.hex(), there.key.hex()]
        seen = await peer.run("python3", "-I", "-c", FOUND, *words)
        assert (seen.stdout, seen.stderr) == ("[] [] []\n", "")
        seen = await peer.run("python3", "-I", "-c", INSIDE, str(there.port))
        assert seen.stdout == "PermissionError " * 3 + "PermissionError\nFalse []\n"
        peer.close()


async def test_without_its_file_it_does_not_begin() -> None:
    with pytest.raises(AssertionError, match="ended with 2"):
        async with place(variables={"AVIATO_KEY_FILE": "/nothing"}):
            pass


async def test_nobody_on_the_machine_reads_the_key_where_the_kernel_shows_it() -> None:
    async with place() as there:
        try:
            shown = Path(f"/proc/{there.number()}/environ").read_bytes()
        except PermissionError:
            pytest.skip("only root sees it at all")
        assert there.key.hex().encode() not in shown and b"AVIATO_KEY=" + b"0" * 64 in shown


async def test_who_is_replaced_is_told() -> None:
    async with place() as there:
        first = await there.begun()
        await greeted_raw(first)
        # What it has said and nobody reads takes that from nobody.
        await say(first, encode(FrameType.KEEPALIVE))
        second, state = await there.server()
        assert state == "running"
        frames = FrameDecoder().feed(await read(first, 1 << 20))
        assert [frame.type for frame in frames] == [FrameType.HELLO, FrameType.REPLACED]
        peer = Peer(second)
        await peer.ready()
        assert peer.hello["configured"] is True
        assert (await peer.sh("echo on")).stdout == "on\n"
        peer.close()


async def test_who_came_before_the_plan_is_heard_on() -> None:
    async with place() as there:
        first, state = await there.server()
        second = there.dial()
        nonce = await read(second, 32)
        said = proof(there.key, nonce)
        await say(second, said[:20])
        await begin(first, told("restricted"))
        peer = await greeted(first)
        await say(second, said[20:])
        assert (state, (await read(second, 33))[:1]) == ("new", b"r")
        await peer.gone()  # Its place is taken.
        peer.close()


async def greeted_raw(sock: socket.socket) -> None:
    await say(sock, encode(FrameType.REQUEST, json.dumps({"op": "configure", **CONFIGURATION}).encode()))


async def test_a_link_tells_another_server_from_an_end() -> None:
    async with place() as there:
        first = await Process1Link.connect("one", await there.begun(), Configuration.of(CONFIGURATION))
        second = await Process1Link.connect("two", (await there.server())[0])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (ended := first.ended()) is None:
                await asyncio.sleep(0.01)
        assert ended.reason == "taken"
        first.detach()
        assert second.ended() is None
        second.detach()


@pytest.mark.parametrize(
    ("directory", "working_dir", "expected"),
    [
        ("/srv/app", "", "/srv/app"),
        ("/srv/app", "..", "/srv"),
        ("/", ".", "/workspace"),
        ("/", "../srv", "/srv"),
        ("/srv/app", "/tmp", "/tmp"),
    ],
)
async def test_commands_work_where_the_image_says(directory: str, working_dir: str, expected: str) -> None:
    async with place(variables={"ONE": "image", "TWO": "image"}, directory=directory) as there:
        given = {"base_environment": {"ONE": "base", "ZERO": "base"}, "environment": {"TWO": "given"}}
        peer = await configured(there, **given, working_dir=working_dir)
        assert (await peer.sh("echo $ZERO $ONE $TWO; pwd -P")).stdout == f"base image given\n{expected}\n"
        peer.close()


async def test_its_exit_status_says_how_it_ended() -> None:
    async def ends(expected: int, **fields: Any) -> None:
        async with place() as there:
            peer = await configured(there, **fields)
            if expected == 0:
                await peer.begin("stop", grace_seconds=0)
            elif expected == 84:
                await peer.finish(await peer.start(peer.spec("sh", "-c", "exit 7", main=True)))
            elif expected == 83:
                peer.close()
            assert await there.status() == expected
            peer.close()

    await ends(0)
    await ends(81, max_lifetime_seconds=0.3)
    await ends(82, idle_timeout_seconds=0.3)
    await ends(83, orphan_timeout_seconds=0.5)
    await ends(84)
