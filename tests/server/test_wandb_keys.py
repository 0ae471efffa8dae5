"""W&B keys, against a stand-in of the W&B API; and TLS, which carries them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from aviato.exceptions import AviatoValidationError, WandbAuthError
from aviato.server.callers import Caller
from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp
from aviato.server.connections.wandb_keys import (
    MOST_ASKED,
    OUTAGE_SECONDS,
    REFRESH_SECONDS,
    REMEMBERED_SECONDS,
    RETRY_SECONDS,
    WandbKeys,
)
from aviato.server.front import Front
from aviato.server.service import Service
from aviato.server.settings import ServerSettings
from aviato.wire.ids import new_sandbox_id
from tests.certificates import make_certificate
from tests.server.frames import Session, asked_for

pytestmark = pytest.mark.anyio

USERS = {"ada-key": ("ada", ["team-a", "shared"]), "bob-key": ("bob", ["team-b", "shared"])}


class StandIn:
    """`POST /graphql`, as api.wandb.ai answers the question whose a key is."""

    def __init__(self):
        self.asked = []
        self.broken = None
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def answer(self, request):
        header = request.headers["Authorization"]
        user, _, key = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        query = (await request.json())["query"]
        assert user == "api" and "viewer" in query
        self.asked.append(key)
        await self.go_on.wait()
        if self.broken is not None:
            return self.broken()
        if key not in USERS:
            return web.json_response({"errors": [{"message": "permission denied"}], "data": {"viewer": None}})
        name, teams = USERS[key]
        edges = [{"node": {"name": team}} for team in teams]
        return web.json_response(
            {"data": {"viewer": {"id": "x", "username": name, "entity": teams[0], "teams": {"edges": edges}}}}
        )


@asynccontextmanager
async def standing_in():
    stand_in = StandIn()
    app = web.Application()
    app.router.add_post("/graphql", stand_in.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listener = listen_tcp("127.0.0.1", 0)
    await web.SockSite(runner, listener).start()
    stand_in.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield stand_in
    finally:
        stand_in.go_on.set()
        await runner.cleanup()


@pytest.fixture
async def place(folder, backend):
    """A server that takes W&B keys, with a clock of the test's own."""
    folder.make()
    async with standing_in() as stand_in:
        now = SimpleNamespace(seconds=0.0)
        keys = WandbKeys(stand_in.url + "/", clock=lambda: now.seconds)
        service = Service(ServerSettings(), folder, backend)
        guard = Guard([hash_key("av-key")], wandb=keys)
        front = Front(service, guard)
        listener = listen_tcp("127.0.0.1", 0)
        await front.open(Listeners(sockets=[listener]))
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with aiohttp.ClientSession() as http:

            async def ask(key=None, entity=None, method="GET", path="/v1/sandboxes", body=None, **headers):
                headers = {name.replace("_", "-"): text for name, text in headers.items()}
                if key is not None:
                    headers["X-Wandb-Api-Key"] = key
                if entity is not None:
                    headers["X-Wandb-Entity"] = entity
                data = None if body is None else json.dumps(body)
                async with http.request(method, base + path, headers=headers, data=data) as response:
                    return response.status, await response.json(), response.headers

            yield SimpleNamespace(ask=ask, stand_in=stand_in, now=now, service=service, where=listener.getsockname())
        await keys.close()
        await front.close()


async def test_a_user_sees_its_own_sandboxes_of_an_entity(place):
    made = {}
    for key, entity in (("ada-key", "team-a"), ("ada-key", "shared"), ("ada-key", "ada"), ("bob-key", "shared")):
        body = {"sandbox_id": new_sandbox_id(), "detached": True}
        status, answer, _ = await place.ask(key, entity, "POST", body=body)
        assert status == 201, answer
        made[key, entity] = body["sandbox_id"]
    for (key, entity), sandbox_id in made.items():
        _, answer, _ = await place.ask(key, entity)
        assert [info["sandbox_id"] for info in answer["sandboxes"]] == [sandbox_id]
        for other in made.values():
            status, _, _ = await place.ask(key, entity, path=f"/v1/sandboxes/{other}")
            assert status == (200 if other == sandbox_id else 404)
    assert sorted(place.stand_in.asked) == ["ada-key", "bob-key"]


@pytest.mark.parametrize(
    ("key", "entity", "said"),
    [
        ("eve-key", "team-a", "does not know this key"),
        ("ada-key", "team-b", "'ada' is not in the entity 'team-b'"),
        ("ada-key", None, "WANDB_ENTITY_NAME"),
        ("ada-key", "a/b", "WANDB_ENTITY_NAME"),
        ("k" * 257, "team-a", "key is none"),
        ("", "team-a", "key is none"),
    ],
)
async def test_who_is_not_let_in(place, key, entity, said):
    status, answer, headers = await place.ask(key, entity)
    assert (status, answer["error"]["code"]) == (401, "WANDB_AUTHENTICATION") and said in answer["error"]["message"]
    assert "WandB" in headers["WWW-Authenticate"].split(", ") and answer["error"]["is_infrastructure"]
    assert key == "" or key not in json.dumps(answer)


async def test_keys_of_the_server_s_own_go_on(place):
    status, _, _ = await place.ask(Authorization="Bearer av-key")
    assert status == 200
    # Who brings both is whom the server's own key says, and W&B is not asked.
    status, _, _ = await place.ask("ada-key", "team-a", Authorization="Bearer wrong")
    assert status == 401 and place.stand_in.asked == []
    status, answer, headers = await place.ask()
    assert status == 401 and "AVIATO_API_KEY" in answer["error"]["message"] and "WandB" in headers["WWW-Authenticate"]


async def test_a_session_ends_with_its_key(place):
    """Each of its requests is asked about as one of HTTP is."""
    headers = {"X-Wandb-Api-Key": "ada-key", "X-Wandb-Entity": "team-a"}
    async with Session(place.where, headers) as session:
        place.now.seconds = REFRESH_SECONDS - 1  # Later it would be asked about again, and that answer may come late.
        assert (await session.ask("GET /v1/sandboxes"))[0] == 200
        place.now.seconds = 3 * REMEMBERED_SECONDS
        place.stand_in.broken = lambda: web.Response(status=401)
        status, _, body = await session.ask("GET /v1/sandboxes")
        assert status == 401 and b"W&B does not know this key" in body
    status, head, _ = await asked_for(place.where, {})
    assert status == 401 and "WandB" in head


async def test_an_answer_is_remembered_for_ten_minutes(place):
    for _ in range(3):
        await place.ask("ada-key", "team-a")
        await place.ask("eve-key", "team-a")
    assert place.stand_in.asked == ["ada-key", "eve-key"]
    place.now.seconds = REFRESH_SECONDS - 1
    await place.ask("ada-key", "team-a")
    assert len(place.stand_in.asked) == 2
    place.now.seconds = REMEMBERED_SECONDS
    place.stand_in.broken = lambda: web.Response(status=401)
    status, _, _ = await place.ask("ada-key", "team-a")
    assert status == 401 and place.stand_in.asked[2:] == ["ada-key"]


async def test_many_at_once_are_one_question(place):
    place.stand_in.go_on.clear()
    asking = [asyncio.create_task(place.ask("ada-key", "team-a")) for _ in range(5)]
    while not place.stand_in.asked:
        await asyncio.sleep(0.005)
    asking.pop().cancel()
    place.stand_in.go_on.set()
    assert [(await task)[0] for task in asking] == [200] * 4
    assert place.stand_in.asked == ["ada-key"]


@pytest.mark.parametrize(
    "broken",
    [
        lambda: web.Response(status=500),
        lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
        lambda: web.Response(text="<html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({"data": {"viewer": {"username": 1}}}),
        lambda: web.json_response({"data": {"viewer": {"username": "ada", "teams": {"edges": [{"node": None}]}}}}),
        lambda: web.Response(body=b"[" * (3 << 20)),
    ],
)
async def test_where_wandb_does_not_answer_nobody_is_let_in_and_nothing_remembered(place, broken):
    place.stand_in.broken = broken
    status, answer, _ = await place.ask("ada-key", "team-a")
    assert (status, answer["error"]["reason"], answer["error"]["retryable"]) == (503, "wandb", True)
    place.stand_in.broken = None
    assert (await place.ask("ada-key", "team-a"))[0] == 200


async def test_made_up_keys_do_not_make_it_ask_without_end(place):
    place.stand_in.go_on.clear()
    asking = [asyncio.create_task(place.ask(f"made-up-{number}", "team-a")) for number in range(MOST_ASKED)]
    while len(place.stand_in.asked) < MOST_ASKED:
        await asyncio.sleep(0.005)
    status, answer, _ = await place.ask("ada-key", "team-a")
    assert (status, answer["error"]["reason"]) == (503, "wandb")
    place.stand_in.go_on.set()
    assert {(await task)[0] for task in asking} == {401}
    assert (await place.ask("ada-key", "team-a"))[0] == 200


async def test_a_known_key_is_asked_about_again_before_its_answer_is_old(place):
    await place.ask("ada-key", "team-a")
    place.now.seconds = REFRESH_SECONDS
    place.stand_in.go_on.clear()
    assert [(await place.ask("ada-key", "team-a"))[0] for _ in range(3)] == [200] * 3
    while len(place.stand_in.asked) < 2:
        await asyncio.sleep(0.005)
    place.stand_in.broken = lambda: web.Response(status=401)
    place.stand_in.go_on.set()
    while (await place.ask("ada-key", "team-a"))[0] == 200:
        await asyncio.sleep(0.005)
    assert place.stand_in.asked == ["ada-key"] * 2


async def test_an_outage_of_wandb_does_not_lock_known_keys_out(place):
    await place.ask("ada-key", "team-a")
    await place.ask("eve-key", "team-a")
    place.stand_in.broken = lambda: web.Response(status=503)
    place.now.seconds = REMEMBERED_SECONDS
    assert [(await place.ask("ada-key", "team-a"))[0] for _ in range(3)] == [200] * 3
    assert place.stand_in.asked[2:] == ["ada-key"]
    assert (await place.ask("ada-key", "team-b"))[0] == 401
    for key in ("eve-key", "bob-key"):
        assert (await place.ask(key, "team-b"))[0] == 503
    place.now.seconds = OUTAGE_SECONDS - RETRY_SECONDS
    assert (await place.ask("ada-key", "team-a"))[0] == 200
    place.now.seconds = OUTAGE_SECONDS
    assert (await place.ask("ada-key", "team-a"))[0] == 503
    place.stand_in.broken = None
    assert (await place.ask("ada-key", "team-a"))[0] == 200


async def test_once_wandb_answers_again_a_key_that_is_none_any_more_is_refused(place):
    await place.ask("ada-key", "team-a")
    place.stand_in.broken = lambda: web.Response(status=503)
    place.now.seconds = REMEMBERED_SECONDS
    assert (await place.ask("ada-key", "team-a"))[0] == 200
    place.stand_in.broken = lambda: web.Response(status=401)
    place.now.seconds += RETRY_SECONDS
    assert (await place.ask("ada-key", "team-a"))[0] == 401


async def test_made_up_keys_do_not_keep_known_ones_from_being_asked_about(place, monkeypatch):
    await place.ask("ada-key", "team-a")
    monkeypatch.setattr("aviato.server.connections.wandb_keys.MOST_REMEMBERED", 2)
    for number in range(3):
        await place.ask(f"made-up-{number}", "team-a")
    place.now.seconds = REMEMBERED_SECONDS
    place.stand_in.asked.clear()
    place.stand_in.go_on.clear()
    asking = [asyncio.create_task(place.ask(f"made-up-{number}", "team-a")) for number in range(MOST_ASKED)]
    while len(place.stand_in.asked) < MOST_ASKED:
        await asyncio.sleep(0.005)
    known = asyncio.create_task(place.ask("ada-key", "team-a"))
    while "ada-key" not in place.stand_in.asked:
        await asyncio.sleep(0.005)
    place.stand_in.go_on.set()
    assert (await known)[0] == 200
    assert {(await task)[0] for task in asking} == {401}


async def test_entities_that_are_let_in(place):
    """Named, they may use secrets. Where none is, everybody with an account is let in, and gets none."""
    keys = WandbKeys(place.stand_in.url, ["team-a", "team-c"])
    headers = {"X-Wandb-Api-Key": "ada-key", "X-Wandb-Entity": "team-a"}
    assert (await keys.caller(headers)) == Caller(tenant="wandb:team-a/ada")
    for key, entity in (("ada-key", "shared"), ("bob-key", "team-b"), ("ada-key", "team-c"), ("bob-key", "team-a")):
        with pytest.raises(WandbAuthError, match=entity):
            await keys.caller({"X-Wandb-Api-Key": key, "X-Wandb-Entity": entity})
    await keys.close()
    body = {"sandbox_id": new_sandbox_id(), "detached": True, "secrets": [{"store": "env", "name": "A", "env_var": "A"}]}
    status, answer, _ = await place.ask("ada-key", "team-a", "POST", body=body)
    assert status == 400 and "this caller may not use the secret 'A'" in answer["error"]["message"]


@pytest.mark.parametrize("url", ["http://api.example", "ftp://x", "api.wandb.ai", "https://", "http://10.0.0.1"])
def test_keys_do_not_go_out_in_clear(url):
    with pytest.raises(AviatoValidationError, match="https"):
        WandbKeys(url)


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    cert, key = make_certificate(tmp_path_factory.mktemp("tls"))
    return SimpleNamespace(cert=str(cert), key=str(key))


CLIENT = """
import aviato
try:
    with aviato.Sandbox() as sandbox:
        print(sandbox.exec(["echo", "hi"]).result().stdout, end="")
        print(len(aviato.Sandbox.list().result()))
except aviato.AviatoError as error:
    print(type(error).__name__, error.reason)
"""
SERVER = "from aviato.cli.main import main; main()"


async def client(url, certificate, **variables):
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("AVIATO_", "WANDB_"))}
    environment |= {"AVIATO_BASE_URL": url, "SSL_CERT_FILE": certificate.cert, **variables}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return out.decode(), err.decode()


@pytest.mark.deep
async def test_a_client_with_a_wandb_login_over_tls(certificate, tmp_path):
    """As users have it: no key of ours anywhere, and the server asks for W&B's."""
    state = tmp_path / "state"
    flags = ["--state-dir", str(state), "--port", "0", "--auth", "wandb"]
    flags += ["--tls-cert", certificate.cert, "--tls-key", certificate.key]
    async with standing_in() as stand_in:
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("AVIATO_", "WANDB_"))}
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVER, "serve", *flags),
            env={**environment, "WANDB_BASE_URL": stand_in.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            line = (await server.stdout.readline()).decode().strip()
            url = line.removeprefix("export AVIATO_BASE_URL=")
            assert url.startswith("https://127.0.0.1:"), line
            login = {"WANDB_API_KEY": "ada-key", "WANDB_ENTITY_NAME": "team-a"}
            assert await client(url, certificate, **login) == ("hi\n1\n", "")
            assert await client(url, certificate, **{**login, "WANDB_API_KEY": "eve-key"}) == (
                "WandbAuthError authentication\n",
                "",
            )
            out, _ = await client(url, certificate, WANDB_API_KEY="ada-key")
            assert out.startswith("WandbAuthError")
            out, _ = await client(url, SimpleNamespace(cert="/dev/null"), **login)
            assert out == "SandboxUnavailableError tls\n"
            in_clear = url.replace("https", "http")
            out, _ = await client(in_clear, certificate, **login)
            assert out.startswith("SandboxUnavailableError")
            assert set(stand_in.asked) == {"ada-key", "eve-key"}
        finally:
            server.send_signal(2)
            _, err = await server.communicate()
        assert b"Traceback" not in err and b"ada-key" not in err, err
    kept = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert b"wandb:team-a/ada" in kept and b"ada-key" not in kept
