"""Where the server finds secrets, what it refuses, and that it keeps none."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.server.configured_backend import configured_backend
from aviato.server.service import sandboxes
from aviato.server.service.secrets import LARGEST_BYTES, LARGEST_TOTAL_BYTES, Secrets, take_variables
from aviato.server.settings import ServerSettings
from aviato.server.state_dir import StateDirectory
from aviato.wire.ids import new_sandbox_id
from aviato.wire.sandboxes import CreateSandbox, SecretReference

pytestmark = pytest.mark.anyio

VALUE = "needle-5b1e"


def refer(name, store="env", env_var="TOKEN"):
    return {"store": store, "name": name, "env_var": env_var}


async def find(secrets, name, store="file", given=None):
    return await secrets.find([SecretReference(**refer(name, store))], given or {})


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "secrets"
    path.mkdir()
    return path


def test_they_are_taken_out_of_the_environment():
    environment = {"AVIATO_SECRET_A": "1", "AVIATO_SECRETS_DIR": "/s", "SECRET": "2"}
    assert take_variables(environment) == {"A": "1"}
    assert environment == {"AVIATO_SECRETS_DIR": "/s", "SECRET": "2"}


@pytest.mark.parametrize(
    ("data", "value"), [(b"x", "x"), (b"x\n", "x"), (b"x\r\n", "x"), (b"a\nb\n\n", "a\nb\n"), (b"", ""), ("é".encode(), "é")]
)
async def test_files(directory, data, value):
    (directory / "a.b-c_1").write_bytes(data)
    assert await find(Secrets({}, str(directory)), "a.b-c_1") == {"TOKEN": value}


async def test_files_as_kubernetes_mounts_them(directory):
    (directory / "..2026_11_21").mkdir()
    (directory / "..2026_11_21" / "token").write_text(VALUE)
    (directory / "..data").symlink_to("..2026_11_21")
    (directory / "token").symlink_to("..data/token")
    assert await find(Secrets({}, str(directory)), "token") == {"TOKEN": VALUE}


async def test_files_that_are_none(directory, tmp_path):
    (tmp_path / "outside").write_text(VALUE)
    (tmp_path / "secrets-2").mkdir()
    (tmp_path / "secrets-2" / "sibling").write_text(VALUE)
    (directory / "link").symlink_to("../outside")
    (directory / "sibling").symlink_to("../secrets-2/sibling")
    (directory / "self").symlink_to("self")
    (directory / "folder").mkdir()
    os.mkfifo(directory / "fifo")
    (directory / "binary").write_bytes(VALUE.encode() + b"\xff")
    (directory / "nul").write_bytes(VALUE.encode() + b"\0")
    (directory / "long").write_text(VALUE + "x" * LARGEST_BYTES)
    (directory / "endless").symlink_to("/dev/zero")
    secrets = Secrets({}, str(directory))
    for path in directory.iterdir():
        with pytest.raises(AviatoValidationError, match=f"'{path.name}'") as caught:
            await find(secrets, path.name)
        assert VALUE not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(AviatoValidationError, match=r"'missing'.*there is none"):
        await find(secrets, "missing")
    with pytest.raises(AviatoValidationError, match="no --secrets-dir"):
        await find(Secrets({}), "token")


async def test_too_much_together(directory):
    each = LARGEST_BYTES - 1
    variables = {f"N{number}": "x" * each for number in range(LARGEST_TOTAL_BYTES // each + 1)}
    wanted = [SecretReference(**refer(name, env_var=name)) for name in variables]
    with pytest.raises(AviatoValidationError, match="together"):
        await Secrets(variables).find(wanted, {})
    assert len(await Secrets(variables).find(wanted[:-1], {})) == len(wanted) - 1


def test_a_directory_that_sandboxes_see_is_refused(directory, tmp_path):
    (tmp_path / "to-it").symlink_to(directory)
    for given, shared in ((directory, tmp_path), (directory, directory), (tmp_path / "to-it", directory), ("/usr/lib", "/usr")):
        with pytest.raises(AviatoValidationError, match="sandboxes can read"):
            Secrets({}, str(given), [str(shared)])
    with pytest.raises(AviatoValidationError, match="no directory"):
        Secrets({}, str(tmp_path / "missing"))
    Secrets({}, str(directory), [str(tmp_path / "secrets-2")])


@pytest.mark.parametrize("kind", ["local", "landlock"])
def test_what_an_interpreter_an_image_and_packages_have_is_seen_by_sandboxes(directory, tmp_path, monkeypatch, kind):
    prefix = tmp_path / "home" / ".pyenv" / "versions" / "3.12.0"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib" / "python3.12").mkdir(parents=True)
    (prefix / "lib" / "python3.12" / "os.py").touch()
    (prefix / "bin" / "python3.12").touch(mode=0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    image = tmp_path / "image"
    packages = tmp_path / "packages"
    image.mkdir()
    packages.mkdir()
    settings = ServerSettings(backend=kind, image={"own": str(image)}, packages={"own": str(packages)})
    shared = configured_backend(settings, StateDirectory(str(tmp_path / "state"))).shared_paths()
    seen = [prefix / "lib", packages / "lib", *([image / "etc"] if kind == "local" else [])]
    for path in seen:
        path.mkdir(parents=True, exist_ok=True)
        with pytest.raises(AviatoValidationError, match="sandboxes can read"):
            Secrets({}, str(path), shared)
    Secrets({}, str(directory), shared)


async def test_a_request_is_refused_before_anything_is_made(server):
    reference = refer("TOKEN")
    for more, field in [
        ({"secrets": [reference]}, "secrets"),
        ({"secrets": [reference], "secret_values": {"TOKEN": VALUE}}, "secrets"),
        ({"secret_values": {"TOKEN": VALUE}}, "secrets"),
        ({"secrets": [reference], "secret_values": {"TOKEN": [VALUE]}}, "secret_values"),
        ({"secrets": [reference], "secret_values": {"TOKEN": VALUE + "\0"}}, "secret_values"),
        ({"secrets": [{**reference, "value": VALUE}]}, "secrets"),
        ({"secrets": [refer(VALUE)]}, "secrets"),
        ({"secrets": [refer(f"/{VALUE}")]}, "secrets"),
        ({"secrets": [refer(f"../{VALUE}", "file")]}, "secrets"),
        ({"secrets": [refer("TOKEN", "vault")]}, "secrets"),
        ({"secrets": [refer("TOKEN", env_var=f"{VALUE}=")]}, "secrets"),
        ({"secrets": [reference, reference]}, "secrets"),
        ({"secrets": [reference], "environment_variables": {"TOKEN": ""}}, "secrets"),
    ]:
        error = (await server.create(expect=400, **more))["error"]
        assert error["code"] == "VALIDATION" and any(field in name for name in error["field_violations"]), error
        assert VALUE not in json.dumps(error), more
    assert server.backend.links == {} and (await server.call("GET", "/v1/sandboxes?include_stopped=true"))["sandboxes"] == []


@pytest.mark.parametrize("stripped", [True, False])
async def test_values_of_the_caller_reach_the_backend_and_no_record(serving, folder, backend, monkeypatch, stripped):
    """The control: a request that is put on record with its values is found there."""
    if not stripped:
        monkeypatch.setattr(CreateSandbox, "model_copy", lambda self, update: self)
        monkeypatch.setattr(sandboxes, "_body", lambda request: request.model_dump_json())
        monkeypatch.setattr(sandboxes, "_hash", lambda request, body: sandboxes._earlier_hash(request))
    async with serving(folder, backend, secrets=Secrets(None)) as (service, client, _):
        body = {"sandbox_id": new_sandbox_id(), "detached": True, "secrets": [refer("A"), refer("A", env_var="B")]}
        create = {**body, "secret_values": {"A": VALUE}}
        info = await client.call("POST", "/v1/sandboxes", body=create, expect=201)
        again = await client.call("POST", "/v1/sandboxes", body={**body, "secret_values": {"A": "other"}}, expect=200)
        assert again["sandbox_id"] == info["sandbox_id"]
        info = await client.wait(body["sandbox_id"], "running")
        spec = backend.specs[body["sandbox_id"]]
        assert spec.secrets == {"TOKEN": VALUE, "B": VALUE}
        box = service.registry.live[body["sandbox_id"]]
        assert box.secrets == {}
        assert VALUE not in f"{spec!r} {box.request!r} {info} {again}"
        assert (VALUE in f"{box!r}") is not stripped
        error = await client.call("POST", "/v1/sandboxes", body={**create, "tags": ["t"]}, expect=409)
        assert VALUE not in json.dumps(error)
        unused = {**body, "sandbox_id": new_sandbox_id(), "secret_values": {"A": VALUE, "C": VALUE}}
        assert VALUE not in json.dumps(await client.call("POST", "/v1/sandboxes", body=unused, expect=400))
    files = [path.read_bytes() for path in Path(folder.path).rglob("*") if path.is_file()]
    assert any(body["sandbox_id"].encode() in data for data in files)
    assert any(VALUE.encode() in data for data in files) is not stripped


async def test_after_a_restart_those_that_wait_get_them_from_the_server_again(serving, folder, backend):
    async with serving(folder, backend, max_sandboxes=1, secrets=Secrets({"A": VALUE})) as (_, client, _):
        first = (await client.running(secrets=[refer("A")]))["sandbox_id"]
        second = (await client.create(secrets=[refer("A")]))["sandbox_id"]
    async with serving(folder, backend, max_sandboxes=1, secrets=Secrets({"A": "rotated"})) as (_, client, _):
        await client.call("DELETE", f"/v1/sandboxes/{first}", expect=200)
        assert (await client.wait(second, "running"))["status"] == "running"
        assert backend.specs[second].secrets == {"TOKEN": "rotated"}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [({"A": VALUE}, Secrets({}), "no AVIATO_SECRET_A"), (None, Secrets(None), "only in the memory of the server")],
)
async def test_after_a_restart_those_that_wait_say_that_they_are_gone(serving, folder, backend, before, after, why):
    given = {} if before is not None else {"secret_values": {"A": VALUE}}
    async with serving(folder, backend, max_sandboxes=1, secrets=Secrets(before)) as (_, client, _):
        first = (await client.running(secrets=[refer("A")], **given))["sandbox_id"]
        second = (await client.create(secrets=[refer("A")], **given))["sandbox_id"]
    async with serving(folder, backend, max_sandboxes=1, secrets=after) as (_, client, _):
        info = await client.wait(second, "ended")
        assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "start_failed", True)
        assert why in info["message"] and VALUE not in info["message"]
        assert (await client.wait(first, "running"))["status"] == "running"


async def test_what_is_gone_is_no_fault_of_the_caller(directory):
    with pytest.raises(SandboxUnavailableError) as caught:
        await Secrets({}, str(directory)).find_again([SecretReference(**refer("gone", "file"))])
    assert caught.value.is_infrastructure and not caught.value.retryable and "there is none" in str(caught.value)
