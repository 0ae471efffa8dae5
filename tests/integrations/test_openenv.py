"""The provider under OpenEnv: its contract, and a real environment's server in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv.core.containers.runtime", reason="openenv is not installed: pip install -e '.[openenv]'")

from openenv.core.generic_client import GenericEnvClient

from aviato import NetworkOptions, Sandbox
from aviato.integrations.openenv import AviatoProvider
from tests.conftest import RunningServer
from tests.rl.machine import supervisors

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

SERVE = ["sh", "-c", "echo $WORD >health; exec python3 -m http.server 8000"]


@pytest.fixture
def make(server: RunningServer) -> Iterator[Callable[..., AviatoProvider]]:
    made: list[AviatoProvider] = []

    def make(**options: Any) -> AviatoProvider:
        made.append(AviatoProvider(**{"base_url": server.url, "command": SERVE, **options}))
        return made[-1]

    yield make
    for provider in made:
        provider.close()
    assert not Sandbox.list(tags=["openenv"], base_url=server.url).result()


def health(url: str) -> str:
    with urllib.request.urlopen(f"{url}/health") as answer:
        return str(answer.read().decode())


def test_one_sandbox_a_provider(make: Callable[..., AviatoProvider], server: RunningServer) -> None:
    provider = make(env_vars={"WORD": "first"})
    provider.stop_container()
    url = provider.start_container(env_vars={"WORD": "second"})
    provider.wait_for_ready(url)
    assert health(url) == "second\n"
    with pytest.raises(RuntimeError, match="already"):
        provider.start_container()
    provider.stop_container()
    provider.stop_container()
    provider.close()
    assert not Sandbox.list(tags=["openenv"], base_url=server.url).result()
    with provider:
        provider.wait_for_ready(provider.start_container(port=8000))
    assert not Sandbox.list(tags=["openenv"], base_url=server.url).result()


def test_from_a_coroutine_without_a_word(make: Callable[..., AviatoProvider]) -> None:
    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            provider = make()
            provider.wait_for_ready(provider.start_container())
            provider.stop_container()

    asyncio.run(main())


def test_a_start_that_fails_leaves_nothing(make: Callable[..., AviatoProvider], server: RunningServer, tmp_path: Path) -> None:
    for options, message in (
        ({"command": None}, "openenv.yaml"),
        ({"files": {tmp_path / "missing": "/app"}}, "missing"),
        ({"image": "python:3.99"}, "3.99"),
    ):
        provider = make(**options)
        with pytest.raises(RuntimeError, match=message):
            provider.start_container()
        provider.stop_container()
    with pytest.raises(TypeError, match="gpus"):
        make().start_container(gpus=1)
    assert not Sandbox.list(tags=["openenv"], base_url=server.url).result()


def test_a_way_to_the_network(make: Callable[..., AviatoProvider]) -> None:
    ask = "import urllib.request as u\ntry: u.urlopen('http://10.0.0.1/')\nexcept OSError as error: print(error)"
    serve = ["sh", "-c", 'python3 -c "$0" >health; exec python3 -m http.server 8000', ask]
    for mode, said in (("internet", "no address that"), (["a.example"], "the allow-list"), ("none", "unreachable")):
        with make(command=serve, network=NetworkOptions(egress_mode=mode)) as provider:
            url = provider.start_container()
            provider.wait_for_ready(url)
            assert said in health(url)


def test_a_server_that_never_answers(make: Callable[..., AviatoProvider]) -> None:
    silent = make(command=["sleep", "60"])
    with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        silent.wait_for_ready(silent.start_container(), timeout_s=0.3)
    broken = make(command=["sh", "-c", "echo 'no such module' >&2; exit 1"])
    with pytest.raises(RuntimeError, match="exit code 1\nno such module"):
        broken.wait_for_ready(broken.start_container())


def test_a_lost_sandbox(make: Callable[..., AviatoProvider], make_server: Callable[..., RunningServer]) -> None:
    own = make_server()
    provider = make(base_url=own.url, command=["sleep", "60"])
    url = provider.start_container()
    for pid in supervisors(own.pid):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="server has ended"):
        provider.wait_for_ready(url)
    provider.stop_container()


ENVIRONMENT = """
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Add(Action):
    number: int

class Sum(Observation):
    total: int = 0

class Adder(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        super().__init__()
        self.total = 0
    def reset(self, seed=None, episode_id=None, **kwargs):
        self.total = 0
        return Sum(total=0)
    def step(self, action, timeout_s=None, **kwargs):
        self.total += action.number
        return Sum(total=self.total, reward=float(self.total), done=self.total > 4)
    @property
    def state(self):
        return State()

app = create_fastapi_app(Adder, Add, Sum, max_concurrent_envs=4)
"""

LOADED = """
import importlib, os, sys
sys.path.insert(0, sys.argv[1])
importlib.import_module("app")
import uvicorn, websockets, uvicorn.protocols.websockets.auto, uvicorn.protocols.http.auto, uvicorn.loops.auto
site = next(path for path in sys.path if path.endswith("site-packages"))
files = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)) and file.startswith(site)]
names = {file[len(site) + 1:].split("/")[0] for file in files}
names |= {name for name in os.listdir(site) if name.endswith((".dist-info", ".libs"))}
print("\\n".join(os.path.join(site, name) for name in sorted(names)))
"""


@pytest.mark.slow
def test_an_environment(make: Callable[..., AviatoProvider], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ENVIRONMENT)
    (tmp_path / "openenv.yaml").write_text("name: adder\napp: app:app\nport: 8000\n")
    # An environment's image has its packages; here they come from this interpreter's, those that the server loads.
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path)], capture_output=True, text=True, timeout=250, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    packages = {path: f"/packages/{Path(path).name}" for path in loaded.stdout.split()}
    provider = make(
        image=f"python:3.{sys.version_info.minor}",
        command=None,
        files={tmp_path: "/app/env", **packages},
        env_vars={"PYTHONPATH": "/packages"},
    )
    url = provider.start_container()
    provider.wait_for_ready(url, timeout_s=90)
    with GenericEnvClient(base_url=url, provider=provider).sync() as env:
        assert env.reset().observation["total"] == 0
        assert env.step({"number": 3}).reward == 3.0
        result = env.step({"number": 4})
        assert (result.observation["total"], result.reward, result.done) == (7, 7.0, True)
