"""`ADD` of URLs: what becomes of the file, when it is fetched again, and what goes wrong."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aviato import AviatoValidationError, Image, SandboxImageError, Session
from aviato.building.build import BUILDING
from aviato.transport import downloads
from aviato.transport.downloads import DownloadError, _Places

pytestmark = pytest.mark.usefixtures("served")
CONTENT = b"content\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
TIME = "Thu, 01 Jan 2015 00:00:00 GMT"


class Web:
    """Files by their paths, and how often each was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {"/d/file.txt": CONTENT, "/big": bytes(3000), "/x%20y": b"xy\n"}
        self.onward = {
            "/on": "/d/file.txt",
            "/round": "/round",
            "/ftp": "ftp://127.0.0.1/x",
            "/cloud": "http://169.254.169.254/x",
        }
        self.asked: list[str] = []
        self.release = threading.Event()


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            if self.path in found.onward:
                self.send_response(302)
                self.send_header("Location", found.onward[self.path])
                self.end_headers()
            elif self.path in ("/stall", "/endless"):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(bytes(100))
                if self.path == "/stall":
                    found.release.wait(20)
                while self.path == "/endless" and not found.release.is_set():
                    try:
                        self.wfile.write(bytes(1000))
                    except OSError:
                        return
            elif self.path in found.files:
                self.send_response(200)
                self.send_header("Content-Length", str(len(found.files[self.path])))
                self.send_header("Last-Modified", TIME)
                self.end_headers()
                self.wfile.write(found.files[self.path])
            else:
                self.send_error(503 if self.path == "/busy" else 404)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    found.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(downloads, "BACKOFF_SECONDS", 0.01)

    def image(text: str, **arguments: str) -> Image:
        (tmp_path / "Dockerfile").write_text(f"FROM host\n{text}")
        return Image.from_dockerfile(tmp_path / "Dockerfile", build_args=arguments)

    return image


def test_what_becomes_of_it(session: Session, web: Web, build: Any) -> None:
    text = f"""ARG WHERE
ADD $WHERE/d/file.txt $WHERE/x%20y /out/
ADD {web.url}/on /out/renamed
ADD --chmod=755 --checksum=sha256:{DIGEST} {web.url}/d/file.txt /out/checked"""
    with session.sandbox(container_image=build(text, WHERE=web.url)) as sandbox:
        command = 'for f in /out/*; do stat -c "%n %a %u %Y" "$f"; cat "$f"; done'
        found = sandbox.exec(["sh", "-c", command], check=True).result().stdout
    lines = [f"/out/{name} {mode} 0 1420070400\n{said}\n" for name, mode, said in (
        ("checked", 755, "content"), ("file.txt", 600, "content"), ("renamed", 600, "content"), ("x y", 600, "xy")
    )]  # fmt: skip
    assert found == "".join(lines)


def test_when_it_is_fetched_again(web: Web, build: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="aviato")

    def made(text: str) -> int:
        caplog.clear()
        build(text).build().result()
        return sum(record.getMessage().startswith(BUILDING) for record in caplog.records)

    text = f"ADD {web.url}/d/file.txt /srv/again"
    assert made(text) == 1 and web.asked == ["/d/file.txt"]
    assert made(text) == 0 and len(web.asked) == 2
    web.files["/d/file.txt"] = b"changed\n"
    assert made(text) == 1
    web.files["/d/file.txt"] = CONTENT
    text = text.replace("ADD", f"ADD --checksum=sha256:{DIGEST}")
    assert made(text) == 0 and len(web.asked) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}/none", "404"),
        ("{}/busy", "503"),
        ("{}/big", "larger than 2000 bytes"),
        ("{}/endless", "larger than 2000 bytes"),
        ("{}/stall", "silent for 0.5 seconds"),
        ("{}/round", "sends on more than 10 times"),
        ("{}/ftp", "a URL of ftp"),
        ("{}/cloud", "link-local"),
        ("http://[fe80::1]/x", "link-local"),
        ("http://127.0.0.1:1/x", "cannot be fetched"),
        ("http://no-such-host.invalid/x", "cannot be fetched"),
        ("http://[/x", "Invalid|no URL"),
        ("--checksum=sha256:" + "0" * 64 + " {}/d/file.txt", f"has the digest sha256:{DIGEST}"),
    ],
)
def test_what_fails(web: Web, build: Any, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 2000)
    monkeypatch.setattr(downloads, "STALL_SECONDS", 0.5)
    with pytest.raises(SandboxImageError, match=f"Dockerfile:3: ADD .*({message})") as caught:
        build(f"ENV A=b\nADD {text.format(web.url)} /srv/f").build().result()
    assert caught.value.reason == "build_failed" and caught.value.is_infrastructure


def test_one_that_takes_too_long(web: Web, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_SECONDS", 0.3)
    with pytest.raises(SandboxImageError, match=r"Dockerfile:2: ADD .*had not come whole after 0.3 seconds"):
        build(f"ADD {web.url}/endless /srv/f").build().result()


def test_what_is_known_before_it_is_fetched(web: Web, build: Any) -> None:
    for text, message in (
        (f"ADD {web.url} /srv/", "no name"),
        (f"ADD {web.url}/a/.. /srv/", "no name"),
        (f"ARG U={web.url}/r.git\nADD $U /srv/", "git repository"),
        (f"ADD --checksum=sha256:{DIGEST} {web.url}/a {web.url}/b /srv/", "of one URL"),
        (f"ADD --checksum=sha256:{DIGEST} Dockerfile /srv/", "of one URL"),
        ("ARG C=x\nADD --checksum=$C http://a/b /srv/", "sha256"),
    ):
        with pytest.raises((SandboxImageError, AviatoValidationError), match=f"Dockerfile:[23]: .*{message}"):
            build(text).build().result()
    assert web.asked == []


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1", "fd00::1"])
def test_nobody_public_sends_on_to_this_network(address: str) -> None:
    places = _Places()
    places.take(["93.184.215.14"])
    places.go_on()
    places.take(["1.1.1.1"])
    with pytest.raises(OSError, match="public"):
        places.take(["1.1.1.1", address])
    own = _Places()
    own.take([address])
    own.go_on()
    own.take(["1.1.1.1"])
    own.take([address])


def test_errors_say_whether_they_may_pass() -> None:
    assert isinstance(DownloadError("x"), ValueError) and not DownloadError("x").may_pass
