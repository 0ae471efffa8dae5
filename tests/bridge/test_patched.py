"""Programs that gevent or eventlet has patched: an error of ours at the first call; none where what it needs was left alone."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.conftest import in_interpreter
from tests.matrices import deep

CALL = """
try:
    print(aviato.Sandbox().exec(["echo", "hi"]).result(60).stdout)
except aviato.SandboxUnavailableError as error:
    print(type(error).__name__, error.reason, error.is_infrastructure, error.retryable, "has replaced" in str(error))
"""
ASYNC = """
async def main():
    async with aviato.AsyncClient() as client, await client.sandbox() as sandbox:
        print((await sandbox.exec(["echo", "hi"])).stdout)
try:
    asyncio.run(main())
except aviato.SandboxUnavailableError as error:
    print(type(error).__name__, error.reason, error.is_infrastructure, error.retryable, "has replaced" in str(error))
"""
REFUSED = "SandboxUnavailableError configuration True False True"
GEVENT = {
    "before": ("from gevent import monkey; monkey.patch_all()\nimport aviato" + CALL, REFUSED),
    "after": ("import aviato\nfrom gevent import monkey; monkey.patch_all()" + CALL, REFUSED),
    "no threads": ("from gevent import monkey; monkey.patch_all(thread=False)\nimport aviato" + CALL, REFUSED),
    "for a client of a loop": ("from gevent import monkey; monkey.patch_all()\nimport aviato, asyncio" + ASYNC, REFUSED),
    "imported": ("import gevent.monkey\nimport aviato" + CALL, "hi"),
    **{
        name: (f"from gevent import monkey; monkey.patch_{name}()\nimport aviato" + CALL, "hi")
        for name in ("ssl", "os", "time", "signal", "subprocess", "queue")
    },
}
EVENTLET = {
    "before": ("import eventlet; eventlet.monkey_patch()\nimport aviato" + CALL, REFUSED),
    "after": ("import aviato\nimport eventlet; eventlet.monkey_patch()" + CALL, REFUSED),
    "time": ("import eventlet; eventlet.monkey_patch(time=True)\nimport aviato" + CALL, "hi"),
}


def said(server: Any, program: str) -> str:
    done = in_interpreter(
        "import warnings; warnings.simplefilter('ignore')\n" + program, timeout=200, AVIATO_BASE_URL=server.url
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
@pytest.mark.parametrize("kind", ["before", "after", *deep(sorted(set(GEVENT) - {"before", "after"}))])
def test_gevent(server: Any, kind: str) -> None:
    program, expected = GEVENT[kind]
    assert said(server, program) == expected


@pytest.mark.skipif(importlib.util.find_spec("eventlet") is None, reason="eventlet is not installed")
@pytest.mark.parametrize("kind", ["before", *deep(["after", "time"])])
def test_eventlet(server: Any, kind: str) -> None:
    program, expected = EVENTLET[kind]
    assert said(server, program) == expected
