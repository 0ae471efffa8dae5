"""A container engine for tests: the one of `DOCKER_HOST`, or a private dockerd, and images that come from no registry."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from tests.images import debian

BUSYBOX = Path("/bin/busybox")
APPLETS = (
    *(
        "awk",
        "base64",
        "cat",
        "chmod",
        "chown",
        "cp",
        "cut",
        "dd",
        "df",
        "echo",
        "env",
        "expr",
        "false",
        "find",
        "grep",
        "head",
    ),
    *("hostname", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mount", "mv", "nproc", "od", "printf", "ps", "pwd", "readlink"),
    *("rm", "rmdir", "sed", "seq", "sh", "sleep", "sort", "stat", "stty", "tail", "tee", "test", "timeout", "touch", "tr"),
    *("true", "tty", "ulimit", "umask", "umount", "uname", "unshare", "wc", "xargs", "yes"),
)
ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n"
SECONDS = 30.0


class NoEngineError(Exception):
    """Why there is none."""


class Engine:
    """One engine, asked by the standard library.

    Args:
        address: as `DOCKER_HOST` has it.
        pid: of a dockerd that is ours.
    """

    def __init__(self, address: str, pid: int | None = None) -> None:
        self.address = address
        self.pid = pid

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, bytes]:
        """Status and body of an answer."""
        connection = _Connection(self.address.removeprefix("unix://"))
        try:
            connection.request(method, path, body, {"Content-Type": kind})
            answer: HTTPResponse = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def containers(self, **labels: str) -> list[dict[str, Any]]:
        """Those there are, running or not."""
        filters = urllib.parse.quote(json.dumps({"label": [f"{name}={value}" for name, value in labels.items()]}))
        found: list[dict[str, Any]] = json.loads(self.ask("GET", f"/containers/json?all=1&filters={filters}")[1])
        return found

    def inspect(self, name: str) -> dict[str, Any]:
        """What it says of a container."""
        status, text = self.ask("GET", f"/containers/{name}/json")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    def kill(self, name: str) -> None:
        """A container, from outside."""
        assert self.ask("POST", f"/containers/{name}/kill")[0] in (200, 204)

    def has(self, image: str) -> bool:
        """Whether it has an image."""
        return self.ask("GET", f"/images/{image}/json")[0] == 200

    def make_image(self, name: str, tar: bytes, *changes: str) -> None:
        """An image of a root, if the engine has none of that name."""
        if self.has(name):
            return
        # Docker takes the tag for itself as well, and podman only so.
        asked = urllib.parse.urlencode([("fromSrc", "-"), ("repo", name), *(("changes", one) for one in changes)])
        status, said = self.ask("POST", f"/images/create?{asked}", tar, "application/x-tar")
        assert status == 200 and self.has(name), said

    def tag(self, image: str, name: str) -> None:
        """Another name for an image."""
        repository, tag = name.split(":")
        status, said = self.ask("POST", f"/images/{image}/tag?{urllib.parse.urlencode({'repo': repository, 'tag': tag})}")
        assert status == 201, said


class _Connection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        """By the engine's socket."""
        import socket

        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@contextmanager
def an_engine(directory: Path) -> Iterator[Engine]:
    """The one of `DOCKER_HOST`, or a dockerd of our own below a directory, with no network and no firewall's rules.

    Raises:
        NoEngineError: there is none, and none can be started.
    """
    if address := os.environ.get("DOCKER_HOST"):
        if not address.startswith("unix://"):
            raise NoEngineError(f"DOCKER_HOST is {address}, and the backend needs an engine of this machine")
        yield Engine(address)
        return
    check_starts()
    with start_dockerd(directory) as engine:
        yield engine


def check_starts() -> None:
    """That an engine of our own can be started here.

    Raises:
        NoEngineError: why not.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise NoEngineError("each worker would start an engine of its own: set DOCKER_HOST, or leave out -n")
    if shutil.which("dockerd") is None:
        raise NoEngineError("neither DOCKER_HOST nor dockerd is there: apt install docker.io")
    if os.geteuid() != 0:
        raise NoEngineError("DOCKER_HOST is not set, and only root starts a dockerd")


@contextmanager
def start_dockerd(directory: Path) -> Iterator[Engine]:
    """A dockerd of our own; ended with the context, with its mounts."""
    command = [
        "dockerd",
        "--data-root",
        f"{directory}/data",
        "--exec-root",
        f"{directory}/exec",
        "--pidfile",
        f"{directory}/pid",
    ]
    command += [
        "-H",
        f"unix://{directory}/sock",
        "--exec-opt",
        "native.cgroupdriver=cgroupfs",
        "--iptables=false",
        "--bridge=none",
    ]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    engine = Engine(f"unix://{directory}/sock", process.pid)
    try:
        deadline = time.monotonic() + SECONDS
        while not _answers(engine):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (directory / "log").read_text()[-500:]
                raise NoEngineError(f"dockerd does not start here: {said}")
            time.sleep(0.05)
        yield engine
    finally:
        process.send_signal(signal.SIGCONT)  # Of a test that failed while it stood still.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            subprocess.run(["umount", "--lazy", f"{directory}/data"], capture_output=True, check=False)


def _answers(engine: Engine) -> bool:
    try:
        return engine.ask("GET", "/_ping")[0] == 200
    except OSError:
        return False


def busybox_root() -> bytes:
    """A tar of a root with busybox alone.

    Raises:
        NoEngineError: it is not installed.
    """
    if not BUSYBOX.exists():
        raise NoEngineError("busybox is not there: apt install busybox-static")
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, mode in (
            ("bin", 0o755),
            ("etc", 0o755),
            ("root", 0o700),
            ("home", 0o755),
            ("home/bob", 0o755),
            ("tmp", 0o1777),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, content, mode in (("bin/busybox", BUSYBOX.read_bytes(), 0o755), ("etc/passwd", ACCOUNTS.encode(), 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return written.getvalue()


def debian_root() -> bytes:
    """A tar of a Debian with Python.

    Raises:
        debian.NoImageError: this machine cannot make one.
    """
    layout = debian.layout()

    def blob(digest: str) -> bytes:
        return (layout / "blobs" / digest.replace(":", "/")).read_bytes()

    manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]))
    return blob(manifest["layers"][0]["digest"])
