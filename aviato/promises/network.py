"""Ways into a sandbox and out of it."""

from __future__ import annotations

import http.server
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import aviato
from aviato import NetworkOptions
from aviato.promises.declared import needs
from aviato.server.backends.capabilities import Capability

SERVES = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from inside: " + self.path.encode())
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
ASKS = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except urllib.error.HTTPError as error:
    print("HTTP", error.code)
except OSError as error:
    print("none")
"""
PAIR = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(listener.getsockname()) as one:
    two, _ = listener.accept()
    one.sendall(b"said")
    print(two.recv(4).decode())
"""


@contextmanager
def answering(body: bytes) -> Iterator[int]:
    """A web server on this machine's loopback that answers with this; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.05,))
        thread.start()
        yield web.server_address[1]
        web.shutdown()
        thread.join()


@pytest.fixture
def outside() -> Iterator[int]:
    """The port of a web server on this machine's loopback."""
    with answering(b"from outside") as port:
        yield port


@needs(Capability.LOCAL_SOCKETS)
def test_programs_inside_reach_each_other(sandbox: aviato.Sandbox) -> None:
    """Programs of one sandbox can connect to each other by its own loopback."""
    assert sandbox.exec(["python3", "-c", PAIR]).result().stdout == "said\n"


@needs(Capability.PORTS)
def test_a_port(session: aviato.Session) -> None:
    """`ports`: what listens inside is reached at the URL of `service_urls`; it is told before anything listens."""
    sandbox = session.sandbox(ports=[8000]).wait()
    assert sandbox.exposed_ports == (8000,) and sandbox.service_urls[8000].endswith(sandbox.service_address or "?")
    assert sandbox.applied_ingress_mode == "public"
    sandbox.exec(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 &', SERVES], check=True).result()
    url = sandbox.wait_for_port(8000).result()
    for path in ("/a", "/b"):
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=10) as answer:
            assert answer.read() == f"from inside: {path}".encode()


@needs(Capability.PORTS)
def test_ports_are_apart(session: aviato.Session) -> None:
    """The same port of two sandboxes is two addresses."""
    first, second = session.sandbox(ports=[8000]).wait(), session.sandbox(ports=[8000]).wait()
    assert first.service_address != second.service_address


def test_no_way_out(sandbox: aviato.Sandbox, outside: int) -> None:
    """Egress is `none` unless it is asked for, and said so."""
    assert sandbox.exec(["python3", "-c", ASKS, f"http://127.0.0.1:{outside}/"]).result().stdout == "none\n"
    assert sandbox.applied_egress_mode == "none"


@needs(Capability.EGRESS)
def test_a_list_of_hosts(session: aviato.Session) -> None:
    """With a list of host names the server's proxy refuses every other one; the variables for it are set inside."""
    sandbox = session.sandbox(network=NetworkOptions(egress_mode=["listed.example"]))
    assert sandbox.exec(["python3", "-c", ASKS, "http://other.example/"]).result().stdout == "HTTP 403\n"
    assert "listed.example" in str(sandbox.applied_egress_mode)


@needs(Capability.EGRESS)
def test_private_addresses(session: aviato.Session, outside: int) -> None:
    """Addresses of the machine and of private networks are refused, listed or not; with `internet` the network may do that."""
    own = {"NO_PROXY": "", "no_proxy": ""}
    for mode, answers in (("internet", ("HTTP 403\n", "none\n")), (["127.0.0.1"], ("HTTP 403\n",))):
        sandbox = session.sandbox(network=NetworkOptions(egress_mode=mode))
        done = sandbox.exec(["python3", "-c", ASKS, f"http://127.0.0.1:{outside}/"], env=own).result()
        assert done.stdout in answers, mode
