"""A container engine that breaks off in the middle of its answer, as one does that is restarted."""

from __future__ import annotations

import contextlib
import gc
import warnings

import pytest
from aiohttp import web

pytest.importorskip("aiodocker", reason="the extra docker is not installed")

from aviato.server.backends.docker.engine import Engine, EngineError
from aviato.server.backends.docker.images import EngineImages
from aviato.server.images.resolved import ResolvedImage

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def collected():
    """Of a stream that was cut off aiodocker leaves the connection, which is closed by then, to the collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.asynccontextmanager
async def cut_off(tmp_path, answers):
    """An engine that begins these answers, by the end of their paths, and ends none of them."""

    async def answer(request):
        begun = next((text for path, text in answers.items() if request.path.endswith(path)), None)
        if begun is None and request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        if begun is None:
            return web.json_response({"message": "no such thing"}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(begun)
        request.transport.abort()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "sock")).start()
    engine = Engine(f"unix://{tmp_path}/sock")
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


CALLS = {
    "images/create": lambda engine: engine.pull("docker.io/library/x:1", None),
    "/wait": lambda engine: engine.until_ended("x"),
    "/json": lambda engine: engine.image("x"),
    "containers/create": lambda engine: engine.create("x", {}),
    "/version": lambda engine: engine.about(),
}


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("begun", [b"", b'{"status": "x"', b'{"status": "x"}\r\n'], ids=["nothing", "half", "a line"])
async def test_it_is_an_engine_that_does_not_answer(tmp_path, path, begun):
    async with cut_off(tmp_path, {path: begun}) as engine:
        with pytest.raises(EngineError) as caught:
            await CALLS[path](engine)
    assert caught.value.is_unreachable
    assert caught.value.as_unavailable("x").reason == "engine_unreachable"


async def test_a_pull_that_is_broken_off_is_no_fault_of_the_image(tmp_path):
    async with cut_off(tmp_path, {"images/create": b'{"status": "Pulling"}\r\n'}) as engine:
        images = EngineImages("x")
        with pytest.raises(EngineError) as caught:
            await images.fetch(engine, ResolvedImage(reference="x:1", kind="oci"))
    assert caught.value.is_unreachable
