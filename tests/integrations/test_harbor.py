"""The environment under Harbor: its contract, and whole trials with the agent that knows the solution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Harbor's own libraries warn while they are imported.
with pytest.MonkeyPatch.context() as patch:
    patch.setattr("warnings.warn", lambda *_, **__: None)
    pytest.importorskip("harbor.environments.base", reason="harbor (Python 3.12+) is not installed: pip install -e '.[harbor]'")

from harbor.environments.factory import EnvironmentFactory
from harbor.models.job.config import RetryConfig
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironmentConfig
from harbor.models.trial.config import ResourceMode
from harbor.models.trial.paths import TrialPaths

from aviato import Sandbox, exceptions
from aviato.integrations import harbor
from tests.conftest import RunningServer
from tests.rl.machine import supervisors

pytestmark = pytest.mark.anyio

IMPORT_PATH = "aviato.integrations.harbor:AviatoEnvironment"
CLOSED = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


@pytest.fixture
def make(server: RunningServer, tmp_path: Path) -> Callable[..., harbor.AviatoEnvironment]:
    folder = tmp_path / "task" / "environment"
    folder.mkdir(parents=True)
    (tmp_path / "trial").mkdir()

    def make(task: dict[str, Any] | None = None, ek: dict[str, Any] | None = None, **options: Any) -> Any:
        return EnvironmentFactory.create_environment_from_config(
            config=TrialEnvironmentConfig(
                import_path=IMPORT_PATH, kwargs={"base_url": server.url, **(ek or {})}, **options.pop("config", {})
            ),
            environment_dir=folder,
            environment_name="task",
            session_id="task__1__env",
            trial_paths=TrialPaths(trial_dir=tmp_path / "trial"),
            task_env_config=EnvironmentConfig(**{"docker_image": "host", **(task or {})}),
            **{"network_policy": CLOSED, **options},
        )

    return make


@pytest.fixture
async def env(make: Callable[..., harbor.AviatoEnvironment]) -> AsyncIterator[harbor.AviatoEnvironment]:
    made = make({"env": {"A": "task"}, "workdir": "/app"})
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)
    await made.stop(delete=True)


async def test_commands(env: harbor.AviatoEnvironment) -> None:
    result = await env.exec("echo $A $B | tr a-z A-Z; pwd; echo no >&2; exit 3", env={"B": "b"})
    assert (result.return_code, result.stdout, result.stderr) == (3, "TASK B\n/app\n", "no\n")
    # No login shell, no rc files: what a command prints is its own.
    await env.exec("printf 'echo noise' >/root/.bashrc; cp /root/.bashrc /root/.bash_profile")
    result = await env.exec("true", cwd="/", user="root")
    assert (result.stdout, result.stderr) == ("", "")
    with env.with_default_user("nobody"):
        assert (await env.exec("id -un")).stdout == "nobody\n"
    with env.with_default_user("agent"), pytest.raises(ValueError, match="no user 'agent'"):
        await env.exec("true")
    with pytest.raises(FileNotFoundError):
        await env.exec("true", cwd="/nowhere")
    assert await env.is_dir("/logs/agent") and await env.is_dir("/tests") and not await env.is_file("/tests")


async def test_a_command_that_takes_too_long_is_not_the_agents_budget(env: harbor.AviatoEnvironment) -> None:
    with pytest.raises(harbor.AviatoCommandTimeoutError) as caught:
        await env.exec("sleep 30", timeout_sec=1)
    assert not isinstance(caught.value, TimeoutError)


async def test_files_go_both_ways(env: harbor.AviatoEnvironment, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "x").write_bytes(b"\xff" * 10)
    (tmp_path / "in" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in" / "run.sh").chmod(0o755)
    await env.upload_dir(tmp_path / "in", "/app/new")
    await env.upload_file(tmp_path / "in" / "run.sh", "/app/other/name.sh")
    assert (await env.exec("/app/new/run.sh; other/name.sh")).stdout == "ran\nran\n"

    out = tmp_path / "out" / "below"
    out.mkdir(parents=True)
    (out / "old").write_text("stays")
    (out / "run.sh").write_text("goes")
    await env.download_dir("/app/new", out)
    assert (out / "deep" / "x").read_bytes() == b"\xff" * 10
    assert (out / "old").read_text() == "stays" and (out / "run.sh").read_text().endswith("echo ran\n")
    await env.download_file("/app/new/deep/x", tmp_path / "made" / "y")
    assert (tmp_path / "made" / "y").read_bytes() == b"\xff" * 10
    await env.download_dir_with_exclusions(source_dir="/app/new", target_dir=tmp_path / "some", exclude=["deep"])
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["run.sh"]
    with pytest.raises(FileNotFoundError):
        await env.download_file("/app/missing", tmp_path / "z")


async def test_a_download_stays_in_its_target(env: harbor.AviatoEnvironment, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    links = f"ln -s {tmp_path}/outside logs/link; ln -s ../../up logs/up"
    await env.exec(f"mkdir -p logs/dir; echo 1 >logs/dir/x; mkfifo logs/fifo; {links}")
    await env.download_dir("/app/logs", target)
    assert [path.name for path in target.iterdir()] == ["dir"]
    (target / "dir" / "x").unlink()
    (target / "dir").rmdir()
    (target / "dir").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        await env.download_dir("/app/logs", target)
    assert not list((tmp_path / "outside").iterdir())


@pytest.mark.parametrize(
    ("task", "ek", "files", "message"),
    [
        ({"docker_image": None}, {}, ("Dockerfile",), "Dockerfile is what this task has.*builds no images"),
        (
            {"docker_image": None},
            {"image": "host"},
            ("Dockerfile", "docker-compose.yaml"),
            "docker-compose.yaml is not supported",
        ),
        ({"gpus": 1}, {}, (), "GPU"),
    ],
)
async def test_what_is_not_there_is_refused_before_the_start(
    make: Any, tmp_path: Path, task: Any, ek: Any, files: Any, message: str
) -> None:
    for name in files:
        (tmp_path / "task" / "environment" / name).write_text("FROM x\n")
    with pytest.raises((ValueError, RuntimeError), match=message):
        make(task, ek)


async def test_a_network_policy_is_kept_or_refused(make: Any) -> None:
    public = NetworkPolicy()
    with pytest.raises(ValueError, match="cannot change network policy"):
        make(network_policy=CLOSED, phase_network_policies=[public])
    ranges = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["10.0.0.0/8"])
    with pytest.raises(ValueError, match="allowlist"):
        make(network_policy=ranges)
    env = make(ek={"without_network": True}, network_policy=public)
    await env.start(force_build=False)
    assert (await env.exec("ls /sys/class/net || true; cat /proc/net/route | tail -n +2")).stdout.strip() in ("", "lo")
    assert (await env.exec("echo $https_proxy")).stdout == "\n"
    await env.stop(delete=True)


LISTED = ["a.example", "*.b.example", "93.184.216.34", "2606:2800::1"]


@pytest.mark.parametrize(
    ("policy", "reaches_others"),
    [
        (NetworkPolicy(), True),
        (NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=LISTED), False),
        (NetworkPolicy(network_mode=NetworkMode.ALLOWLIST), None),
        (CLOSED, None),
    ],
)
async def test_the_network_of_a_trial(make: Any, policy: NetworkPolicy, reaches_others: bool | None) -> None:
    """Which is told by what the proxy says of a private address; it needs no network."""
    ask = "import os, urllib.request as u, urllib.error as e\ntry: u.urlopen('http://10.0.0.1/')\n"
    ask += "except e.HTTPError as error: print(error.reason)\nexcept e.URLError: print('nothing')"
    env = make(network_policy=policy)
    await env.start(force_build=False)
    said = (await env.exec(f'python3 -c "{ask}"')).stdout
    await env.stop(delete=True)
    assert ("allow-list" in said) == (reaches_others is False) and ("may connect to" in said) == (reaches_others is True)
    assert (said == "nothing\n") == (reaches_others is None), said


async def test_an_enforced_limit_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)memory"):
        make({"memory_mb": 512}, config={"memory_enforcement_policy": ResourceMode.LIMIT})
    with pytest.raises(ValueError, match="force_build"):
        await make().start(force_build=True)
    with pytest.raises(RuntimeError, match="not started"):
        await make().exec("true")
    assert make(ek={"unheard_of": 1})  # Harbor hands over what other environments take.


async def test_a_lost_sandbox(make_server: Callable[..., RunningServer], make: Any) -> None:
    own = make_server()
    env = make(ek={"base_url": own.url})
    await env.start(force_build=False)
    for pid in supervisors(own.pid):
        os.kill(pid, signal.SIGKILL)
    for use in (env.exec("true"), env.download_dir("/logs", "/tmp/nothing"), env.upload_file(__file__, "/x")):
        with pytest.raises(harbor.AviatoInfrastructureError):
            await use
    await env.stop(delete=True)


@pytest.mark.parametrize("kind", [exceptions.SandboxRequestTimeoutError, exceptions.SandboxUnavailableError])
async def test_names_are_distinct_and_retried(kind: type[exceptions.SandboxError]) -> None:
    found = harbor._translated(kind("late"), "")
    assert type(found) is harbor.AviatoInfrastructureError and not isinstance(found, TimeoutError)
    slow = harbor._translated(exceptions.SandboxFileError("slow", reason="timeout"), "x")
    assert type(slow) is harbor.AviatoTaskError
    ended = harbor._translated(exceptions.SandboxTerminatedError("over", reason="lifetime"), "")
    assert type(ended) is harbor.AviatoTaskError
    names = {
        one.__name__ for one in (harbor.AviatoInfrastructureError, harbor.AviatoTaskError, harbor.AviatoCommandTimeoutError)
    }
    assert not names & (RetryConfig().exclude_exceptions or set())


async def test_kept_without_delete(make: Any, server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    env = make()
    await env.start(force_build=False)
    await env.stop(delete=False)
    assert "is kept until this process ends" in caplog.text
    [left] = await Sandbox.list(tags=["harbor", "task__1__env"], base_url=server.url)
    await left.stop()


# -- whole trials

TASK = """
schema_version = "1.0"
[environment]
docker_image = "host"
network_mode = "no-network"
[verifier]
timeout_sec = 60
[agent]
timeout_sec = 60
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "double"
    for name in ("environment", "solution", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(TASK)
    (folder / "instruction.md").write_text("Write double(n) into /workspace/solution.py.\n")
    (folder / "solution" / "solve.sh").write_text("#!/bin/bash\necho 'def double(n): return 2 * n' >/workspace/solution.py\n")
    check = "python3 -c 'from solution import double; assert double(2) == 4' && r=1 || r=0; echo $r >/logs/verifier/reward.txt"
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\ncd /workspace\n{check}\n")
    return folder


@contextmanager
def trial(task: Path, server: RunningServer) -> Iterator[subprocess.Popen[str]]:
    command = [str(Path(sys.executable).parent / "harbor"), "run", "-p", str(task), "-a", "oracle", "-e", IMPORT_PATH]
    command += ["--ek", f"base_url={server.url}", "-o", str(task.parent / "jobs"), "-q", "-y"]
    environment = {**os.environ, "HOME": str(task.parent), "HARBOR_TELEMETRY": "0"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
        output = process.communicate(timeout=250)[0]
        assert process.returncode == 0, output
    finally:
        process.kill()
        process.wait()


def result(task: Path) -> Any:
    [path] = (task.parent / "jobs").glob("*/*/result.json")
    return json.loads(path.read_text())


def test_a_trial(task: Path, server: RunningServer) -> None:
    with trial(task, server):
        pass
    found = result(task)
    assert found["exception_info"] is None
    assert found["verifier_result"]["rewards"] == {"reward": 1.0}
    assert not Sandbox.list(tags=["harbor"], base_url=server.url).result()


def test_a_lost_sandbox_is_no_reward(task: Path, make_server: Callable[..., RunningServer]) -> None:
    own = make_server()
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\nsleep 60\n")
    with trial(task, own):
        deadline = time.monotonic() + 40
        while not (running := supervisors(own.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        for pid in running:
            os.kill(pid, signal.SIGKILL)
    found = result(task)
    assert found["exception_info"]["exception_type"] == "AviatoInfrastructureError"
    assert found["verifier_result"] is None
