"""Exposed ports of pods, and lists of hosts: the server's ports and proxy, and nothing that opens in the cluster."""

from __future__ import annotations

import hashlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

import aviato
from aviato.promises.network import SERVES, answering
from tests.kubernetes.pods.conftest import Namespace
from tests.kubernetes.pods.test_failures import wait_until

COUNTS = """
import hashlib, socket, threading
listener = socket.create_server(("127.0.0.1", 8000), backlog=100)
def serve(sock):
    with sock:
        found = hashlib.sha256()
        while data := sock.recv(65536):
            found.update(data)
        sock.sendall(found.hexdigest().encode())
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]]).start()
"""
NO_PROXY = {"NO_PROXY": "", "no_proxy": ""}
BLOCKS = """
import socket, time
made = [socket.create_connection(("127.0.0.1", 7723)) for _ in range(50)]
print("held", flush=True)
time.sleep(60)
"""


def begin(sandbox: aviato.Sandbox, program: str) -> str:
    """A program that listens on port 8000, and its URL."""
    sandbox.exec(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 &', program], check=True).result()
    return sandbox.wait_for_port(8000).result()


def get(url: str, path: str = "x") -> bytes:
    with urllib.request.urlopen(f"{url}/{path}", timeout=20) as answer:
        return bytes(answer.read())


def counted(url: str, content: bytes) -> str:
    """What the program says once its side has ended."""
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 20) as sock:
        sock.sendall(content)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while piece := sock.recv(1000):
            found += piece
    return found.decode()


@pytest.mark.parametrize("way", ["direct", "forward"])
def test_what_listens_is_reached(make_kubernetes: Callable[..., Any], way: str) -> None:
    make_kubernetes(kubernetes_reach=way)
    with aviato.Session() as session:
        url = begin(session.sandbox(ports=[8000]), COUNTS)
        contents = [os.urandom(size) for size in (0, 1, 100_000, 3_000_001, *[10_000] * 20)]
        with ThreadPoolExecutor(len(contents)) as pool:
            found = list(pool.map(lambda content: counted(url, content), contents))
        assert found == [hashlib.sha256(content).hexdigest() for content in contents]


def test_nothing_opens_in_the_cluster(session: aviato.Session, namespace: Namespace) -> None:
    sandbox = session.sandbox(ports=[8000, 8001])
    assert get(begin(sandbox, SERVES)) == b"from inside: /x"
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(sandbox.service_urls[8001])
    caught.value.close()
    assert caught.value.code == 502
    [container] = namespace.pod(sandbox.sandbox_id)["spec"]["containers"]
    assert [one["containerPort"] for one in container["ports"]] == [7723]
    assert namespace.all("services", "aviato.dev/claim") == []
    for policy in namespace.all("networkpolicies"):
        assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 7723}]}]


def test_the_port_of_process_1_is_its_own(session: aviato.Session) -> None:
    with pytest.raises(aviato.AviatoValidationError, match="7723") as caught:
        session.sandbox(ports=[8000, 7723]).wait()
    assert "ports" in caught.value.field_violations and not caught.value.is_infrastructure


def test_code_inside_keeps_nobody_out(session: aviato.Session) -> None:
    """It may hold all places of who has not proved the key."""
    sandbox = session.sandbox(ports=[8000])
    url = begin(sandbox, SERVES)
    holder = sandbox.exec(["python3", "-c", BLOCKS])
    assert next(iter(holder.stdout)) == "held\n"
    assert get(url) == b"from inside: /x"


def test_another_server_has_addresses_of_its_own(make_kubernetes: Callable[..., Any]) -> None:
    make_kubernetes(kubernetes_claim="ports")
    sandbox = aviato.Sandbox.run(detached=True, ports=[8000])
    first = begin(sandbox, SERVES)
    assert get(first, "one") == b"from inside: /one"
    make_kubernetes(kubernetes_claim="ports")
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.exposed_ports == (8000,) and again.limits == sandbox.limits
    second = again.wait_for_port(8000).result()
    assert second != first and get(second, "two") == b"from inside: /two"

    def is_free() -> bool:
        try:
            get(first)
        except OSError:
            return True
        return False

    wait_until(is_free)
    again.stop(graceful_shutdown_seconds=0).result()


# -- lists of hosts ------------------------------------------------------------------------------------------------------------

ASKS_OFTEN = """
import concurrent.futures, sys, urllib.error, urllib.request
def ask(_):
    try:
        return urllib.request.urlopen(sys.argv[1], timeout=20).read()
    except urllib.error.HTTPError as error:
        return b"HTTP %d" % error.code
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    print({len(found) if len(found) > 100 else found for found in pool.map(ask, range(60))})
"""


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a web server on the machine of the server."""
    with answering(bytes(200_000)) as port:
        yield port


@pytest.mark.parametrize("way", ["direct", "forward"])
def test_a_list_of_hosts(make_kubernetes: Callable[..., Any], namespace: Namespace, web: int, way: str) -> None:
    make_kubernetes(kubernetes_reach=way, egress_allow_cidr="127.0.0.0/8")
    with aviato.Session() as session:
        sandbox = session.sandbox(network=aviato.NetworkOptions(egress_mode=["127.0.0.1"]), environment_variables=NO_PROXY)
        url = f"http://127.0.0.1:{web}/"
        assert sandbox.exec(["python3", "-c", ASKS_OFTEN, url]).result().stdout == "{200000}\n"
        assert sandbox.exec(["python3", "-c", ASKS_OFTEN, "http://other.example/"]).result().stdout == "{b'HTTP 403'}\n"
        labels = namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]
        assert labels["aviato.dev/network"] == "none", "the policy is the closed one"
        assert any("network: " in line for line in sandbox.unkept_promises)


def test_a_list_of_hosts_with_ports_and_another_server(make_kubernetes: Callable[..., Any], web: int) -> None:
    """What takes it over has both, and connections that are new go on."""
    given = {"kubernetes_claim": "hosts", "egress_allow_cidr": "127.0.0.0/8"}
    make_kubernetes(**given)
    network = aviato.NetworkOptions(egress_mode=["127.0.0.1"])
    sandbox = aviato.Sandbox.run(detached=True, ports=[8000, 3128], network=network, environment_variables=NO_PROXY)
    ask = ["python3", "-c", ASKS_OFTEN, f"http://127.0.0.1:{web}/"]
    assert sandbox.exec(ask).result().stdout == "{200000}\n"
    make_kubernetes(**given)
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.exec(ask).result().stdout == "{200000}\n"
    assert get(begin(again, SERVES)) == b"from inside: /x"
    again.stop(graceful_shutdown_seconds=0).result()
