"""What stands for the internet: a server of the machine's loopback, with a CA of its own, and sandboxes that reach it."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import ssl
import subprocess
import tarfile
import threading
import zipfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aviato import NetworkOptions, Sandbox

HOST = "127.0.0.2"
CA = "/tmp/ca.pem"
COMMANDS = f"""
openssl req -x509 -newkey rsa:2048 -nodes -subj '/CN=own CA' -keyout ca.key -out ca.pem -days 2
openssl req -newkey rsa:2048 -nodes -subj /CN={HOST} -keyout key.pem -out req.pem
printf 'subjectAltName=IP:{HOST},DNS:localhost' > ext
openssl x509 -req -in req.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile ext -out cert.pem
mkdir repo; echo content > repo/file
"""
REPOSITORY = """
git init -q; git add .; git -c user.name=a -c user.email=a@b.c commit -q -m first; git update-server-info
"""


GO_MODULE = "module own.example/x\n\ngo 1.18\n"
PARENT = """<project><modelVersion>4.0.0</modelVersion>
<groupId>own</groupId><artifactId>parent</artifactId><version>1</version><packaging>pom</packaging>
</project>
"""


class Internet:
    """A server for files by http and one by https.

    Args:
        directory: empty; it serves what is in it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        subprocess.run(["bash", "-ec", COMMANDS], cwd=directory, check=True, capture_output=True)
        self._put_packages()
        handler = type("Handler", (_Handler,), {"directory": str(directory)})
        self.servers = [http.server.ThreadingHTTPServer((HOST, 0), handler) for _ in range(2)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        self.servers[1].socket = context.wrap_socket(self.servers[1].socket, server_side=True, do_handshake_on_connect=False)
        self.http, self.https = (
            f"{scheme}://{HOST}:{server.server_address[1]}"
            for scheme, server in zip(("http", "https"), self.servers, strict=True)
        )
        self.threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in self.servers]
        for thread in self.threads:
            thread.start()
        self._put_indexes()

    def end(self) -> None:
        """Serve no more."""
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def _write(self, path: str, content: str | bytes) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_bytes(content if isinstance(content, bytes) else content.encode())

    def _put_packages(self) -> None:
        wheel, tgz = io.BytesIO(), io.BytesIO()
        with zipfile.ZipFile(wheel, "w") as made:
            made.writestr("own_x.py", "print('from the index')\n")
            made.writestr("own_x-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: own-x\nVersion: 1.0\n")
            made.writestr("own_x-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            made.writestr("own_x-1.0.dist-info/RECORD", "")
        with tarfile.open(fileobj=tgz, mode="w:gz") as packed:
            for name, text in (("package.json", '{"name":"own-x","version":"1.0.0"}'), ("index.js", "console.log('from npm')")):
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text.encode()))
        self._write("simple/own-x/own_x-1.0-py3-none-any.whl", wheel.getvalue())
        self._write("simple/own-x/index.html", '<a href="own_x-1.0-py3-none-any.whl">own_x-1.0-py3-none-any.whl</a>')
        self._write("npm/own-x.tgz", tgz.getvalue())
        module = io.BytesIO()
        with zipfile.ZipFile(module, "w") as made:
            made.writestr("own.example/x@v1.0.0/go.mod", GO_MODULE)
            made.writestr("own.example/x@v1.0.0/x.go", 'package x\n\nconst Text = "from the module proxy"\n')
        versions = {"list": "v1.0.0\n", "v1.0.0.info": '{"Version": "v1.0.0"}', "v1.0.0.mod": GO_MODULE}
        for name, content in {**versions, "v1.0.0.zip": module.getvalue()}.items():
            self._write(f"go/own.example/x/@v/{name}", content)
        self._write("maven/own/parent/1/parent-1.pom", PARENT)
        self._write("plain", "plain\n")
        self._write("debian/Packages", "")

    def _put_indexes(self) -> None:
        shasum = hashlib.sha1((self.directory / "npm/own-x.tgz").read_bytes(), usedforsecurity=False).hexdigest()
        version = {
            "name": "own-x",
            "version": "1.0.0",
            "dist": {"tarball": f"{self.https}/npm/own-x.tgz", "shasum": shasum},
        }
        self._write(
            "registry/own-x", json.dumps({"name": "own-x", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
        )
        crate = io.BytesIO()
        with tarfile.open(fileobj=crate, mode="w:gz") as packed:
            for name, text in (
                ("Cargo.toml", '[package]\nname = "own-x"\nversion = "1.0.0"\nedition = "2021"\n'),
                ("src/lib.rs", "pub fn it() {}\n"),
            ):
                entry = tarfile.TarInfo(f"own-x-1.0.0/{name}")
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text.encode()))
        self._write("crates/own-x/1.0.0/download", crate.getvalue())
        self._write("index/config.json", json.dumps({"dl": f"{self.https}/crates"}))
        line = {"name": "own-x", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
        self._write("index/ow/n-/own-x", json.dumps(line | {"cksum": hashlib.sha256(crate.getvalue()).hexdigest()}) + "\n")
        for name in ("repo", "index"):
            subprocess.run(["bash", "-ec", REPOSITORY], cwd=self.directory / name, check=True, capture_output=True)


class _Handler(http.server.SimpleHTTPRequestHandler):
    directory: str

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=self.directory)

    def log_message(self, *args: Any) -> None:
        pass


@dataclass
class Result:
    """As `boxes.Result`."""

    returncode: int
    stdout: str
    stderr: str


class Connected:
    """Sandboxes of a server that has a way out, made as `boxes` makes its own.

    Args:
        internet: what they reach.
    """

    def __init__(self, internet: Internet) -> None:
        self.variables = {"HTTP": internet.http, "HTTPS": internet.https, "CA": CA}
        self.authority = (internet.directory / "ca.pem").read_bytes()

    @asynccontextmanager
    async def make_box(self, backend: object, *, packages: str | None = None, limits: Any = None) -> Any:
        """One of them."""
        more = {} if packages is None else {"packages": packages}
        network = NetworkOptions(egress_mode=[HOST])
        async with Sandbox(network=network, environment_variables=self.variables, **more) as sandbox:
            await sandbox.write_file(CA, self.authority)
            yield _Box(sandbox)


class _Box:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def start(self, *command: str, timeout: float) -> tuple[Any]:
        return (self._sandbox.exec(list(command), timeout_seconds=timeout),)

    async def finish(self, running: Any) -> Result:
        done = await running
        return Result(done.returncode, done.stdout, done.stderr)
