"""As much of the W&B service as a run needs to be resumed or shared, on the loopback; it keeps nothing of what it takes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

PROJECT = {"name": "aviato-tests", "entity": {"name": "tests"}}
KEY = "0" * 40


class Service:
    """Answers what a run asks when it begins.

    Args:
        last_step: of the run that is there to be resumed; None: there is none.
    """

    def __init__(self, last_step: int | None = None) -> None:
        self.last_step = last_step

    async def graphql(self, request: web.Request) -> web.Response:
        """Answer by what the query has in it."""
        body = await request.json()
        return web.json_response({"data": self._data(body["query"], body.get("variables") or {})})

    async def other(self, request: web.Request) -> web.Response:
        """Take rows and files."""
        await request.read()
        return web.json_response({})

    def _data(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if "upsertBucket" in query:
            bucket = self._bucket(variables) | {"project": PROJECT}
            return {"upsertBucket": {"bucket": bucket, "inserted": self.last_step is None}}
        if "bucket(" in query:
            return {"model": PROJECT | {"bucket": None if self.last_step is None else self._bucket(variables)}}
        if "viewer" in query:
            return {"viewer": {"id": "1", "entity": "tests", "username": "tests", "flags": "{}", "teams": {"edges": []}}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        return {"serverInfo": {"features": []}, "entity": None}

    def _bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        row = {} if self.last_step is None else {"_step": self.last_step, "_runtime": 1, "loss": 0.5}
        return {
            "id": "UnVuOjE=",
            "name": variables.get("name") or variables.get("bucketName") or "run",
            "displayName": "run",
            "config": "{}",
            "wandbConfig": '{"t": 1}',
            "summaryMetrics": json.dumps(row),
            "historyLineCount": 0 if self.last_step is None else self.last_step + 1,
            "eventsLineCount": 0,
            "logLineCount": 0,
            "history": json.dumps([json.dumps(row)]),
            "historyTail": json.dumps([json.dumps(row)]),
            "eventsTail": "[]",
            "tags": [],
        }


@contextmanager
def serve(service: Service) -> Iterator[str]:
    """Its address, for `WANDB_BASE_URL`."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), []

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/graphql", service.graphql)
        app.router.add_route("*", "/{path:.*}", service.other)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        return runner

    def work() -> None:
        runner = loop.run_until_complete(begin())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
