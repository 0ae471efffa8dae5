"""Large files of a client on the server's machine go by memory that it lends, and nobody sees a difference."""

from __future__ import annotations

import asyncio
import fcntl
import glob
import os
import random
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import aviato
from aviato.transport import memory_connection
from aviato.transport import shared_memory as lending
from aviato.wire.session import encode_opening
from aviato.wire.shared_memory import LEAST_BYTES, MEMORY_HEADER, MOST_BYTES, RECORD, SHARED, UPGRADE

SIZE = 1 << 20


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done by memory, in order."""
    done: list[str] = []
    put, get = lending.Memory.put, lending.Memory.get

    def putting(self: lending.Memory, content: Any) -> None:
        done.append("write")
        put(self, content)

    def getting(self: lending.Memory, size: int) -> bytes:
        done.append("read")
        return get(self, size)

    monkeypatch.setattr(lending.Memory, "put", putting)
    monkeypatch.setattr(lending.Memory, "get", getting)
    return done


@pytest.fixture
def soon_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "KEPT_SECONDS", 0.2)


def round_trip(sandbox: aviato.Sandbox, content: bytes) -> None:
    sandbox.write_file("f", content).result()
    assert sandbox.read_file("f").result() == content


def test_from_the_second_file_on(sandbox: aviato.Sandbox, used: list[str]) -> None:
    for _ in range(3):
        round_trip(sandbox, os.urandom(SIZE))
    assert used == ["read", "write", "read", "write", "read"]


def test_from_asyncio(served: Any, used: list[str]) -> None:
    async def work() -> None:
        async with aviato.AsyncClient() as client:
            sandbox = await client.sandbox()
            for _ in range(3):
                content = os.urandom(SIZE)
                await sandbox.write_file("f", content)
                assert await sandbox.read_file("f") == content
            contents = [os.urandom(SIZE) for _ in range(8)]
            await asyncio.gather(*(sandbox.write_file(f"f{i}", content) for i, content in enumerate(contents)))
            assert await asyncio.gather(*(sandbox.read_file(f"f{i}") for i in range(8))) == contents

    asyncio.run(work())
    assert used[:5] == ["read", "write", "read", "write", "read"]


@pytest.mark.parametrize("size", [0, 1, LEAST_BYTES - 1, LEAST_BYTES, MOST_BYTES, MOST_BYTES + 1])
def test_every_size(sandbox: aviato.Sandbox, size: int) -> None:
    round_trip(sandbox, os.urandom(SIZE))
    for _ in range(2):
        round_trip(sandbox, os.urandom(size))


def test_what_is_wrong_with_a_file_is_told_as_ever(sandbox: aviato.Sandbox, used: list[str]) -> None:
    round_trip(sandbox, bytes(SIZE))
    for call in (sandbox.write_file("/usr/f", bytes(SIZE)), sandbox.read_file("/no/such")):
        with pytest.raises(aviato.SandboxFileError):
            call.result()
    round_trip(sandbox, os.urandom(SIZE))
    assert used[-2:] == ["write", "read"]


def test_a_file_that_a_command_writes_meanwhile_is_what_it_was(sandbox: aviato.Sandbox) -> None:
    round_trip(sandbox, bytes(SIZE))
    writer = sandbox.exec(["sh", "-c", "while :; do head -c 1048576 /dev/zero > g; mv g f; done"])
    for _ in range(20):
        assert sandbox.read_file("f").result() == bytes(SIZE)
    writer.cancel()


@pytest.mark.usefixtures("soon_taken_back")
def test_it_is_let_go(make_server: Any, monkeypatch: pytest.MonkeyPatch, used: list[str]) -> None:
    made: list[os.stat_result] = []
    create = os.memfd_create

    def creating(name: str, flags: int) -> int:
        fd = create(name, flags)
        made.append(os.fstat(fd))
        return fd

    monkeypatch.setattr(os, "memfd_create", creating)
    server = make_server()
    with aviato.Session(defaults=aviato.SandboxDefaults(base_url=server.url)) as session:
        sandbox = session.sandbox()
        round_trip(sandbox, os.urandom(SIZE))
        round_trip(sandbox, os.urandom(SIZE))
        assert len(made) == 1
        # Process 1 has it for no longer than a request.
        assert _until(lambda: holders(made[0]) <= {str(os.getpid()), str(server.process.pid)})
        assert _until(lambda: not holders(made[0]))
        round_trip(sandbox, os.urandom(SIZE))
        assert used[-2:] == ["write", "read"]


def holders(file: os.stat_result) -> set[str]:
    """The processes that have it open."""
    found = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            if os.path.samestat(os.stat(path), file):
                found.add(path.split("/")[2])
    return found


def _until(true: Callable[[], bool]) -> bool:
    for _ in range(200):
        if true():
            return True
        threading.Event().wait(0.02)
    return False


def test_a_server_that_dies_is_asked_by_the_socket(make_server: Any, used: list[str]) -> None:
    server = make_server()
    with aviato.Session(defaults=aviato.SandboxDefaults(base_url=server.url)) as session:
        sandbox = session.sandbox()
        for _ in range(2):
            round_trip(sandbox, os.urandom(SIZE))
        for _ in range(2):
            server.stop(signal.SIGKILL)
            starting = threading.Timer(0.3, server.restart)
            starting.start()
            round_trip(sandbox, os.urandom(SIZE))
            starting.join()
            before = len(used)
            round_trip(sandbox, os.urandom(SIZE))
            round_trip(sandbox, os.urandom(SIZE))
            assert len(used) > before


SIZE_PRINTED = 24_000_000
PRINT = "import random, sys; r, out = random.Random(3), sys.stdout.buffer\n"
PRINT += f"for _ in range({SIZE_PRINTED // 500_000}): out.write(r.randbytes(500_000))"


@pytest.fixture(scope="module")
def printed() -> bytes:
    pick = random.Random(3)
    return b"".join(pick.randbytes(500_000) for _ in range(SIZE_PRINTED // 500_000))


@pytest.fixture
def lent_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much output came by memory, piece by piece."""
    found: list[int] = []
    pieces = lending.Memory.pieces

    def counting(self: lending.Memory, position: int, size: int) -> Iterator[memoryview]:
        found.append(size)
        return pieces(self, position, size)

    monkeypatch.setattr(lending.Memory, "pieces", counting)
    return found


@pytest.fixture
def warm(sandbox: aviato.Sandbox) -> aviato.Sandbox:
    """One that had large output before."""
    sandbox.exec(["head", "-c", "3000000", "/dev/zero"]).result()
    return sandbox


def test_large_output_comes_by_memory(sandbox: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    result = sandbox.exec(["python3", "-c", PRINT], max_output_bytes=1 << 30).result()
    assert result.stdout_bytes == printed and not lent_bytes
    for _ in range(3):
        lent_bytes.clear()
        result = sandbox.exec(["python3", "-c", PRINT], max_output_bytes=1 << 30).result()
        assert result.stdout_bytes == printed
        assert sum(lent_bytes) > SIZE_PRINTED // 2
    result = sandbox.exec(["python3", "-c", PRINT.replace("stdout", "stderr")], max_output_bytes=1 << 30).result()
    assert result.stderr_bytes == printed
    assert sandbox.exec(["echo", "little"]).result().stdout == "little\n"


def test_large_output_from_asyncio(served: Any, printed: bytes, lent_bytes: list[int]) -> None:
    async def work() -> None:
        async with aviato.AsyncClient() as client:
            sandbox = await client.sandbox()
            await sandbox.exec(["head", "-c", "3000000", "/dev/zero"])
            running = [sandbox.exec(["python3", "-c", PRINT], max_output_bytes=1 << 30) for _ in range(3)]
            for result in await asyncio.gather(*running):
                assert result.stdout_bytes == printed

    asyncio.run(work())
    assert lent_bytes


def test_who_reads_along_slowly_gets_all_of_it(warm: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    process = warm.exec(["python3", "-c", PRINT])
    found = b""
    for piece in process.stdout.raw():
        found += piece
        if len(found) < SIZE_PRINTED // 2:
            threading.Event().wait(0.01)
    assert found == printed and lent_bytes


def test_a_server_that_dies_loses_no_output(make_server: Any, printed: bytes, lent_bytes: list[int]) -> None:
    server = make_server()
    slowly = PRINT.replace("out.write", "__import__('time').sleep(0.02); out.write")
    with aviato.Session(defaults=aviato.SandboxDefaults(base_url=server.url)) as session:
        sandbox = session.sandbox()
        sandbox.exec(["head", "-c", "3000000", "/dev/zero"]).result()
        process = sandbox.exec(["python3", "-c", slowly], max_output_bytes=1 << 30)
        assert _until(lambda: len(lent_bytes) > 3)
        server.stop(signal.SIGKILL)
        server.restart()
        assert process.result().stdout_bytes == printed


def test_another_reader_takes_over(warm: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    process = warm.exec(["sh", "-c", 'python3 -c "$0"; sleep 0.5; python3 -c "$0"', PRINT], max_output_bytes=1 << 30)
    assert _until(lambda: process.stdout.total_bytes == SIZE_PRINTED)
    assert lent_bytes
    other = warm.attach(process.exec_id, stdout_offset=SIZE_PRINTED)
    with pytest.raises(aviato.SandboxError):
        process.result()
    found = b"".join(other.stdout.raw())
    assert found == printed and other.result().stdout_bytes_total == 2 * SIZE_PRINTED


def put(served: Any, sandbox: aviato.Sandbox, name: str, size: int) -> str:
    """The answer to a write by memory of this name."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(served.url.removeprefix("unix://"))
        path = f"/v1/sandboxes/{sandbox.sandbox_id}/files?path=f&memory_bytes={size}"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{MEMORY_HEADER}: {name}\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
        sock.sendall(head.encode() + b".")
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer.decode()


SECRET = bytes.fromhex("0123456789abcdef" * 2)


@pytest.fixture
def running(sandbox: aviato.Sandbox) -> aviato.Sandbox:
    sandbox.write_file("f", b"old").result()
    return sandbox


@pytest.fixture
def fd(served: Any) -> Iterator[int]:
    """Memory that is shared under `SECRET`."""
    made = os.memfd_create("aviato", os.MFD_ALLOW_SEALING)
    os.truncate(made, lending.SIZE)
    os.pwrite(made, b"content", 0)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, lending.SEALS)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(served.url.removeprefix("unix://"))
        sock.sendall(encode_opening({}, upgrade=UPGRADE))
        assert sock.recv(4096).startswith(b"HTTP/1.1 101 ")
        socket.send_fds(sock, [RECORD.pack(SHARED, SECRET)], [made])
        yield made
    os.close(made)


def test_memory_that_is_shared(running: aviato.Sandbox, served: Any, fd: int) -> None:
    assert put(served, running, SECRET.hex(), 7).startswith("HTTP/1.1 204")
    assert running.read_file("f").result() == b"content"


@pytest.mark.parametrize("name", ["", "x", "{fd}", "{secret}x", "{other}", "{upper}", "0.{secret}", "../{secret}"])
def test_nothing_is_taken_by_another_name(running: aviato.Sandbox, served: Any, fd: int, name: str) -> None:
    given = name.format(fd=fd, secret=SECRET.hex(), other="f" * 32, upper=SECRET.hex().upper())
    answer = put(served, running, given, 7)
    assert answer.startswith("HTTP/1.1 400") and '"memory_bytes"' in answer
    assert running.read_file("f").result() == b"old"


def test_a_server_without_it_is_sent_all_by_the_socket(
    make_server: Callable[..., Any], used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier version opens no such connection; it is asked for one again after a while."""
    monkeypatch.setattr(memory_connection, "UPGRADE", "aviato-other")
    monkeypatch.setattr(lending, "REFUSED_SECONDS", 1.0)
    with aviato.Sandbox(base_url=make_server().url) as sandbox:
        for _ in range(4):
            round_trip(sandbox, os.urandom(SIZE))
        monkeypatch.setattr(memory_connection, "UPGRADE", UPGRADE)
        assert not used
        while not used:
            round_trip(sandbox, os.urandom(SIZE))
        round_trip(sandbox, os.urandom(SIZE))
        assert used[-2:] == ["write", "read"]


def test_memory_that_the_server_has_not(
    make_server: Callable[..., Any], used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that has just been started anew: it gets no file that is empty, and is not asked again at once."""
    monkeypatch.setattr(memory_connection.MemoryConnection, "share", lambda *_: True)
    with aviato.Sandbox(base_url=make_server().url) as sandbox:
        for _ in range(6):
            round_trip(sandbox, os.urandom(SIZE))
    assert 0 < used.count("write") <= lending.MOST_REFUSALS


def test_a_client_that_leaves_before_it_has_put_anything_there(running: aviato.Sandbox, served: Any, fd: int) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(served.url.removeprefix("unix://"))
        path = f"/v1/sandboxes/{running.sandbox_id}/files?path=f&memory_bytes=7"
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{MEMORY_HEADER}: {SECRET.hex()}\r\nContent-Length: 1\r\n\r\n"
        sock.sendall(head.encode())
        assert _until(lambda: len(running.list_files(".").result()) == 2)  # It is under way.
    assert _until(lambda: len(running.list_files(".").result()) == 1)
    assert running.read_file("f").result() == b"old"


def test_what_cannot_be_put_there_goes_by_the_socket(
    sandbox: aviato.Sandbox, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    round_trip(sandbox, os.urandom(SIZE))

    def failing(fd: int, data: Any, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lending.os, "pwrite", failing)
    content = os.urandom(SIZE)
    sandbox.write_file("f", content).result()
    monkeypatch.undo()
    assert sandbox.read_file("f").result() == content


def test_who_stops_reading_holds_up_nobody_but_his_own_command(warm: aviato.Sandbox, lent_bytes: list[int]) -> None:
    # By writes that fill the pipe: what comes in pieces smaller than that goes by the socket, and may be all that ever comes
    # before process 1 waits for the reader.
    process = warm.exec(["sh", "-c", "dd if=/dev/zero bs=1000000 count=30 status=none; echo on >&2"])
    pieces = process.stdout.raw()
    seen = len(next(pieces))
    assert _until(lambda: bool(lent_bytes))
    for _ in range(3):
        assert warm.exec(["echo", "on"]).result().stdout == "on\n"
    assert seen + sum(map(len, pieces)) == 30_000_000
    assert process.result().stderr == "on\n"


def test_a_command_that_is_cancelled_takes_its_memory_with_it(warm: aviato.Sandbox, lent_bytes: list[int]) -> None:
    for _ in range(3):
        process = warm.exec(["yes"])
        assert _until(lambda: len(lent_bytes) > 3)
        process.cancel()
        with pytest.raises(aviato.AviatoError):
            process.result()
        lent_bytes.clear()
        assert warm.exec(["head", "-c", "9000000", "/dev/zero"]).result().stdout_bytes_total == 9_000_000


def test_a_sandbox_tells_no_places_that_there_are_none_of() -> None:
    memory = lending.Memory(lending.Memories(""), "s", "s")
    for position, size in ((0, 1 << 40), (lending.CONFIRMED_AT, 1), (2**63, 1), (2**64 - 1, 2**64 - 1)):
        with pytest.raises(aviato.SandboxUnavailableError):
            list(memory.pieces(position, size))
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(memory._fd, 1 << 40)
    memory.drop()


def test_a_child_does_not_hold_what_its_parent_lends(sandbox: aviato.Sandbox) -> None:
    for _ in range(2):
        round_trip(sandbox, os.urandom(SIZE))

    def held() -> int:
        folder = "/proc/self/fd"
        return sum("memfd:aviato" in os.readlink(path) for path in glob.glob(f"{folder}/*") if os.path.lexists(path))

    assert held()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks where there are threads.
        pid = os.fork()
    if not pid:
        os._exit(held())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    round_trip(sandbox, os.urandom(SIZE))
