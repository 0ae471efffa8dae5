"""Real server processes: `aviato serve` and the embedded server, their birth and their ends."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from aviato.wire.ids import new_exec_id, new_lease_id, new_sandbox_id
from tests.base_roots import share
from tests.matrices import deep

SERVE = [sys.executable, "-W", "error", "-c", "from aviato.cli.main import main; main()", "serve"]


@pytest.fixture
def state():
    with tempfile.TemporaryDirectory(prefix="aviato-test-", dir="/var/tmp") as path:
        os.chmod(path, 0o711)
        share(Path(path))
        yield Path(path)


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVIATO_")}
    home = str(Path(__file__).resolve().parents[2])
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")])), **more}


class Server:
    """One `aviato serve` process; its lines on stdout are read as they come."""

    def __init__(self, state, *flags, umask=-1, **variables):
        command = [*SERVE, "--state-dir", str(state), *flags]
        given = {"env": environment(**variables), "cwd": "/", "umask": umask}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **given)
        self.lines = []
        while not any(line.startswith("export AVIATO_BASE_URL") for line in self.lines[-1:]):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.lines.append(line.rstrip())

    def end(self, number=signal.SIGTERM):
        before = time.monotonic()
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=250)
        self.seconds = time.monotonic() - before
        return out, err


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


def call(path, method, url, body=None, connection=None):
    connection = connection or Unix(path)
    with contextlib.closing(connection):
        connection.request(method, url, None if body is None else json.dumps(body))
        response = connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data.startswith(b"{") else data


@pytest.fixture
def serve(state):
    servers = []

    def start(*flags, **variables):
        servers.append(Server(state, *flags, **variables))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.end(signal.SIGINT)
        for pipe in (server.process.stdout, server.process.stderr):
            pipe.close()


def create(path, **fields):
    status, info = call(path, "POST", "/v1/sandboxes", {"sandbox_id": new_sandbox_id(), "detached": True, **fields})
    assert status == 201, info
    status, info = call(path, "GET", f"/v1/sandboxes/{info['sandbox_id']}?wait=running")
    assert info["status"] == "running", info
    return info["sandbox_id"]


def test_sigterm_hands_over_and_sigint_ends_every_sandbox(serve, state):
    path = state / "serve" / "aviato.sock"
    first = serve()
    assert first.lines == [f"export AVIATO_BASE_URL=unix://{path}"]
    assert path.stat().st_mode & 0o777 == 0o600
    sandbox_id = create(path)
    exec_id = new_exec_id()
    body = {"exec_id": exec_id, "command": ["sh", "-c", "echo one; sleep 2; echo two"]}
    stream = Unix(path)
    stream.request("POST", f"/v1/sandboxes/{sandbox_id}/execs", json.dumps(body))
    response = stream.getresponse()
    begun = b""
    while b"one" not in begun:
        part = response.read1()
        assert part, begun
        begun += part
    _, err = first.end(signal.SIGTERM)
    assert first.process.returncode == 0 and first.seconds < 2, err
    assert "Traceback" not in err, err
    stream.close()
    assert not path.exists()
    second = serve()
    status, data = call(path, "GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}?stdout=4")
    assert status == 200 and b"two" in data and b"one" not in data and b'"returncode": 0' in data.replace(b'":0', b'": 0')
    _, err = second.end(signal.SIGINT)
    assert second.process.returncode == 0 and "Traceback" not in err, err
    assert os.listdir(state / "serve" / "sandboxes") == []
    third = serve()
    _, info = call(path, "GET", f"/v1/sandboxes/{sandbox_id}")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("terminated", "shutdown", True)
    assert third.process.poll() is None


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_whoever_starts_it_sandboxes_run_and_secrets_are_the_servers(serve, state, umask):
    serve(umask=umask)
    sandbox_id = create(state / "serve" / "aviato.sock")
    body = {"exec_id": new_exec_id(), "command": ["sh", "-c", "echo yes > f; cat f; umask"]}
    status, data = call(state / "serve" / "aviato.sock", "POST", f"/v1/sandboxes/{sandbox_id}/execs", body)
    assert status == 200 and b"yes\n" in data and b"0022\n" in data
    assert (state / "serve" / "store.db").stat().st_mode & 0o777 == 0o600
    for folder, folders, files in os.walk(state):
        if "skeletons" not in folder and "sandboxes" not in folder:
            for path in (os.path.join(folder, name) for name in (*folders, *files)):
                assert not os.lstat(path).st_mode & 0o022 or os.path.islink(path), path


def test_killed_at_any_moment_the_next_server_finds_what_lives(serve, state):
    path = state / "serve" / "aviato.sock"
    first = serve()
    sandbox_id = create(path, tags=["kept"])
    first.end(signal.SIGKILL)
    serve()
    assert call(path, "GET", "/v1/sandboxes?tag=kept")[1]["sandboxes"][0]["status"] == "running"
    status, data = call(
        path, "POST", f"/v1/sandboxes/{sandbox_id}/execs", {"exec_id": new_exec_id(), "command": ["echo", "yes"]}
    )
    assert status == 200 and b"yes" in data


def test_a_second_server_on_a_held_lock_refuses_and_names_the_pid(serve, state):
    first = serve()
    second = subprocess.run([*SERVE, "--state-dir", str(state)], capture_output=True, text=True, env=environment(), timeout=250)
    assert second.returncode != 0 and f"pid {first.process.pid}" in second.stderr and "Traceback" not in second.stderr


def test_a_port_needs_a_key_which_is_made_and_shown_once(serve, state):
    first = serve("--port", "0")
    out, _ = first.end()
    lines = [*first.lines, *out.splitlines()]
    key = next(line.partition("=")[2] for line in lines if line.startswith("export AVIATO_API_KEY="))
    second = serve("--port", "0")
    port = int(re.search(r":(\d+)$", second.lines[-1])[1])

    def health(headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/health", headers=headers)
            return connection.getresponse().status

    assert health({}) == 401 and health({"Authorization": f"Bearer {key}"}) == 200
    out, err = second.end()
    assert "AVIATO_API_KEY" not in out and key not in err
    assert key.encode() not in (state / "serve" / "store.db").read_bytes()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--egress-allow-cidr", "10.0.0.1/8"], "--egress-allow-cidr is '10.0.0.1/8': '10.0.0.1/8' is no network"),
        (["--tls-cert", "x"], "--tls-key is missing"),
        (["--tls-key", "x", "--port", "0"], "--tls-cert is missing"),
        (["--tls-cert", "/no/such/file", "--tls-key", "x", "--port", "0"], "--tls-cert '/no/such/file' cannot be read"),
        (["--tls-cert", "/dev/null", "--tls-key", "/dev/null", "--port", "0"], "are no certificate"),
        (["--tls-cert", "/dev/null", "--tls-key", "/dev/null"], "give --port too"),
        (["--auth", "ldap"], "auth"),
        (["--secrets-dir", "/no/such/directory"], "no directory"),
        (["--secrets-dir", "/usr/lib"], "sandboxes can read"),
        (["--secrets-dir", "/etc/ssl/certs"], "sandboxes can read"),
        (["--secrets-dir", "/etc/ssl/certs", "--backend", "landlock"], "sandboxes can read"),
        (["--port", "99999"], "port"),
        (
            ["--backend", "nonsense"],
            "--backend is 'nonsense': there is no such backend; there are 'docker', 'kubernetes', 'landlock', 'local', "
            "or MODULE:CLASS",
        ),
        (["--backend", "nomad"], "--backend is 'nomad': there is no such backend"),
        (["--host", "127.0.0.1"], "--host 127.0.0.1 says where to listen, but no port is given: give --port N"),
        (["--state-dir", "relative"], "--state-dir is 'relative': it must be an absolute path"),
        (["--state-dir", "/dev/null/x"], "--state-dir is '/dev/null/x': "),
        (["--state-dir", "/proc/x"], "--state-dir is '/proc/x': "),
        (["--api-key-file", "/no/such/file", "--port", "0"], "/no/such/file"),
        (["--api-key-file", "/bin/true", "--port", "0"], "--api-key-file '/bin/true' is no text in UTF-8"),
        (["--socket", "/no/such/directory/s"], "--socket '/no/such/directory/s': the server cannot listen there: No such file"),
        (["--host", "192.0.2.1", "--port", "0"], "--host 192.0.2.1 --port 0: the server cannot listen there: Cannot assign"),
        (["--host", "a..b", "--port", "0"], "--host a..b --port 0: the server cannot listen there"),
        (["--socket", "/tmp/" + 200 * "s"], "the server cannot listen there: AF_UNIX path too long"),
        (["--state-dir", ""], "--state-dir is '': it must be an absolute path"),
        (["--image", "a"], "--image is 'a': 'a' is not NAME=DIR"),
        (["--image", "a=/no/such"], "--image a=/no/such: there is no such directory"),
        (["--packages", "a=/usr", "--packages", "b=/etc/passwd"], "--packages b=/etc/passwd: there is no such directory"),
        (["--socket-fd", "99"], "--socket-fd 99: the server cannot listen there: Bad file descriptor"),
    ],
)
def test_wrong_flags_are_named(state, flags, said):
    done = subprocess.run(
        [*SERVE, "--state-dir", str(state), *flags], capture_output=True, text=True, env=environment(), timeout=250
    )
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes have its own id")
@pytest.mark.parametrize(("base", "who"), [(1, "daemon, "), *deep([(100, ""), (65_000, "nobody")])])
def test_ids_of_accounts_are_no_sandbox_s(state, base, who):
    """Whoever has the id of a sandbox's process can signal and read it, and the other way round."""
    done = subprocess.run(
        [*SERVE, "--state-dir", str(state), "--sandbox-uid-base", str(base)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=250,
        check=False,
    )
    assert f"--sandbox-uid-base {base}: {who}" in done.stderr and "name a number above" in done.stderr
    assert done.returncode != 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"AVIATO_BACKEND": "nope"}, "AVIATO_BACKEND is 'nope': there is no such backend"),
        ({"AVIATO_HOST": "127.0.0.1"}, "AVIATO_HOST 127.0.0.1 says where to listen, but no port is given"),
        ({"AVIATO_STATE_DIR": "/dev/null/x"}, "AVIATO_STATE_DIR is '/dev/null/x': "),
        ({"AVIATO_SETTINGS_FILE": "/nope.toml"}, "AVIATO_SETTINGS_FILE is '/nope.toml': the file cannot be read"),
        ({"AVIATO_API_KEY_FILE": "/nope", "AVIATO_PORT": "0"}, "AVIATO_API_KEY_FILE '/nope' cannot be read"),
        ({"AVIATO_SOCKET": "/nope/s"}, "AVIATO_SOCKET '/nope/s': the server cannot listen there"),
        ({"AVIATO_HOST": "a..b", "AVIATO_PORT": "0"}, "AVIATO_HOST a..b AVIATO_PORT 0: the server cannot listen there"),
        ({"AVIATO_SOCKET_FD": "99"}, "AVIATO_SOCKET_FD 99: the server cannot listen there"),
        ({"AVIATO_IMAGE": "a=/usr,b=/no/such"}, "AVIATO_IMAGE b=/no/such: there is no such directory"),
        ({"AVIATO_TLS_KEY": "x"}, "AVIATO_TLS_KEY needs it"),
    ],
)
def test_wrong_variables_are_named(state, variables, said):
    given = environment() | {"AVIATO_STATE_DIR": str(state)} | variables
    done = subprocess.run(SERVE, capture_output=True, text=True, env=given, timeout=250)
    assert done.returncode == 1 and said in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_socket_that_does_not_listen_is_refused(state):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        command = [*SERVE, "--state-dir", str(state), "--socket-fd", str(bound.fileno())]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(), timeout=250, pass_fds=[bound.fileno()]
        )
    assert done.returncode == 1 and "this socket does not listen" in done.stderr and "Traceback" not in done.stderr


def test_no_socket_is_left_where_another_cannot_be_had(state):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*SERVE, "--state-dir", str(state), "--socket", str(state / "s"), "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=250)
    assert done.returncode == 1 and "in use" in done.stderr and "Traceback" not in done.stderr
    assert not (state / "s").exists()


def test_what_is_named_as_the_socket_by_mistake_stays(state):
    precious, taken = state / "results.json", state / "of-another"
    precious.write_text("all of it")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(taken))
        other.listen()
        for path, why in ((precious, "it is no socket"), (taken, "another server listens there")):
            command = [*SERVE, "--state-dir", str(state), "--socket", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=250)
            assert done.returncode == 1 and why in done.stderr and "Traceback" not in done.stderr
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(taken))
    assert precious.read_text() == "all of it"


def test_keys_of_a_file_with_a_byte_order_mark_stay_valid_without_it(serve, state):
    keys = state / "keys"
    keys.write_bytes(b"\xef\xbb\xbffirst\nsecond\n")

    def health(server, key):
        port = int(re.search(r":(\d+)$", server.lines[-1])[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/health", headers={"Authorization": f"Bearer {key}"})
            return connection.getresponse().status

    for flags, said in ((["--api-key-file", str(keys)], False), ([], True)):
        server = serve("--port", "0", *flags)
        assert [health(server, key) for key in ("first", "second", "third")] == [200, 200, 401]
        out, err = server.end()
        assert "AVIATO_API_KEY" not in out and ("2 API keys of earlier starts stay valid" in err) is said


def test_idle_exit(serve, state):
    server = serve("--idle-exit", "0.5")
    connection = Unix(state / "serve" / "aviato.sock")
    connection.connect()
    time.sleep(1.2)
    assert server.process.poll() is None, "a connection keeps it"
    connection.close()
    server.process.wait(timeout=10)
    assert server.process.returncode == 0 and not (state / "serve" / "aviato.sock").exists()


class Embedded:
    """What a client does: take the lock, listen, spawn, and connect at once."""

    def __init__(self, folder, **variables):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.folder = folder
        self.lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "sock"))
            listener.listen(4096)
            command = [sys.executable, "-m", "aviato.server.embedded", "--directory", str(folder)]
            command += ["--lock-fd", str(self.lock), "--socket-fd", str(listener.fileno())]
            self.read_end, write_end = os.pipe()
            self.launcher = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end, cwd="/", start_new_session=True,
                pass_fds=(self.lock, listener.fileno()), env=environment(**variables), timeout=250, check=True,
            )  # fmt: skip
            os.close(write_end)
        os.close(self.lock)

    def health(self):
        return call(self.folder / "sock", "GET", "/v1/health")[1]


def test_the_embedded_server_is_born_free_and_goes_when_idle(state):
    server = Embedded(state / "embedded" / "KEY", AVIATO_IDLE_EXIT="0.6", AVIATO_MAX_SANDBOXES="3", AVIATO_PORT="1")
    assert os.read(server.read_end, 1) == b"", "nobody who waits for its output hangs on it"
    os.close(server.read_end)
    health = server.health()
    pid = health["pid"]
    assert health["max_sandboxes"] == 3 and health["pid"] != os.getpid()
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != os.getpid() and int(stat[3]) != os.getsid(0), "neither child nor session of ours"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert (server.folder / "lock").read_text() == f"{pid}\n"
    with open(server.folder / "lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sandbox_id = create(server.folder / "sock", detached=False, lease_id=new_lease_id())
    assert (server.folder / "sandboxes" / sandbox_id).exists()
    # The sandbox's lease is this process, which lives: only its own end lets the server go.
    call(server.folder / "sock", "DELETE", f"/v1/sandboxes/{sandbox_id}")
    leases = call(server.folder / "sock", "GET", "/v1/sandboxes?include_stopped=true")[1]["sandboxes"]
    assert leases[0]["status_reason"] == "stopped"
    os.kill(pid, signal.SIGTERM)
    wait_gone(pid)
    assert not (server.folder / "sock").exists()
    again = Embedded(server.folder, AVIATO_IDLE_EXIT="0.6", AVIATO_SETTINGS_FILE="")
    os.close(again.read_end)
    pid = again.health()["pid"]
    # It has the lease of this process again, found by its id and start; giving it back makes it idle.
    for lease_id in lease_ids(server.folder):
        call(again.folder / "sock", "DELETE", f"/v1/leases/{lease_id}")
    wait_gone(pid)
    with open(server.folder / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lease_ids(folder):
    import sqlite3

    with contextlib.closing(sqlite3.connect(folder / "store.db")) as db:
        return [row[0] for row in db.execute("SELECT lease_id FROM leases")]


def wait_gone(pid):
    """Wait for its end; whoever adopted it may take a while to reap it."""
    fd = os.pidfd_open(pid)
    try:
        assert select.select([fd], [], [], 10)[0], "the server is still there"
    finally:
        os.close(fd)


def test_help_is_quick_and_imports_no_verb():
    code = (
        "import sys; from aviato.cli.main import cli; cli(['--help'], standalone_mode=False); "
        "assert not {'aiohttp', 'pydantic', 'aviato.cli.serve'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=250)
    assert done.returncode == 0 and "serve" in done.stdout, done.stderr


HELD_UP = """
import asyncio, sys, time, uvloop
from aviato.server.backends.local.backend import LocalBackend
async def close(self):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    await asyncio.sleep(60)
LocalBackend.close = close
from aviato.cli.main import main
main()
"""


def test_whatever_holds_it_up_a_server_leaves_within_two_seconds(state):
    process = subprocess.Popen(
        [sys.executable, "-c", HELD_UP, "serve", "--state-dir", str(state)],
        stdout=subprocess.PIPE, text=True, env=environment(), cwd="/",
    )  # fmt: skip
    with process, process.stdout:
        assert process.stdout.readline().startswith("export")
        before = time.monotonic()
        process.terminate()
        assert process.wait(timeout=250) == 0 and time.monotonic() - before < 2.3


def test_the_bound_on_its_way_out_kills_no_interpreter_that_ends() -> None:
    """Its handler goes before the interpreter does; a signal in between would make a good end look like a crash."""
    program = (
        "import atexit, signal\n"
        "atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL)))\n"
        "from aviato.server import serve\n"
        "serve._leave_in_time()\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    assert said.stdout == "(0.0, 0.0)\n"
