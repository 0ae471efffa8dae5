"""Debian's `docker-registry`, with the walls that one asks for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import make_certificate
from tests.conftest import free_port


@contextmanager
def real_registry(path: Path, *, tls: bool = False, password: bool = False) -> Iterator[str]:
    """Its host. With TLS its certificate is `cert.pem` in the directory; with a password, `user` has the password `secret`."""
    needed = ["docker-registry", "skopeo", *(["htpasswd"] if password else [])]
    for program in needed:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    host = f"localhost:{free_port()}"
    lines = ["version: 0.1", "log: {level: error}", f"storage: {{filesystem: {{rootdirectory: {path}/registry}}}}"]
    lines += ["http:", f"  addr: {host}"]
    if tls:
        cert, key = make_certificate(path)
        lines += [f"  tls: {{certificate: {cert}, key: {key}}}"]
    if password:
        said = subprocess.run(["htpasswd", "-nbB", "-C", "4", "user", "secret"], check=True, capture_output=True, text=True)
        (path / "htpasswd").write_text(said.stdout.strip())
        lines += ["auth:", f"  htpasswd: {{realm: here, path: {path}/htpasswd}}"]
    (path / "registry.yml").write_text("\n".join(lines))
    log = (path / "log").open("wb")
    process = subprocess.Popen(["docker-registry", "serve", str(path / "registry.yml")], stdout=log, stderr=log)
    try:
        _wait_for(host, process, path / "log")
        yield host
    finally:
        process.kill()
        process.wait()
        log.close()


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        try:
            socket.create_connection(("localhost", int(host.partition(":")[2])), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
