"""Large files of a client on the server's machine go by memory that it lends, and nobody sees a difference."""

from __future__ import annotations

import asyncio
import glob
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.transport import lending
from aviato.wire.memory import LEAST_BYTES, MOST_BYTES, NAME_HEADER, NUMBER, UPGRADE

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
@pytest.mark.skipif(os.getuid() != 0, reason="the descriptors of process 1 are shown to root only")
def test_it_is_taken_back(make_server: Any, monkeypatch: pytest.MonkeyPatch, used: list[str]) -> None:
    made: list[os.stat_result] = []
    create = os.memfd_create

    def creating(name: str, flags: int) -> int:
        fd = create(name, flags)
        made.append(os.fstat(fd))
        return fd

    monkeypatch.setattr(os, "memfd_create", creating)
    with aviato.Session(defaults=aviato.SandboxDefaults(base_url=make_server().url)) as session:
        sandbox = session.sandbox()
        round_trip(sandbox, os.urandom(SIZE))
        round_trip(sandbox, os.urandom(SIZE))
        assert len(made) == 1 and len(holders(made[0])) == 3  # Here, in the server and in process 1.
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
PRINT += f"for _ in range({SIZE_PRINTED // 50_000}): out.write(r.randbytes(50_000))"


@pytest.fixture(scope="module")
def printed() -> bytes:
    pick = random.Random(3)
    return b"".join(pick.randbytes(50_000) for _ in range(SIZE_PRINTED // 50_000))


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


def test_large_output_comes_by_memory(sandbox: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    for _ in range(3):
        lent_bytes.clear()
        result = sandbox.exec(["python3", "-c", PRINT], max_output_bytes=1 << 30).result()
        assert result.stdout_bytes == printed
        assert sum(lent_bytes) > SIZE_PRINTED // 2
    result = sandbox.exec(["python3", "-c", PRINT.replace("stdout", "stderr")], max_output_bytes=1 << 30).result()
    assert result.stderr_bytes == printed


def test_large_output_from_asyncio(served: Any, printed: bytes, lent_bytes: list[int]) -> None:
    async def work() -> None:
        async with aviato.AsyncClient() as client:
            sandbox = await client.sandbox()
            running = [sandbox.exec(["python3", "-c", PRINT], max_output_bytes=1 << 30) for _ in range(3)]
            for result in await asyncio.gather(*running):
                assert result.stdout_bytes == printed

    asyncio.run(work())
    assert lent_bytes


def test_who_reads_along_slowly_gets_all_of_it(sandbox: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    process = sandbox.exec(["python3", "-c", PRINT])
    found = b""
    for piece in process.stdout.raw():
        found += piece
        if len(found) < SIZE_PRINTED // 2:
            threading.Event().wait(0.01)
    assert found == printed and lent_bytes


def test_a_server_that_dies_loses_no_output(make_server: Any, printed: bytes, lent_bytes: list[int]) -> None:
    server = make_server()
    slowly = PRINT.replace("out.write", "__import__('time').sleep(0.002); out.write")
    with aviato.Session(defaults=aviato.SandboxDefaults(base_url=server.url)) as session:
        sandbox = session.sandbox()
        process = sandbox.exec(["python3", "-c", slowly], max_output_bytes=1 << 30)
        assert _until(lambda: len(lent_bytes) > 3)
        server.stop(signal.SIGKILL)
        server.restart()
        assert process.result().stdout_bytes == printed


def test_another_reader_takes_over(sandbox: aviato.Sandbox, printed: bytes, lent_bytes: list[int]) -> None:
    process = sandbox.exec(["sh", "-c", 'python3 -c "$0"; sleep 0.5; python3 -c "$0"', PRINT], max_output_bytes=1 << 30)
    assert _until(lambda: process.stdout.total_bytes == SIZE_PRINTED)
    assert lent_bytes
    other = sandbox.attach(process.exec_id, stdout_offset=SIZE_PRINTED)
    with pytest.raises(aviato.SandboxError):
        process.result()
    found = b"".join(other.stdout.raw())
    assert found == printed and other.result().stdout_bytes_total == 2 * SIZE_PRINTED


@pytest.fixture
def lender(served: Any) -> Iterator[Callable[[], tuple[str, socket.socket]]]:
    """Connections that lend, by hand."""
    made: list[socket.socket] = []

    def connect() -> tuple[str, socket.socket]:
        sock = socket.socket(socket.AF_UNIX)
        made.append(sock)
        sock.connect(served.url.removeprefix("unix://"))
        sock.sendall(f"POST /v1/memory HTTP/1.1\r\nHost: x\r\nUpgrade: {UPGRADE}\r\nContent-Length: 0\r\n\r\n".encode())
        head = sock.recv(4096).decode()
        assert head.startswith("HTTP/1.1 101"), head
        return head.split(f"{NAME_HEADER}: ")[1].split("\r\n")[0], sock

    yield connect
    for sock in made:
        sock.close()


def put(served: Any, sandbox: aviato.Sandbox, memory: str, size: int) -> str:
    """The answer to a write by memory."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(served.url.removeprefix("unix://"))
        path = f"/v1/sandboxes/{sandbox.sandbox_id}/files?path=f&memory={memory}&memory_bytes={size}"
        sock.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer.decode()


def test_memory_of_one_sandbox_is_never_given_to_another(
    session: aviato.Session, served: Any, lender: Callable[[], tuple[str, socket.socket]]
) -> None:
    """Its process 1 could write what the other reads."""
    one, other = session.sandbox(), session.sandbox()
    for sandbox in (one, other):
        sandbox.exec(["true"]).result()
    name, sock = lender()
    fd = os.memfd_create("test")
    os.write(fd, b"content")
    socket.send_fds(sock, [NUMBER.pack(1)], [fd])
    assert put(served, one, f"{name}.1", 7).startswith("HTTP/1.1 204")
    assert one.read_file("f").result() == b"content"
    answer = put(served, other, f"{name}.1", 7)
    assert answer.startswith("HTTP/1.1 400") and '"reason":"memory"' in answer
    for unknown in (f"{name}.2", f"{name}.x", f"{name}.", "1", "0" * 32 + ".1"):
        assert put(served, one, unknown, 7).startswith("HTTP/1.1 400")
    os.close(fd)


def test_nothing_but_memory_is_taken(
    sandbox: aviato.Sandbox, served: Any, lender: Callable[[], tuple[str, socket.socket]], tmp_path: Path
) -> None:
    """No file, directory or device of the machine goes into a sandbox."""
    sandbox.exec(["true"]).result()
    name, sock = lender()
    (tmp_path / "file").write_bytes(b"content")
    opened = [os.open(path, os.O_RDONLY) for path in (tmp_path / "file", tmp_path, "/dev/zero")]
    opened += [os.open("/dev/shm", os.O_RDONLY), *os.pipe()]
    for number, fd in enumerate(opened):
        socket.send_fds(sock, [NUMBER.pack(number)], [fd])
        assert put(served, sandbox, f"{name}.{number}", 7).startswith("HTTP/1.1 400"), number
    for fd in opened:
        os.close(fd)


def test_odd_words_over_the_connection_harm_nobody(
    sandbox: aviato.Sandbox, served: Any, lender: Callable[[], tuple[str, socket.socket]]
) -> None:
    name, sock = lender()
    fds = [os.memfd_create("test") for _ in range(40)]
    socket.send_fds(sock, [NUMBER.pack(1)], fds)
    socket.send_fds(sock, [NUMBER.pack(2) + b"odd"], fds[:1])
    sock.close()
    for fd in fds:
        os.close(fd)
    assert _until(lambda: put(served, sandbox, f"{name}.1", 7).startswith("HTTP/1.1 400"))
    _, again = lender()
    for number in range(100):
        fd = os.memfd_create("test")
        socket.send_fds(again, [NUMBER.pack(number)], [fd])
        os.close(fd)
    round_trip(sandbox, os.urandom(SIZE))
