"""What is asked of an API server again, and what is not: an API server that answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from aiohttp import web

pytest.importorskip("kubernetes_asyncio", reason="the extra kubernetes is not installed")

from aviato.server.backends.kubernetes import cluster as cluster_module
from aviato.server.backends.kubernetes.cluster import Cluster, ClusterError

pytestmark = pytest.mark.anyio

POD = {"metadata": {"name": "one"}}
THERE = {"metadata": {"name": "one", "uid": "of an earlier try"}}
EXISTS = (409, {"reason": "AlreadyExists", "message": "it is there"})


@contextlib.asynccontextmanager
async def answering(tmp_path, monkeypatch, answers, handler=None, user=None):
    """A cluster whose API server gives these answers, and what it was asked."""
    asked = []

    async def answer(request):
        asked.append((request.method, request.path))
        status, body = answers.pop(0)
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler or answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    named = {"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    config = {"clusters": [named], "contexts": [context], "users": [{"name": "x", "user": user or {}}], "current-context": "x"}
    (tmp_path / "config").write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    cluster = await Cluster.connect(None, "tests")
    try:
        yield cluster, asked
        assert not answers
    finally:
        await cluster.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(cluster_module, "AGAIN_SECONDS", 0.01)


@pytest.mark.parametrize("status", [429, 503])
async def test_what_was_not_taken_is_asked_again(tmp_path, monkeypatch, status):
    async with answering(tmp_path, monkeypatch, [(status, {}), (201, THERE)]) as (cluster, asked):
        assert await cluster.ask("POST", cluster.path("pods"), POD) == THERE
        assert asked == [("POST", "/api/v1/namespaces/tests/pods")] * 2


@pytest.mark.parametrize("status", [500, 504])
async def test_what_may_have_been_taken_is_asked_again_only_where_that_is_harmless(tmp_path, monkeypatch, status):
    async with answering(tmp_path, monkeypatch, [(status, {}), (status, {}), (200, THERE)]) as (cluster, asked):
        with pytest.raises(ClusterError) as raised:
            await cluster.ask("POST", cluster.path("pods"), POD)
        assert raised.value.status == status and len(asked) == 1
        assert await cluster.ask("GET", cluster.path("pods", "one")) == THERE


async def test_an_object_that_an_earlier_try_has_made_is_it(tmp_path, monkeypatch):
    async with answering(tmp_path, monkeypatch, [(500, {}), EXISTS, (200, THERE)]) as (cluster, asked):
        assert await cluster.make(cluster.path("pods"), POD) == THERE
        assert [method for method, _ in asked] == ["POST", "POST", "GET"]
        assert asked[-1][1] == "/api/v1/namespaces/tests/pods/one"


async def test_one_that_goes_while_another_of_its_name_is_made(tmp_path, monkeypatch):
    async with answering(tmp_path, monkeypatch, [EXISTS, (404, {}), (201, THERE)]) as (cluster, _):
        assert await cluster.make(cluster.path("pods"), POD) == THERE


@pytest.mark.parametrize("status", [403, 404, 409, 422])
async def test_what_is_refused_is_not_made(tmp_path, monkeypatch, status):
    async with answering(tmp_path, monkeypatch, [(status, {"message": "no"})]) as (cluster, _):
        with pytest.raises(ClusterError, match="no"):
            await cluster.make(cluster.path("pods"), POD)


async def test_it_is_not_asked_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "PATIENCE_SECONDS", 0.0)
    for answer in (EXISTS, (500, {}), (503, {})):
        answers = [answer, (404, {})] if answer is EXISTS else [answer]
        async with answering(tmp_path, monkeypatch, answers) as (cluster, _):
            with pytest.raises(ClusterError):
                await cluster.make(cluster.path("pods"), POD)


PLUGIN = """#!/bin/sh
echo x >> {log}
said=$(cat {token})
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' "$said"
"""


@pytest.mark.parametrize("how", ["exec", "tokenFile"])
async def test_credentials_that_have_come_to_an_end(tmp_path, monkeypatch, how):
    """Those of an `exec` plugin hold for minutes: whoever asks is asked for new ones, once for all that is on its way."""
    token, log, plugin = tmp_path / "token", tmp_path / "log", tmp_path / "plugin"
    token.write_text("one")
    log.touch()
    plugin.write_text(PLUGIN.format(log=log, token=token))
    plugin.chmod(0o755)
    user = {"tokenFile": str(token)}
    if how == "exec":
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "args": ["x"], "env": []}}
    good = {"Bearer one"}

    async def answer(request):
        if request.headers.get("Authorization") in good:
            return web.json_response({"said": "yes"})
        return web.json_response({"message": "Unauthorized"}, status=401)

    async with answering(tmp_path, monkeypatch, [], answer, user) as (cluster, _):
        path = cluster.path("pods", "one")
        assert await cluster.ask("GET", path) == {"said": "yes"}
        good = {"Bearer two"}
        with pytest.raises(ClusterError) as caught:
            await cluster.ask("GET", path)  # There are no others yet.
        assert caught.value.status == 401 and "log in" in str(caught.value.as_error("x"))
        token.write_text("two")
        runs = len(log.read_text())
        assert await asyncio.gather(*(cluster.ask("GET", path) for _ in range(20))) == [{"said": "yes"}] * 20
        assert how != "exec" or len(log.read_text()) == runs + 2
        good, plugin_text = {"Bearer three"}, "#!/bin/sh\necho go and log in >&2; exit 1\n"
        if how == "exec":
            plugin.write_text(plugin_text)
            with pytest.raises(ClusterError, match="go and log in"):
                await cluster.ask("GET", path)


async def test_what_nobody_waits_for_any_more_is_made_before_it_is_removed(tmp_path, monkeypatch):
    """Whoever stops waiting for a create stops nothing in an API server: a removal that overtakes it removes nothing."""
    asked, may_answer = asyncio.Event(), asyncio.Event()
    order = []

    async def answer(request):
        if request.method == "POST":
            asked.set()
            await may_answer.wait()
        order.append(request.method)
        return web.json_response({})

    async with answering(tmp_path, monkeypatch, [], answer) as (cluster, _):
        making = asyncio.create_task(cluster.make(cluster.path("pods"), POD))
        await asked.wait()
        making.cancel()
        removing = asyncio.create_task(cluster.remove(cluster.path("pods", "one")))
        await asyncio.wait((making,))
        asyncio.get_running_loop().call_later(0.05, may_answer.set)
        await removing
    assert order == ["POST", "DELETE"]


async def test_a_watch_that_nobody_carries_on_ends(tmp_path, monkeypatch):
    """Whoever is on the way has forgotten the connection, and says nothing of it."""
    monkeypatch.setattr(cluster_module, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(cluster_module, "SECONDS", 0.3)
    over = asyncio.Event()

    async def silent(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await over.wait()
        return response

    async with answering(tmp_path, monkeypatch, [], silent) as (cluster, _):
        async with asyncio.timeout(20):
            with pytest.raises(ClusterError) as caught:
                async for _ in cluster.watch(cluster.path("pods"), "a=b", "1"):
                    pass
        over.set()
    assert caught.value.is_unreachable
