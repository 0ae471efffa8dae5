"""The sandbox environment under Inspect: what its contract asks for beside the self check, and whole evaluations."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: pip install -e '.[inspect]'")

from inspect_ai import Task
from inspect_ai import eval as evaluate_task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, execute_tools
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.tool import ToolCall, bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size, override_max_read_file_size

from aviato import Sandbox, exceptions
from aviato.integrations.inspect_ai import AviatoSandboxConfig, AviatoSandboxEnvironment, _translated
from tests.conftest import RunningServer
from tests.rl.machine import supervisors

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(server: RunningServer) -> AviatoSandboxConfig:
    return AviatoSandboxConfig(base_url=server.url)


@pytest.fixture
async def env(config: AviatoSandboxConfig) -> AsyncIterator[AviatoSandboxEnvironment]:
    made = await AviatoSandboxEnvironment.sample_init("traps", config, {})
    assert list(made) == ["default"]
    yield made["default"].as_type(AviatoSandboxEnvironment)
    await AviatoSandboxEnvironment.sample_cleanup("traps", config, made, interrupted=True)


async def test_a_missing_program_is_a_result(env: AviatoSandboxEnvironment) -> None:
    result = await env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    # So is a script of which somebody else says the same.
    result = await env.exec(["sh", "-c", "/etc/passwd; exit 126"])
    assert result.returncode == 126


@pytest.mark.parametrize(
    ("mode", "said"), [("internet", "no address that"), (["a.example"], "the allow-list"), ("none", "unreachable")]
)
async def test_a_way_to_the_network(server: RunningServer, mode: Any, said: str) -> None:
    config = AviatoSandboxConfig.model_validate({"base_url": server.url, "egress_mode": mode, "ports": [8000]})
    made = await AviatoSandboxEnvironment.sample_init("network", config, {})
    ask = "import urllib.request as u\ntry: u.urlopen('http://10.0.0.1/')\nexcept OSError as error: print(error)"
    assert said in (await made["default"].exec(["python3", "-c", ask])).stdout
    await AviatoSandboxEnvironment.sample_cleanup("network", config, made, interrupted=False)
    with pytest.raises(exceptions.AviatoValidationError, match="egress_mode"):
        await AviatoSandboxEnvironment.sample_init("network", AviatoSandboxConfig(egress_mode=["http://a.example"]), {})


@pytest.mark.parametrize("retry", [True, False])
async def test_a_command_that_takes_too_long_has_run_once(env: AviatoSandboxEnvironment, retry: bool) -> None:
    with pytest.raises(TimeoutError) as caught:
        await env.exec(["sh", "-c", "echo begun; echo once >>count; sleep 30"], timeout=1, timeout_retry=retry)
    assert type(caught.value) is TimeoutError
    assert caught.value.truncated_output == "begun\n"  # type: ignore[attr-defined]
    assert await env.read_file("count") == "once\n"


async def test_too_much_output_is_cut_in_sight(env: AviatoSandboxEnvironment) -> None:
    with override_max_exec_output_size(1000):
        result = await env.exec(["python3", "-c", "print('a' * 5000, end='z')"])
    assert "\n[… 4001 bytes left out …]\n" in result.stdout
    assert result.stdout.endswith("az") and len(result.stdout) < 1100


async def test_a_read_over_the_limit_fetches_no_more(env: AviatoSandboxEnvironment) -> None:
    await env.exec(["truncate", "-s", "3G", "large"])
    with override_max_read_file_size(1 << 20), pytest.raises(OutputLimitExceededError, match="limit of 1 MiB"):
        await env.read_file("large", text=False)


async def test_newlines_stay(env: AviatoSandboxEnvironment) -> None:
    await env.write_file("lines", "a\r\nb\rc\n")
    assert await env.read_file("lines") == "a\r\nb\rc\n"


async def test_nothing_of_the_image_stands_in_for_a_wrapper(env: AviatoSandboxEnvironment) -> None:
    for name in ("timeout", "env", "sh", "bash", "mkdir", "tee", "cat", "su", "runuser"):
        await env.write_file(f"bin/{name}", "#!/bin/sh\ntouch /workspace/hijacked\n")
    await env.exec(["/bin/sh", "-c", "chmod +x bin/*"])
    result = await env.exec(["/bin/echo", "mine"], env={"PATH": "/workspace/bin", "A": "$B"}, user="root", timeout=10)
    assert result.stdout == "mine\n"
    await env.write_file("deep/file", "x")
    await env.read_file("deep/file")
    with pytest.raises(FileNotFoundError):
        await env.read_file("hijacked")


async def test_a_directory_of_the_task(server: RunningServer) -> None:
    config = AviatoSandboxConfig(base_url=server.url, working_dir="/data/task", environment_variables={"A": "1"}, ports=[8000])
    made = await AviatoSandboxEnvironment.sample_init("t" * 300, config, {})
    env = made["default"].as_type(AviatoSandboxEnvironment)
    try:
        await env.write_file("sub/x", "here")
        assert (await env.exec(["sh", "-c", "pwd; cat x; echo $A"], cwd="sub")).stdout == "/data/task/sub\nhere1\n"
        connection = await env.connection()
        assert connection.command == f"aviato sh --base-url {server.url} {env.sandbox.sandbox_id}"
        assert connection.ports is not None and connection.ports[0].container_port == 8000
    finally:
        await env.sample_cleanup("t", config, made, interrupted=False)
    with pytest.raises(ConnectionError):
        await env.connection()


async def test_users(env: AviatoSandboxEnvironment) -> None:
    assert (await env.exec(["id", "-u"], user="root")).stdout == "0\n"
    assert (await env.exec(["id", "-un"], user="nobody")).stdout == "nobody\n"
    with pytest.raises(SandboxUserUnsupportedError, match="no user 'alice'"):
        await env.exec(["id"], user="alice")


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("missing", FileNotFoundError),
        ("/etc/passwd/below", FileNotFoundError),
        ("/tmp", IsADirectoryError),
        ("/dev/zero", PermissionError),
        ("x" * 300, OSError),
        ("a\0b", ValueError),
    ],
)
async def test_files_that_cannot_be_read(env: AviatoSandboxEnvironment, file: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        await env.read_file(file)
    assert type(caught.value) is error
    # By these words Inspect knows that the model is to be told; any other ValueError ends the sample.
    assert error is not ValueError or "embedded null byte" in str(caught.value)


async def test_what_the_command_line_cannot_hold(env: AviatoSandboxEnvironment) -> None:
    with pytest.raises(ValueError, match="embedded null byte"):
        await env.exec(["echo", "a\0b"])
    with pytest.raises(FileNotFoundError) as caught:
        await env.exec(["pwd"], cwd="nowhere")
    assert caught.value.filename == "nowhere"
    with pytest.raises(PermissionError):
        await env.write_file("/usr/x", "")


async def test_a_sandbox_that_is_gone(env: AviatoSandboxEnvironment, server: RunningServer) -> None:
    await Sandbox.delete(env.sandbox.sandbox_id, base_url=server.url)
    for call in (env.exec(["true"]), env.read_file("x"), env.write_file("x", "")):
        with pytest.raises(SandboxUnavailableError):
            await call


@pytest.mark.parametrize("kind", [exceptions.SandboxRequestTimeoutError, exceptions.SandboxUnavailableError])
async def test_the_machines_failure_is_not_the_models_timeout(kind: type[exceptions.SandboxError]) -> None:
    assert type(_translated(kind("late"), "")) is SandboxUnavailableError


# -- whole evaluations


@scorer(metrics=[accuracy()])
def answer_is_there() -> Any:
    async def score(state: Any, target: Any) -> Score:
        result = await sandbox().exec(["cat", "answer"])
        return Score(value=CORRECT if result.stdout.strip() == target.text else INCORRECT)

    return score


@scorer(metrics=[accuracy()])
def killed_before_it_is_scored(server_pid: int) -> Any:
    async def score(state: Any, target: Any) -> Score:
        for pid in supervisors(server_pid):
            os.kill(pid, signal.SIGKILL)
        return await answer_is_there()(state, target)  # type: ignore[no-any-return]

    return score


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    yield str(tmp_path / "logs")


@solver
def scripted(command: str) -> Any:
    """What a model would do: counting the tokens of a real one's replies needs a download."""

    async def solve(state: Any, generate: Any) -> Any:
        call = ToolCall(id="1", function="bash", arguments={"command": command})
        state.messages.append(ChatMessageAssistant(content="", tool_calls=[call]))
        found, _ = await execute_tools(state.messages, [bash(timeout=20)])
        state.messages.extend(found)
        return state

    return solve


def evaluate(config: AviatoSandboxConfig, logs: str, scoring: Any, command: str = "echo 42 >answer") -> Any:
    task = Task(
        dataset=[Sample(input="Write 42 into the file answer.", target="42")],
        solver=scripted(command),
        scorer=scoring,
        sandbox=SandboxEnvironmentSpec("aviato", config),
    )
    log = evaluate_task(task, model="mockllm/model", log_dir=logs, display="none", fail_on_error=False)[0]
    assert log.samples is not None, log.error
    return log.samples[0]


@pytest.mark.filterwarnings("ignore")  # of Inspect and its libraries
@pytest.mark.skipif(not entry_points(group="inspect_ai", name="aviato"), reason="aviato is on the path but not installed")
def test_an_evaluation(config: AviatoSandboxConfig, logs: str, server: RunningServer) -> None:
    right = evaluate(config, logs, answer_is_there())
    assert right.error is None and right.scores["answer_is_there"].value == CORRECT
    wrong = evaluate(config, logs, answer_is_there(), "echo 41 >answer; no-such-program")
    assert wrong.error is None and wrong.scores["answer_is_there"].value == INCORRECT
    assert not Sandbox.list(tags=["inspect_ai"], base_url=server.url).result()


@pytest.mark.filterwarnings("ignore")  # of Inspect and its libraries
@pytest.mark.skipif(not entry_points(group="inspect_ai", name="aviato"), reason="aviato is on the path but not installed")
def test_a_lost_sandbox_is_no_score(make_server: Callable[..., RunningServer], logs: str) -> None:
    own = make_server()
    sample = evaluate(AviatoSandboxConfig(base_url=own.url), logs, killed_before_it_is_scored(own.pid))
    assert not sample.scores
    assert "SandboxUnavailableError" in sample.error.traceback
