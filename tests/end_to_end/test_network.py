"""Programs inside that reach the network by the server's proxy. What stands for the internet is the machine's loopback."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import signal
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, NetworkOptions, Sandbox, SandboxDefaults
from aviato.core.client import Client
from tests.conftest import RunningServer, make_state_dir, remove, start_server

PROXIES = "import os; print({name: value for name, value in sorted(os.environ.items()) if 'proxy' in name.lower()})"
FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.reason)
    except OSError as error:
        print(type(error).__name__, error)
"""
TUNNEL = """
import http.client, os, sys
proxy = os.environ["HTTPS_PROXY"].rpartition("/")[2].partition(":")
for target in sys.argv[1:]:
    host, _, port = target.partition(":")
    connection = http.client.HTTPConnection(proxy[0], int(proxy[2]), timeout=20)
    connection.set_tunnel(host, int(port))
    try:
        connection.request("POST", "/in/tunnel", b"body" * 1000)
        print(connection.getresponse().read().decode())
    except OSError as error:
        print(error)
"""
LISTED = ["127.0.0.2", "localhost", "*.listed.example"]


class Web:
    """What stands for the internet: an HTTP server of the machine, at every address of its loopback."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.files: dict[str, bytes] = {}
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                web.requests.append(f"{self.headers['Host']} {self.path}")
                body = web.files.get(self.path, f"{self.command} {self.path} {len(data)}".encode())
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.end()


@pytest.fixture(scope="module")
def connected(_private_environment: None) -> Iterator[RunningServer]:
    """A server whose sandboxes may reach the loopback of the machine, and so the stand-in."""
    state = make_state_dir()
    running = start_server(state, egress_allow_cidr="127.0.0.0/8")
    yield running
    running.stop()
    remove(state)


@pytest.fixture
def network(connected: RunningServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    monkeypatch.setenv("AVIATO_BASE_URL", connected.url)
    return connected


def run(sandbox: Any, source: str, *arguments: str) -> list[str]:
    result = sandbox.exec(["python3", "-c", source, *arguments]).result()
    assert result.returncode == 0, result.stderr
    return str(result.stdout).splitlines()


def log_of(server: RunningServer, sandbox: Sandbox, number: int) -> list[dict[str, Any]]:
    """The requests of a sandbox on record, once there are so many."""
    path = Path(server.state_dir) / "serve" / "log" / "egress" / f"{sandbox.sandbox_id}.jsonl"
    deadline = time.monotonic() + 60
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= number:
            return [json.loads(line) for line in lines]
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)


def test_listed_hosts_are_reached_and_no_others(network: RunningServer, web: Web) -> None:
    options = NetworkOptions(egress_mode=LISTED)
    with Sandbox(network=options) as sandbox:
        sandbox.wait()
        assert sandbox.applied_egress_mode == options.egress_mode == tuple(LISTED)
        good, wrong = f"http://127.0.0.2:{web.port}/a?b=c", f"http://127.0.0.3:{web.port}/"
        said = run(sandbox, FETCH, good, wrong, "http://elsewhere.example/")
        assert said[0] == "200 GET /a?b=c 0"
        assert said[1].startswith("403 ") and "the allow-list of this sandbox does not have 127.0.0.3" in said[1]
        assert said[2].startswith("403 ") and "does not have elsewhere.example" in said[2]
        assert run(sandbox, TUNNEL, f"localhost:{web.port}")[0] == "POST /in/tunnel 4000"
        assert "403" in run(sandbox, TUNNEL, f"127.0.0.3:{web.port}")[0]
        assert web.requests == [f"127.0.0.2:{web.port} /a?b=c", f"localhost:{web.port} /in/tunnel"]
        # On record once both sides have closed it, so in no certain order.
        entries = {(entry["verdict"], entry["method"], entry["host"]): entry for entry in log_of(network, sandbox, 5)}
        assert set(entries) == {
            ("passed", "GET", "127.0.0.2"),
            ("refused", "GET", "127.0.0.3"),
            ("refused", "GET", "elsewhere.example"),
            ("passed", "CONNECT", "localhost"),
            ("refused", "CONNECT", "127.0.0.3"),
        }
        assert entries["passed", "CONNECT", "localhost"]["port"] == web.port
        assert sandbox.sandbox_id in [found.sandbox_id for found in Sandbox.list().result()]
        assert Sandbox.from_id(sandbox.sandbox_id).result().applied_egress_mode == tuple(LISTED)
    assert Sandbox.from_id(sandbox.sandbox_id).result().applied_egress_mode == tuple(LISTED)


def test_all_of_it_and_none(network: RunningServer, web: Web) -> None:
    url = f"http://127.0.0.7:{web.port}/"
    defaults = SandboxDefaults(network=NetworkOptions(egress_mode="internet"))
    with Sandbox(defaults=defaults) as sandbox:
        assert run(sandbox, FETCH, url) == ["200 GET / 0"] and sandbox.applied_egress_mode == "internet"
        variables = run(sandbox, PROXIES)[0]
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            assert f"'{name}'" in variables and f"'{name.upper()}'" in variables
        # A service of its own is reached past the proxy.
        sandbox.exec(["sh", "-c", "python3 -m http.server 8000 >/dev/null 2>&1 &"]).result()
        wait = (
            "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do sleep 0.05; done"
        )
        sandbox.exec(["sh", "-c", wait]).result()
        assert run(sandbox, FETCH, "http://localhost:8000/")[0].startswith("200 ")
        result = sandbox.exec(["sh", "-c", "echo $http_proxy"], env={"http_proxy": "mine"}).result()
        assert result.stdout == "mine\n"
    for options in (None, NetworkOptions(), NetworkOptions(egress_mode="none")):
        with Sandbox(network=options) as sandbox:
            assert run(sandbox, PROXIES) == ["{}"]
            assert "URLError" in run(sandbox, FETCH, url)[0] and sandbox.applied_egress_mode == "none"
    assert len(web.requests) == 1


@pytest.mark.anyio
async def test_the_async_forms(network: RunningServer, web: Web) -> None:
    url = f"http://127.0.0.2:{web.port}/"
    async with Sandbox(network=NetworkOptions(egress_mode=["127.0.0.2"])) as sandbox:
        assert (await sandbox.exec(["python3", "-c", FETCH, url])).stdout == "200 GET / 0\n"
        assert sandbox.applied_egress_mode == ("127.0.0.2",)
    async with AsyncClient() as client:
        made = await client.sandbox(network=NetworkOptions(egress_mode="internet"))
        async with made:
            assert (await made.exec(["python3", "-c", FETCH, url])).stdout == "200 GET / 0\n"
            assert made.info is not None and made.info.egress_mode == "internet"


def wheel() -> bytes:
    """A package of one module."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("tiny_from_a_mirror.py", "value = 42\n")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: tiny-from-a-mirror\nVersion: 1.0\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            file.writestr(f"tiny_from_a_mirror-1.0.dist-info/{name}", text)
    return made.getvalue()


def has_pip(sandbox: Sandbox) -> bool:
    return bool(sandbox.exec(["python3", "-m", "pip", "--version"]).result().returncode == 0)


def test_pip_installs_from_a_listed_mirror(network: RunningServer, web: Web) -> None:
    name = "tiny_from_a_mirror-1.0-py3-none-any.whl"
    web.files = {"/simple/tiny-from-a-mirror/": f'<a href="/{name}">{name}</a>'.encode(), f"/{name}": wheel()}
    with Sandbox(network=NetworkOptions(egress_mode=["127.0.0.2"])) as sandbox:
        if not has_pip(sandbox):
            pytest.skip("the interpreter has no pip")
        for host, status in (("127.0.0.3", 1), ("127.0.0.2", 0)):
            options = ["--retries", "0", "--index-url", f"http://{host}:{web.port}/simple", "--trusted-host", host]
            result = sandbox.exec(["python3", "-m", "pip", "install", *options, "tiny-from-a-mirror"]).result()
            assert result.returncode == status, result.stdout + result.stderr
        assert run(sandbox, "import tiny_from_a_mirror; print(tiny_from_a_mirror.value)") == ["42"]


def test_pip_installs_from_the_registry(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, where this machine reaches it; it may stand in a private network here."""
    index = pytest.importorskip("pip._internal.models.index").PyPI
    found: set[str] = set()
    try:
        for host in (index.netloc, index.file_storage_domain):
            found |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)}
            socket.create_connection((host, 443), 3).close()
    except OSError as error:
        pytest.skip(f"the registry cannot be reached: {error}")
    running = make_server(egress_allow_cidr=",".join(sorted(found)))
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    allowed = NetworkOptions(egress_mode=[f"{index.netloc}:443", f"{index.file_storage_domain}:443"])
    certificates = {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}
    with Sandbox(network=allowed, environment_variables=certificates) as sandbox:
        if not has_pip(sandbox):
            pytest.skip("the interpreter has no pip")
        result = sandbox.exec(["python3", "-m", "pip", "install", "--no-deps", "--target", "/tmp/got", "tomli"]).result()
        assert result.returncode == 0, result.stdout + result.stderr
        verdicts = {(entry["host"], entry["verdict"]) for entry in log_of(running, sandbox, 2)}
        assert verdicts == {(index.netloc, "passed"), (index.file_storage_domain, "passed")}


def test_with_ports_and_the_port_of_the_proxy_among_them(network: RunningServer, web: Web) -> None:
    options = NetworkOptions(egress_mode="internet", exposed_ports=[3128])
    with Sandbox(network=options) as sandbox:
        sandbox.exec(["sh", "-c", "python3 -m http.server 3128 >/dev/null 2>&1 &"]).result()
        sandbox.wait_for_port(3128).result()
        assert "127.0.0.1:3129" in run(sandbox, PROXIES)[0]
        assert run(sandbox, FETCH, f"http://127.0.0.2:{web.port}/") == ["200 GET / 0"]


def test_the_main_command_has_it_from_its_first_moment(network: RunningServer, web: Web) -> None:
    url = f"http://127.0.0.2:{web.port}/first"
    sandbox = Sandbox.run("python3", "-c", FETCH, url, network=NetworkOptions(egress_mode="internet"))
    sandbox.wait_until_complete().result()
    assert web.requests == [f"127.0.0.2:{web.port} /first"]


def test_a_restart_of_the_server(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks meanwhile waits for the next server."""
    state = make_state_dir()
    first = start_server(state, egress_allow_cidr="127.0.0.0/8")
    monkeypatch.setenv("AVIATO_BASE_URL", first.url)
    second = None
    try:
        with Sandbox(network=NetworkOptions(egress_mode=["127.0.0.2"], exposed_ports=[9000])) as sandbox:
            url = f"http://127.0.0.2:{web.port}/"
            assert run(sandbox, FETCH, url) == ["200 GET / 0"]
            waiting = sandbox.exec(["sh", "-c", 'echo ready; read go; exec python3 -c "$0" "$1"', FETCH, url], stdin=True)
            assert next(iter(waiting.stdout)) == "ready\n"
            assert waiting.stdin is not None
            first.stop(signal.SIGTERM)
            second = start_server(state, egress_allow_cidr="127.0.0.0/8")
            waiting.stdin.writeline("go").result()
            assert waiting.result().stdout == "ready\n200 GET / 0\n"
            assert sandbox.applied_egress_mode == ("127.0.0.2",)
            assert run(sandbox, FETCH, url) == ["200 GET / 0"]
    finally:
        for running in (first, second):
            if running is not None:
                running.stop()
        remove(state)


def test_many_at_once_and_a_flood_that_waits(network: RunningServer, web: Web) -> None:
    source = """
import socket, sys, threading, urllib.request
idle = [socket.create_connection(("127.0.0.1", 3128)) for _ in range(int(sys.argv[2]))]
said = []
def fetch():
    with urllib.request.urlopen(sys.argv[1], timeout=30) as answer:
        said.append(answer.read())
threads = [threading.Thread(target=fetch) for _ in range(20)]
for thread in threads: thread.start()
if len(idle) > 128:
    threading.Event().wait(0.5)
    print(len(said))
    for sock in idle: sock.close()
for thread in threads: thread.join()
print(len(said))
"""
    url = f"http://127.0.0.2:{web.port}/"
    with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
        assert run(sandbox, source, url, "0") == ["20"]
        assert run(sandbox, source, url, "140") == ["0", "20"]
        with Sandbox(network=NetworkOptions(egress_mode="internet")) as other:
            assert run(other, FETCH, url) == ["200 GET / 0"]


@pytest.mark.parametrize("mode", [["http://a.org"], ["a b"], [], ["*"], "all", ["1.2.3"]])
def test_a_wrong_mode_is_named(mode: Any) -> None:
    with pytest.raises(aviato.AviatoValidationError, match="egress_mode"):
        NetworkOptions(egress_mode=mode)


def test_nothing_of_it_stays(network: RunningServer, web: Web) -> None:
    def descriptors() -> list[str]:
        """All of the server's but those of clients, who keep some connections for later."""
        directory = f"/proc/{network.process.pid}"
        clients = [line.split()[6] for line in Path(directory, "net/unix").read_text().splitlines() if "/test.sock" in line]
        found = []
        for number in os.listdir(f"{directory}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"{directory}/fd/{number}"))
        return sorted(name for name in found if name.removeprefix("socket:[").removesuffix("]") not in clients)

    with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
        run(sandbox, FETCH, f"http://127.0.0.2:{web.port}/")
    before = descriptors()
    for _ in range(3):
        with Sandbox(network=NetworkOptions(egress_mode="internet")) as sandbox:
            run(sandbox, TUNNEL, f"127.0.0.2:{web.port}")
    deadline = time.monotonic() + 60
    while len(now := descriptors()) > len(before):
        assert time.monotonic() < deadline, f"{before} became {now}"
        time.sleep(0.05)


def test_a_warm_up_reaches_what_its_sandbox_may(network: RunningServer, web: Web) -> None:
    """Of a new sandbox as of one that was ready, whose log begins when somebody has it."""
    get = f"import urllib.request as r; r.urlopen('http://127.0.0.2:{web.port}/warm', timeout=20).read()"
    warmup = [["python3", "-c", get]]
    good, wrong = f"http://127.0.0.2:{web.port}/mine", f"http://127.0.0.3:{web.port}/"
    with aviato.Session() as session, session.pool(1, warmup=warmup, network=NetworkOptions(egress_mode=LISTED)) as pool:
        while pool.ready().result() < 1:
            time.sleep(0.02)
        assert web.requests == [f"127.0.0.2:{web.port} /warm"]
        claimed = pool.sandbox()
        own = "import os, socket; name = socket.gethostname(); print(name); print(os.environ['NO_PROXY'].split(',')[-1])"
        assert run(claimed, own) == [claimed.sandbox_id] * 2
        said = run(claimed, FETCH, good, wrong)
        assert said[0] == "200 GET /mine 0" and said[1].startswith("403 ")
        assert {entry["host"] for entry in log_of(network, claimed, 2)} == {"127.0.0.2", "127.0.0.3"}
        # What was warmed up where more could be reached is for nobody who may reach less.
        other = pool.sandbox(network=NetworkOptions(egress_mode=["127.0.0.2", "127.0.0.9"]))
        assert run(other, own) == [other.sandbox_id] * 2
        assert len(log_of(network, other, 1)) == 1  # Its own warm-up.
        other.reset().result()
        assert run(other, FETCH, good, wrong)[0] == "200 GET /mine 0"
    names = [path.name for path in (Path(network.state_dir) / "serve" / "log" / "egress").iterdir()]
    assert all(name.startswith("sb-") for name in names)


def test_one_that_was_ready_with_a_network_runs_at_once(network: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    poll = Client.poll

    async def counted(self: Any, sandbox_id: str, until: str) -> Any:
        asked.append(sandbox_id)
        return await poll(self, sandbox_id, until)

    monkeypatch.setattr(Client, "poll", counted)
    with aviato.Session() as session, session.pool(1, network=NetworkOptions(egress_mode="internet")) as pool:
        while pool.ready().result() < 1:
            time.sleep(0.02)
        pool.sandbox().wait()
        assert not asked
