"""The proxy does what it says: at that byte, in that direction, by that seed; the switch is there only if it is asked for."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.endings.conftest import until

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
BODY = bytes(range(250)) * 400


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection's first 1,000 bytes; and all that it got, a connection each."""
    got: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "e"))
    listener.listen()

    def serve(connection: socket.socket, number: int) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    before, got[number] = got[number], got[number] + data
                    if len(before) < 1000 <= len(got[number]):
                        connection.sendall(HEAD + BODY)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            got.append(b"")
            threading.Thread(target=serve, args=(connection, len(got) - 1), name="asyncio_echo").start()

    threading.Thread(target=accept, name="asyncio_echo").start()
    yield str(tmp_path / "e"), got
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def ask(address: str, size: int = 2000) -> bytes:
    """What comes back."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(address)
        answer = b""
        try:
            client.sendall(b"x" * size)
            while len(answer) < len(HEAD + BODY) and (data := client.recv(1 << 16)):
                answer += data
        except OSError:
            pass
        return answer


def test_a_cut_is_at_its_byte(echo: Any, make_proxy: Callable[..., Any]) -> None:
    server, got = echo
    proxy = make_proxy(server, seed=5, kinds={"cut": 1})
    for number in range(30):
        before = len(proxy.faults)
        answer = ask(proxy.address)
        assert (HEAD + BODY).startswith(answer)
        until(lambda number=number: len(got) > number, 5)
        fault = proxy.faults[before:]
        if not fault:
            assert answer == HEAD + BODY
        elif fault[0]["direction"] == "down":
            assert len(answer) == fault[0]["byte"]
        else:
            until(lambda byte=fault[0]["byte"]: len(got[-1]) == byte, 5)
    assert {fault["direction"] for fault in proxy.faults} == {"up", "down"} and len(proxy.faults) > 10
    again = make_proxy(server, seed=5, kinds={"cut": 1})
    for _ in range(30):
        ask(again.address)
    assert again.faults == proxy.faults


@pytest.mark.deep
def test_the_others(echo: Any, make_proxy: Callable[..., Any]) -> None:
    server, got = echo
    spoilt = make_proxy(server, seed=1, kinds={"garbage": 1})
    answers = [ask(spoilt.address) for _ in range(30)]
    assert spoilt.counts["garbage"] == sum(answer != HEAD + BODY for answer in answers) > 5
    late = make_proxy(server, seed=2, kinds={"delay": 2, "reorder": 1})
    assert {ask(late.address) for _ in range(10)} == {HEAD + BODY} and late.counts.total() > 3
    twice = make_proxy(server, seed=3, kinds={"duplicate": 1})
    before = len(got)
    assert {ask(twice.address) for _ in range(10)} == {HEAD + BODY}
    copies = twice.counts["duplicate"]
    until(lambda: len(got) >= before + 10 + copies, 5)
    until(lambda: sum(map(len, got[before:])) == 20_000 + sum(fault["byte"] for fault in twice.faults), 5)
    assert copies > 3


def test_without_its_variable_the_switch_is_not_even_imported() -> None:
    source = "import sys, aviato.server.serve, aviato.cli.serve; print('aviato.server.fault_injection' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
