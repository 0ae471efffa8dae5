"""Attacks on secrets: by another sandbox, through the API, and by whoever reads what a server and a client leave behind."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxDefaults, Secret
from tests.conftest import RunningServer, embedded_pids, make_state_dir, remove, start_server, stop_embedded

pytestmark = pytest.mark.attack

NEEDLE = os.urandom(12).hex()
"""In every secret of these tests, and nowhere else."""
BY_ENV, BY_FILE = f"env-{NEEDLE}", f"file-{NEEDLE}"
MARK = f"mark-{os.urandom(6).hex()}"
"""Public: what finds this would have found a secret there."""
SECRETS = [Secret(store="env", name="BY_ENV"), Secret(store="file", name="by-file", env_var="BY_FILE")]
DIGESTS = "import hashlib, os\nfor name in ('BY_ENV', 'BY_FILE'): print(hashlib.sha256(os.environ[name].encode()).hexdigest())"
RIGHT = "".join(f"{hashlib.sha256(value.encode()).hexdigest()}\n" for value in (BY_ENV, BY_FILE))

LOOK = """
import os, socket, sys
wanted, found = [part.encode() for part in sys.argv[1:]], {}
def look(path):
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        data = os.read(handle, 1 << 20)
    except OSError:
        data = b""
    os.close(handle)
    for part in wanted:
        if part in data:
            found.setdefault(part.decode(), []).append(path)
me = str(os.getpid())
for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders[:] = [name for name in folders if name not in ("usr", "sys", "bin", "lib", "lib64", "sbin")]
    if folder == "/proc":
        folders[:] = [name for name in folders if name.isdigit() and name != me]
    for name in files:
        path = os.path.join(folder, name)
        if not folder.startswith("/proc") or name in ("environ", "cmdline", "mem", "auxv", "comm", "stack", "mountinfo"):
            look(path)
print(sorted(found))
"""


@dataclass
class Place:
    server: RunningServer
    secrets_dir: Path


@pytest.fixture
def place(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "by-file").write_text(f"{BY_FILE}\n")
    server = make_server(environment={"AVIATO_SECRET_BY_ENV": BY_ENV}, secrets_dir=directory)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return Place(server, directory)


@pytest.fixture
def owner(place: Place) -> Iterator[Sandbox]:
    with Sandbox(secrets=SECRETS, tags=[MARK], command="sleep", args=["600"]) as sandbox:
        assert sandbox.exec(["python", "-c", DIGESTS]).result().stdout == RIGHT
        yield sandbox


def everything_below(path: Path) -> bytes:
    """All that files hold, those of sandboxes and logs included."""
    return b"\n".join(one.read_bytes() for one in path.rglob("*") if one.is_file() and not one.is_symlink())


def look(sandbox: Sandbox) -> str:
    return sandbox.exec(["python", "-c", LOOK, NEEDLE, MARK]).result().stdout


def test_another_sandbox(place: Place, owner: Sandbox) -> None:
    """All files and processes that it sees. It would find what its own commands have."""
    with Sandbox() as other:
        assert look(other) == "[]\n"
        public = other.exec(["sleep", "60"], env={"PUBLIC": MARK})
        assert look(other) == f"['{MARK}']\n"
        public.cancel()
        read = "import sys\nprint([open(path).read() for path in sys.argv[1:]])"
        for path in (
            place.secrets_dir / "by-file",
            f"/proc/{place.server.pid}/environ",
            f"{place.server.state_dir}/serve/store.db",
        ):
            tried = other.exec(["python", "-c", read, str(path)]).result()
            assert tried.returncode == 1 and "FileNotFoundError" in tried.stderr, path


def test_its_own_sandbox_has_them_in_the_environment_alone(place: Place, owner: Sandbox) -> None:
    """In no file, and not in what process 1 shows. Processes that have it are there: the main command."""
    where = LOOK.replace(
        "print(sorted(found))", "print(sorted({path.split('/')[1] for path in found.get(wanted[0].decode(), [])}))"
    )
    assert owner.exec(["python", "-c", where, NEEDLE, MARK]).result().stdout == "['proc']\n"
    tried = owner.exec(["cat", "/proc/1/environ"]).result()
    assert NEEDLE not in tried.stdout


def raw(server: RunningServer, method: str, path: str, body: Any = None) -> str:
    """A request by hand, and all that comes back."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(server.url.removeprefix("unix://"))
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_the_api_and_its_errors(place: Place, owner: Sandbox) -> None:
    one = f"/v1/sandboxes/{owner.sandbox_id}"
    listed = raw(place.server, "GET", "/v1/sandboxes?include_stopped=true")
    assert MARK in listed
    answers = [listed, *(raw(place.server, "GET", path) for path in (one, f"{one}/logs", "/v1/health", "/v1/openapi.json"))]
    reference = {"store": "env", "name": "BY_ENV", "env_var": "T"}
    body = {"sandbox_id": owner.sandbox_id, "detached": True}
    bodies: list[Any] = [
        {**body, "secrets": [reference]},
        {**body, "secrets": [reference], "secret_values": {"BY_ENV": BY_ENV}},
        {**body, "sandbox_id": "sb-" + "0" * 26, "secrets": [reference], "secret_values": {"BY_ENV": BY_ENV}},
        {**body, "secrets": [reference], "secret_values": {"BY_ENV": [BY_ENV]}},
        {**body, "secrets": [reference], "secret_values": [BY_ENV]},
        {**body, "secrets": [reference], "secret_values": BY_ENV},
        {**body, "secrets": [{**reference, "value": BY_ENV}]},
        {**body, "secrets": [{**reference, "name": f"{BY_ENV}/"}]},
        {**body, "secrets": [{**reference, "env_var": f"{BY_ENV}="}]},
        {**body, "secrets": [reference, {**reference, "name": "MISSING"}]},
        f'{{"secret_values": {{"A": "{BY_ENV}" "'.encode(),
        f'{{"secret_values": {{"A": "{BY_ENV}\\ud800"}}}}'.encode(),
    ]
    sent = [raw(place.server, "POST", "/v1/sandboxes", body) for body in bodies]
    assert all(answer.startswith(("HTTP/1.1 4", "HTTP/1.1 5")) and '"error"' in answer for answer in sent), sent
    assert NEEDLE not in "".join([*answers, *sent])


def test_what_the_server_keeps(place: Place, owner: Sandbox) -> None:
    """Store, write-ahead log, output, sandboxes' directories and its own log: while it runs, and when it was killed."""
    state = Path(place.server.state_dir)
    with pytest.raises(aviato.AviatoValidationError):
        Sandbox(secrets=[*SECRETS, Secret(store="file", name="missing", env_var="M")]).start().result()
    with pytest.raises(aviato.SandboxImageError):
        Sandbox(secrets=SECRETS, container_image="dir:nothing").start().result()
    for sig in (None, signal.SIGKILL):
        if sig is not None:
            place.server.stop(sig)
        kept = everything_below(state) + place.server.log.read_bytes()
        assert MARK.encode() in kept and NEEDLE.encode() not in kept
    again = start_server(state.parent, environment={"AVIATO_SECRET_BY_ENV": BY_ENV}, secrets_dir=place.secrets_dir)
    place.server.pid, place.server.process = again.pid, again.process


def processes_of(server: RunningServer) -> list[int]:
    """Those that it started, and theirs."""
    parents = {}
    for name in os.listdir("/proc"):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    found = {server.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {server.pid})


def test_other_processes_of_the_server(place: Place, owner: Sandbox) -> None:
    """Its zygote and the process 1s, by what they were started with. Commands of the sandbox itself have it."""
    limits = Path(f"/proc/{place.server.pid}/limits").read_text()
    assert re.search(r"Max core file size +0 ", limits), limits
    own = Path(f"/proc/{place.server.pid}/environ").read_bytes()
    assert b"AVIATO_SECRET_BY_ENV=" in own and NEEDLE.encode() not in own
    seen = 0
    for pid in processes_of(place.server):
        try:
            data = Path(f"/proc/{pid}/cmdline").read_bytes()
            data += Path(f"/proc/{pid}/environ").read_bytes() if b"sleep" not in data else b""
        except OSError:
            continue
        seen += 1
        assert NEEDLE.encode() not in data, pid
    assert seen


def test_what_a_client_shows(place: Place, owner: Sandbox, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    defaults = SandboxDefaults(secrets=SECRETS)
    made = Sandbox(defaults=defaults)
    errors = []
    for wrong in ({"container_image": "dir:nothing"}, {"ports": [1], "resources": {"memory": "900Ti"}, "strict_limits": True}):
        broken = Sandbox(defaults=defaults, **wrong)  # type: ignore[arg-type]
        errors.append(broken.start().exception())
        broken.stop().result()
    failed = owner.exec(["sh", "-c", "exit 3"], check=True).exception()
    [listed] = Sandbox.list(tags=[MARK]).result()
    with aviato.Session(defaults=defaults) as session:
        session.sandbox().exec(["true"]).result()
        metrics = session.get_metrics()
    shown = [metrics, defaults, SECRETS, made, owner, vars(owner._state), listed, vars(listed._state.last_seen), errors, failed]
    assert MARK in repr(shown)
    pickled = [pickle.dumps(one) for one in (made, owner, defaults, SECRETS, errors, failed)]
    assert any(MARK.encode() in data for data in pickled)
    for data in (repr(shown).encode(), caplog.text.encode(), *pickled):
        assert NEEDLE.encode() not in data


def test_the_command_line(place: Place, owner: Sandbox) -> None:
    environment = {**os.environ, "AVIATO_SECRET_BY_ENV": BY_ENV, "AVIATO_SECRETS_DIR": str(place.secrets_dir)}
    for arguments in (["doctor", "--plan"], ["doctor", "--json"], ["ls"]):
        command = [sys.executable, "-m", "aviato", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0 and done.stdout, done.stderr
        assert NEEDLE not in done.stdout + done.stderr


def test_the_embedded_server_has_values_in_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state_dir()
    source = f"""
import aviato, logging, os, pickle, sys, traceback
logging.basicConfig(level=logging.DEBUG)
secrets = [aviato.Secret(store="env", name="BY_ENV")]
first = aviato.Sandbox(secrets=secrets, tags=[{MARK!r}]).wait()
second = aviato.Sandbox(secrets=secrets)
second.start().result()
try:
    aviato.Sandbox(secrets=secrets, container_image="dir:nothing").start().result()
except aviato.AviatoError as error:
    failed = error
shown = repr([first, second, vars(first._state), failed]).encode() + pickle.dumps([first, second, failed])
shown += "".join(traceback.format_exception(failed)).encode()
assert {MARK!r}.encode() in shown and os.environ["AVIATO_SECRET_BY_ENV"].encode() not in shown
print(len(first.exec(["sh", "-c", "echo $BY_ENV"]).result().stdout), flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "AVIATO_STATE_DIR": str(state), "AVIATO_SECRET_BY_ENV": BY_ENV, "AVIATO_MAX_SANDBOXES": "1"}
    command = [sys.executable, "-c", source]
    try:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": (state / "stderr").open("w")}
        with pipes["stderr"], subprocess.Popen(command, env=environment, **pipes, text=True) as client:
            assert client.stdout is not None and client.stdin is not None
            assert client.stdout.readline() == f"{len(BY_ENV) + 1}\n"
            [pid] = embedded_pids(state)
            kept = everything_below(state)
            assert MARK.encode() in kept and NEEDLE.encode() not in kept
            for name in ("environ", "cmdline"):
                assert NEEDLE.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            client.stdin.close()
    finally:
        stop_embedded(state)
        remove(state)
