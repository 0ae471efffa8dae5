"""The certificate of the TCP listener. What a client meets is in `test_wandb_keys.py`."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time
from contextlib import suppress

import aiohttp
import pytest

from aviato.exceptions import AviatoValidationError
from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp
from aviato.server.connections.tls import Tls, tls_of
from aviato.server.front import Front
from aviato.server.service import Service
from aviato.server.settings import ServerSettings
from tests.certificates import make_certificate

pytestmark = pytest.mark.anyio


def presented(tls):
    """The certificate that a client meets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(back, there), tls.context.wrap_bio(there, back, server_side=True)]
    for _ in range(4):
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return ssl.DER_cert_to_PEM_cert(sides[0].getpeercert(binary_form=True))


async def serving(folder, backend, tls):
    """A server on a port of its own."""
    folder.make()
    front = Front(Service(ServerSettings(), folder, backend), Guard([hash_key("key")]))
    listener = listen_tcp("127.0.0.1", 0)
    await front.open(Listeners(sockets=[listener], tls=tls))
    return front, listener.getsockname()[1]


async def status(port, cert):
    """What a client with a key is answered."""
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer key"}) as http,
        http.get(f"https://localhost:{port}/v1/health", ssl=trusting) as response,
    ):
        return response.status


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path):
    cert, key = make_certificate(tmp_path)
    locked = tmp_path / "locked.pem"
    command = ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:word", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(AviatoValidationError, match="--tls-key is encrypted"):
        tls_of(ServerSettings(port=0, tls_cert=str(cert), tls_key=str(locked)))
    assert tls_of(ServerSettings(port=0, tls_cert=str(cert), tls_key=str(key))) is not None
    assert tls_of(ServerSettings(port=0)) is None


def test_the_names_of_a_certificate_are_the_server_s(tmp_path, caplog):
    cert, key = make_certificate(tmp_path, "DNS:sandboxes.example.org,IP:10.0.0.1,DNS:*.pods.example.org")
    assert Tls(str(cert), str(key)).names() == ("sandboxes.example.org", "*.pods.example.org")
    assert not caplog.records


async def test_who_does_not_begin_tls_is_cut_off(tmp_path, folder, backend, monkeypatch):
    monkeypatch.setattr("aviato.server.connections.listening.HANDSHAKE_SECONDS", 0.3)
    cert, key = make_certificate(tmp_path)
    front, port = await serving(folder, backend, Tls(str(cert), str(key)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert await status(port, cert) == 200
    await front.close()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": faster}) for faster in (False, True)])
async def test_few_connections_that_have_not_begun_tls_are_kept(tmp_path, folder, backend, monkeypatch):
    """They are in no list of the server, and would take all of its descriptors."""
    monkeypatch.setattr("aviato.server.connections.handshakes.most", lambda: 4)
    cert, key = make_certificate(tmp_path)
    front, port = await serving(folder, backend, Tls(str(cert), str(key)))
    before = len(os.listdir("/proc/self/fd"))
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    oldest = [asyncio.create_task(reader.read()) for reader, _ in silent[:-4]]
    async with asyncio.timeout(60):
        for reading in oldest:
            with suppress(ConnectionError):
                assert await reading == b""
    assert len(os.listdir("/proc/self/fd")) <= before + 200 + 20
    newest = asyncio.create_task(silent[-1][0].read())
    assert await status(port, cert) == 200
    assert not newest.done()
    for _, writer in silent:
        writer.close()
    await asyncio.wait([newest])
    await front.close()


async def test_files_that_were_replaced_are_read_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("aviato.server.connections.tls.LOOK_SECONDS", 0.01)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    cert, key = make_certificate(tmp_path / "old")
    new_cert, new_key = make_certificate(tmp_path / "new")
    old, new = cert.read_text(), new_cert.read_text()
    tls = Tls(str(cert), str(key))
    assert presented(tls) == old
    fresh = asyncio.create_task(tls.keep_fresh(lambda _: None))
    os.replace(new_cert, cert)
    while "cannot be used" not in caplog.text:
        await asyncio.sleep(0.01)
    assert presented(tls) == old
    os.replace(new_key, key)
    while presented(tls) != new:
        await asyncio.sleep(0.01)
    caplog.clear()
    cert.unlink()
    while "cannot be used" not in caplog.text:
        await asyncio.sleep(0.01)
    assert presented(tls) == new and not fresh.done()
    fresh.cancel()


def test_a_key_that_could_not_be_read_is_read_once_it_can_be(tmp_path, monkeypatch):
    """A renewal writes the files as root and gives them to the server's user thereafter."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    cert, key = make_certificate(tmp_path / "old")
    new_cert, new_key = make_certificate(tmp_path / "new")
    new = new_cert.read_text()
    tls = Tls(str(cert), str(key))
    os.replace(new_cert, cert)
    os.replace(new_key, key)
    with monkeypatch.context() as patch:
        # Root reads everything: what the kernel tells other users is told here.
        def refuse(path, *more, **named):
            raise PermissionError(13, "Permission denied")

        patch.setattr("builtins.open", refuse)
        tls.read_again(lambda _: None)
    assert presented(tls) != new
    key.chmod(0o640)
    tls.read_again(lambda _: None)
    assert presented(tls) == new


SERVER = "import aviato.server.connections.tls as tls; tls.LOOK_SECONDS = 0.05; from aviato.cli.main import main; main()"


async def test_a_server_goes_by_the_names_of_a_renewed_certificate(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    cert, key = make_certificate(tmp_path / "old", "DNS:old.example.org,IP:127.0.0.1")
    expired = ["openssl", "x509", "-in", str(cert), "-signkey", str(key), "-days", "-1", "-out", str(cert)]
    subprocess.run(expired, check=True, capture_output=True)
    new_cert, new_key = make_certificate(tmp_path / "new", "DNS:new.example.org,IP:127.0.0.1")
    flags = ["--state-dir", str(tmp_path / "state"), "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, "serve", *flags), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        lines = [(await server.stdout.readline()).decode().strip().partition("=")[2] for _ in range(2)]
        api_key, url = lines
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http:

            async def status(host):
                async with http.get(f"{url}/v1/health", ssl=False, headers={"Host": host}) as response:
                    return response.status

            assert await status("old.example.org") == 200 and await status("new.example.org") == 401
            os.replace(new_key, key)
            os.replace(new_cert, cert)
            deadline = time.monotonic() + 60
            while await status("new.example.org") != 200:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            assert await status("old.example.org") == 401
    finally:
        server.send_signal(2)
        await server.wait()
