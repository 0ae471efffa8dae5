"""The runtime under verifiers: its contract, and an agent that is lent one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install -e '.[verifiers]'")

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.errors import SandboxError, TaskError, boundary
from verifiers.v1.trace import AgentInfo

from aviato import Sandbox
from aviato.integrations.verifiers import AviatoRuntime, AviatoRuntimeConfig
from tests.conftest import RunningServer
from tests.rl.machine import supervisors

pytestmark = [pytest.mark.anyio]


@pytest.fixture
async def runtime(server: RunningServer) -> AsyncIterator[AviatoRuntime]:
    made = AviatoRuntime(AviatoRuntimeConfig(base_url=server.url))
    await made.start()
    yield made
    await made.stop()


async def test_programs(runtime: AviatoRuntime) -> None:
    runtime.env = {"A": "task", "B": "task"}
    result = await runtime.run(["sh", "-c", "echo $A $B; pwd; echo no >&2; exit 3"], {"A": "program"})
    assert (result.exit_code, result.stdout, result.stderr) == (3, "program task\n/workspace\n", "no\n")
    assert (await runtime.run(["no-such-program"], {})).exit_code == 127
    view = runtime.with_env({"C": "view"})
    assert (await view.run(["sh", "-c", "echo $A$C"], {})).stdout == "view\n"
    with pytest.raises(ValueError, match="another user"):
        runtime.with_user("nobody")


async def test_a_cancelled_program_is_dead(runtime: AviatoRuntime) -> None:
    script = "setsid sh -c 'while :; do date +%N >beat; sleep 0.02; done' & sleep 60"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.run(["sh", "-c", script], {}), 1)
    last = await runtime.read("beat")
    await asyncio.sleep(0.2)
    assert await runtime.read("beat") == last


async def test_files(runtime: AviatoRuntime) -> None:
    await runtime.write("deep/file", b"\xff\r\n" * 1000)
    assert await runtime.read("/workspace/deep/file") == b"\xff\r\n" * 1000
    assert await runtime.read("deep/file", max_bytes=3000) == b"\xff\r\n" * 1000
    with pytest.raises(SandboxError, match="over the 2999 byte limit"):
        await runtime.read("deep/file", max_bytes=2999)
    assert await runtime.read("deep/../deep/file", max_bytes=5000)
    for limit in (None, 10):
        with pytest.raises(FileNotFoundError):
            await runtime.read("missing", max_bytes=limit)
        with pytest.raises(IsADirectoryError):
            await runtime.read("deep", max_bytes=limit)


async def test_a_cap_is_kept_at_the_source(runtime: AviatoRuntime) -> None:
    await runtime.run(["truncate", "-s", "3G", "large"], {})
    begin = time.monotonic()
    with pytest.raises(SandboxError, match="limit"):
        await runtime.read("large", max_bytes=1000)
    assert time.monotonic() - begin < 3


async def test_a_live_process(runtime: AviatoRuntime) -> None:
    assert runtime.supports_live_processes
    process = await runtime.open_process(["cat"], {})
    await process.write(b"\xc3\x28\x00")
    assert await anext(process.stdout) == b"\xc3\x28\x00"
    assert await process.poll() is None
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.2)
    await process.write(b"still there")
    assert await anext(process.stdout) == b"still there"
    await process.terminate()
    assert await process.wait() == 143 == await process.poll()
    await process.kill()
    with pytest.raises(BrokenPipeError):
        await process.write(b"late")
    assert [chunk async for chunk in process.stderr] == []


async def test_a_server_inside(runtime: AviatoRuntime) -> None:
    assert runtime.is_local and runtime.published_port == 8000
    await runtime.write("index.html", b"here")
    await runtime.run_background(["python3", "-m", "http.server", "8000"], {}, "log")
    url = await runtime.expose(8000)
    assert runtime._sandbox is not None
    assert await runtime._sandbox.wait_for_port(8000) == url
    fetch = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import urllib.request as u; print(u.urlopen({url!r}).read())", stdout=subprocess.PIPE
    )
    assert (await fetch.communicate())[0] == b"b'here'\n"
    with pytest.raises(SandboxError, match="8001"):
        await runtime.expose(8001)
    with pytest.raises(SandboxError, match="cannot be written"):
        await runtime.run_background(["true"], {}, "/no/log")


async def test_the_network_is_closed(runtime: AviatoRuntime, caplog: pytest.LogCaptureFixture) -> None:
    assert not runtime.network_restricted
    await runtime.prepare_setup()
    await runtime.prepare_execution([])
    assert not caplog.records
    await runtime.prepare_execution(["http://127.0.0.1:1/v1"])
    assert "http://127.0.0.1:1/v1" in caplog.text
    with pytest.raises(SandboxError, match="opened later"):
        await runtime.prepare_execution(None)


@pytest.mark.parametrize(
    ("mode", "said"), [("internet", "no address that a sandbox"), (["a.example"], "the allow-list"), ("none", "unreachable")]
)
async def test_the_network_that_was_asked_for(server: RunningServer, caplog: Any, mode: Any, said: str) -> None:
    runtime = AviatoRuntime(AviatoRuntimeConfig(base_url=server.url, egress_mode=mode))
    await runtime.start()
    try:
        source = "import sys, urllib.request as u\ntry: u.urlopen(sys.argv[1])\nexcept OSError as error: print(error)"
        assert said in (await runtime.run(["python3", "-c", source, "http://10.0.0.1/"], {})).stdout
        await runtime.prepare_execution([])
        if mode == "internet":
            await runtime.prepare_execution(None)
        await runtime.prepare_execution(["https://a.example/v1"])
        assert bool(caplog.records) == (mode == "none")
        await runtime.prepare_execution(["http://127.0.0.1:1/v1"])
        assert "http://127.0.0.1:1/v1" in caplog.text
    finally:
        await runtime.stop()


async def test_a_lost_sandbox(make_server: Callable[..., RunningServer]) -> None:
    server = make_server()
    runtime = AviatoRuntime(AviatoRuntimeConfig(base_url=server.url))
    assert not await runtime.alive()
    with pytest.raises(SandboxError, match="not started"):
        await runtime.run(["true"], {})
    await runtime.start()
    assert await runtime.alive()
    # Alive by the server's word: nothing inside is asked.
    await runtime.run(["sh", "-c", "mkdir -p bin; printf '#!/bin/sh\\nexit 1' >bin/true; chmod +x bin/true"], {})
    assert await runtime.with_env({"PATH": "/workspace/bin:/bin"}).alive()
    process = await runtime.open_process(["cat"], {})
    for pid in supervisors(server.pid):
        os.kill(pid, signal.SIGKILL)
    for use in (process.wait(), runtime.run(["true"], {}), runtime.read("x"), runtime.write("x", b"")):
        with pytest.raises(SandboxError):
            await use
    assert not await runtime.alive()
    # Blamed on the sandbox also where a task's own code met it.
    with pytest.raises(SandboxError):
        async with boundary(TaskError, "a reward"):
            await runtime.run(["true"], {})
    await runtime.stop()
    await runtime.stop()


async def test_a_trace_that_names_it_is_read_back(runtime: AviatoRuntime) -> None:
    info: Any = AgentInfo(config=AgentConfig())
    info.runtime = runtime.info
    assert AgentInfo[AgentConfig].model_validate_json(info.model_dump_json()).runtime.id == runtime.info.id


ABANDONED = """
import asyncio, sys, time
from aviato.integrations.verifiers import AviatoRuntime, AviatoRuntimeConfig
runtime = AviatoRuntime(AviatoRuntimeConfig(base_url=sys.argv[1], tags=["abandoned"]))
async def main():
    await runtime.start()
    runtime.run(["sleep", "60"], {}).close()
asyncio.run(main())
print(time.monotonic())
"""


def test_what_nobody_stops_ends_with_the_process(server: RunningServer) -> None:
    command = [sys.executable, "-c", ABANDONED, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # Not from its begin: to be imported the framework alone takes half a minute on a busy machine.
    assert time.monotonic() - float(done.stdout) < 15
    left = Sandbox.list(tags=["abandoned"], base_url=server.url).result()
    assert not left
