"""The ART example with ART: rollouts against a stand-in for the inference server, real sandboxes, and a tiny model that trains.

ART needs an environment of its own: `AVIATO_TEST_ART_PYTHON` names its interpreter, which has aviato's dependencies too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.guides import blocks
from tests.guides.blocks import SEEDS
from tests.integrations import offline_run
from tests.openai_server import OpenAIServer, Reply, Request, broken_tool, error, text, tool
from tests.rl.machine import supervisors

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "rl_training" / "art" / "train.py"
ON_CPU = ROOT / "tests" / "examples" / "art_on_cpu.py"
SAMPLE = [
    json.loads(line) for line in (ROOT / "examples" / "rl_training" / "data" / "mbpp_sample.jsonl").read_text().splitlines()
]


def interpreter() -> str | None:
    """One that has ART, or None."""
    candidates = [
        os.environ.get("AVIATO_TEST_ART_PYTHON", ""),
        str(ROOT.parent / "venv-art" / "bin" / "python"),
        sys.executable,
    ]
    find = "import importlib.util as u, sys; sys.exit(not (u.find_spec('art') and u.find_spec('torch')))"
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK) and subprocess.run([candidate, "-c", find], check=False).returncode == 0:
            return candidate
    return None


PYTHON = interpreter()
pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="openpipe-art is not installed (AVIATO_TEST_ART_PYTHON)"),
    pytest.mark.slow,
]


class Teacher:
    """Plays the inference model: it knows the solutions, and counts the rollouts of each problem.

    `play(problem's place, rollout's place, turn, solution)` gives a reply; every turn of a rollout reaches it by its first
    message's text and by its own earlier replies, so a rollout's place is kept in the code that it writes.
    """

    def __init__(self, play: Any) -> None:
        self._play = play
        self._begun: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        place = next(n for n, row in enumerate(SAMPLE) if request.prompt.startswith(row["text"]))
        if request.turn == 0:
            with self._lock:
                rollout = self._begun[place] = self._begun.get(place, -1) + 1
        else:
            rollout = int(re.findall(r"rollout (\d+)", json.dumps(request.conversation))[-1])
        mark = f"# rollout {rollout}\n"
        return self._play(place, rollout, request.turn, mark, SAMPLE[place]["code"])


def good_and_bad(place: int, rollout: int, turn: int, mark: str, solution: str) -> Reply:
    """Each problem's first rollout finds out what is wrong and submits what is right, its second one does not."""
    if turn == 0:
        return tool("execute_code", code=f"{mark}print('tried'); 1 / 0")
    return tool("submit_solution", code=mark + (solution if rollout % 2 == 0 else "pass"))


def environment(server: Any, api: OpenAIServer | None, **more: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TINKER_", "ART_"))}
    return {
        **mine,
        "AVIATO_BASE_URL": server.url,
        "AVIATO_IMAGE_FALLBACK": "nearest",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **({"OPENAI_API_KEY": str(api.key)} if api is not None else {}),
        **more,
    }


def run(program: list[str], env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(PYTHON), *program, "--problems", "sample"]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def train(server: Any, api: OpenAIServer, folder: Path, *flags: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run([str(ON_CPU), str(folder), "--base-url", api.url, *flags], environment(server, api, **more), folder)


def groups_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]


def masked(line: str) -> str:
    line = re.sub(r"\d[\d.]*(e-?\d+)?", "N", line.strip())
    return re.sub(r"^(Base model|Run name): .*", r"\1: X", line).replace("-N", "N")


@pytest.mark.skipif(not SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)")
def test_a_step_as_the_guide_shows_it(server: Any, tmp_path: Path) -> None:
    with OpenAIServer(Teacher(good_and_bad)) as api:
        done = train(server, api, tmp_path, "--backend", "tinker", "--num-steps", "1", ART_TINKER_API_KEY="tml-secret")
        assert done.returncode == 0, done.stderr
        assert api.refused == [] and {request.path for request in api.requests} == {"/v1/responses"}
        assert {request.body["model"] for request in api.requests} == {"gpt-5.1-codex-mini"}

    guide = (
        (SEEDS / "rl-guide-b-with-wandb.txt").read_text().split("ART Training with Aviato Sandboxes\n")[1].split("...\n```")[0]
    )
    expected = ["ART Training with Aviato Sandboxes", *guide.replace("Steps: 5", "Steps: 1").splitlines()]
    [bar] = [line for line in expected if line.startswith("step 1: ")]
    expected.remove(bar)
    printed = [line for line in done.stdout.splitlines() if not line.startswith("Packed ")]  # ART's own word
    assert [masked(line) for line in printed] == [masked(line) for line in expected]
    assert [line for line in printed if ": " in line][:6] == [
        "Backend: tinker",
        "Model: gpt-5.1-codex-mini",
        f"Base model: {tmp_path / 'model'}",
        "Problems: 10",
        "Steps: 1",
        "Trajectories per problem: 2",
    ]
    assert "Collected 20 trajectories, avg reward: 0.50" in printed
    shown = re.search(r"step 1: 100%\|█+\| (\d+)/\1 \[\d\d:\d\d<00:00", done.stderr)
    assert shown is not None and masked(shown[0] + "]") == masked(bar)
    assert "tml-secret" not in done.stdout + done.stderr

    groups = groups_of(tmp_path)
    assert len(groups) == 10 and all(sorted(t["reward"] for t in group["trajectories"]) == [0.0, 1.0] for group in groups)
    for trajectory in (t for group in groups for t in group["trajectories"]):
        messages = trajectory["messages_and_choices"]
        assert [message["role"] for message in messages] == ["system", "user", *["assistant", "tool"] * 2]
        assert messages[2]["content"].startswith('<tool_call>\n{"name": "execute_code", ')
        assert "ZeroDivisionError" in messages[3]["content"] and "tried" in messages[3]["content"]
        right = trajectory["reward"] == 1.0
        assert (messages[5]["content"] == "All tests passed.") == right
        assert trajectory["metadata"]["verdict"] == ("passed" if right else "failed")
        assert [item["function"]["name"] for item in trajectory["tools"]] == ["execute_code", "submit_solution"]
    assert json.loads((tmp_path / "options.json").read_text())["learning_rate"] == 1e-5
    assert supervisors(server.pid) == set()


@pytest.mark.skipif(not SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)")
def test_the_guide_s_blocks_run_unchanged(server: Any, tmp_path: Path) -> None:
    marks = {
        "train": "import art\n",
        "trajectory": "trajectory = art.Trajectory(",
        "schema": "ROLLOUT_TOOLS: list",
        "tags": '"art-training"',
    }
    section = blocks.renamed((SEEDS / blocks.FENCED["b"]).read_text()).split("## Multi-step Rollouts with ART")[-1]
    fenced = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    found = {name: next(block for block in fenced if mark in block) for name, mark in marks.items()}
    assert len(fenced) == len(found)
    done = subprocess.run(
        [str(PYTHON), str(ON_CPU.with_name("art_guide_blocks.py")), str(tmp_path)],
        input=json.dumps(found),
        env=environment(server, None),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ran train trajectory schema tags"


def muddled(place: int, rollout: int, turn: int, mark: str, solution: str) -> Reply:
    """A model that gets its calls wrong first; one rollout in two ends without a submission."""
    replies = [
        broken_tool("execute_code", '{"code": "' + mark.strip()),
        tool("bash", command="ls"),
        tool("submit_solution"),
        Reply(
            tool_calls=[*tool("execute_code", code="print(2)").tool_calls, *tool("submit_solution", code=solution).tool_calls]
        ),
    ]
    return text("I would rather not.") if rollout % 2 and turn == 3 else replies[turn]


def test_a_server_with_chat_alone_a_muddled_model_and_few_places(make_server: Any, tmp_path: Path) -> None:
    """Six rollouts side by side and two places: each gives its own back before it asks for the one that grades."""
    server = make_server(max_sandboxes=2)
    with OpenAIServer(Teacher(muddled), responses=False) as api:
        flags = ["--num-steps", "2", "--num-problems", "3", "--model", "other", "--learning-rate", "0.01"]
        done = train(server, api, tmp_path, *flags)
        assert done.returncode == 0, done.stderr
        assert api.refused == [] and {request.path for request in api.requests} == {"/v1/chat/completions"}
        assert {request.body["model"] for request in api.requests} == {"other"}
    assert done.stdout.count("Collected 6 trajectories, avg reward: 0.50") == 2
    checkpoints = tmp_path / "art" / "aviato-mbpp" / "models" / "train-001" / "checkpoints"
    weights = [(checkpoints / step / "model.safetensors").read_bytes() for step in ("0000", "0001", "0002")]
    assert len(set(weights)) == 3
    for group in groups_of(tmp_path):
        assert sorted(t["reward"] for t in group["trajectories"]) == [0.0, 1.0] and group["exceptions"] == []
        for trajectory in group["trajectories"]:
            answers = [message["content"] for message in trajectory["messages_and_choices"] if message["role"] == "tool"]
            assert [re.sub(r" *[(.:{].*", "", answer, flags=re.DOTALL) for answer in answers[:3]] == [
                "Error",
                "Error",
                "Error",
            ], answers
            assert answers[3:] == (["exit code: 0\n2\n", "All tests passed."] if trajectory["reward"] else [])
            assert trajectory["metadata"]["verdict"] == ("passed" if trajectory["reward"] else "none")
    assert json.loads((tmp_path / "options.json").read_text())["learning_rate"] == 0.01


def never_done(place: int, rollout: int, turn: int, mark: str, solution: str) -> Reply:
    """One rollout in two tries out for ever."""
    return tool("execute_code", code=mark) if rollout % 2 else tool("submit_solution", code=solution)


def test_wandb_gets_the_rewards_and_the_sandboxes_metrics(server: Any, tmp_path: Path) -> None:
    """ART begins the run, and the session's numbers of each step are in it."""
    pytest.importorskip("wandb", reason="wandb, which reads back what it wrote, is not installed: pip install -e '.[wandb]'")
    offline = {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    with OpenAIServer(Teacher(never_done)) as api:
        done = train(server, api, tmp_path, "--num-steps", "2", "--num-problems", "2", **offline)
    assert done.returncode == 0, done.stderr
    trajectories = [t for group in groups_of(tmp_path) for t in group["trajectories"]]
    assert sorted((t["reward"], t["metrics"]["turns"], t["metadata"]["verdict"]) for t in trajectories) == (
        [(0.0, 10, "none")] * 4 + [(1.0, 1, "passed")] * 4
    )
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    rows = offline_run.rows(folder / "files")
    assert [row["train/reward"] for row in rows if "train/reward" in row] == [0.5, 0.5]
    ours = [row for row in rows if "aviato/executions" in row]
    # Two rollouts of ten programs, two gradings, and the check before the first step.
    assert [(row["aviato/step"], row["aviato/executions"], row["aviato/exec_errors"]) for row in ours] == [
        (1, 23, 0),
        (2, 22, 0),
    ]
    assert [row["aviato/max_execs_per_sandbox"] for row in ours] == [10, 10]


def test_what_broke_has_no_reward(server: Any, tmp_path: Path) -> None:
    """Of three pairs of rollouts, one loses its sandbox and one its inference server: neither becomes a 0."""

    def play(place: int, rollout: int, turn: int, mark: str, solution: str) -> Reply:
        if rollout == 0 and place == 0 and turn == 0:
            return tool("execute_code", code=f"{mark}import time; time.sleep(60)")
        if rollout == 0 and place == 1 and turn == 1:
            return error(500)
        return good_and_bad(place, rollout, turn, mark, solution if place == 2 or rollout == 1 else "")

    def kill_the_one_that_is_left() -> None:
        """The sleeper is alone once the others have been graded."""
        alone: set[int] = set()
        since = time.monotonic()
        while not ended.wait(0.05):
            found = supervisors(server.pid) if api.requests else set()
            if found != alone or len(found) != 1:
                alone, since = found, time.monotonic()
            elif time.monotonic() - since > 2:
                os.kill(found.pop(), signal.SIGKILL)
                return

    ended = threading.Event()
    with OpenAIServer(Teacher(play)) as api:
        killer = threading.Thread(target=kill_the_one_that_is_left)
        killer.start()
        try:
            done = train(server, api, tmp_path, "--num-steps", "1", "--num-problems", "3")
        finally:
            ended.set()
            killer.join()
    assert done.returncode == 0, done.stderr
    assert "2 rollouts broke and count for nothing" in done.stdout
    assert "Collected 4 trajectories" in done.stdout
    kinds = {}
    for group in groups_of(tmp_path):
        place = group["trajectories"][0]["metadata"]["task_id"] - 1001
        kinds[place] = (
            [t["reward"] for t in group["trajectories"]],
            [re.sub(r".*\.|'>", "", exception["type"]) for exception in group["exceptions"]],
        )
    assert sorted(kinds[2][0]) == [0.0, 1.0] and kinds[2][1] == []
    assert kinds[0][0] == [0.0] and len(kinds[0][1]) == 1 and kinds[0][1][0].startswith("Sandbox")
    assert kinds[1] == ([0.0], ["InternalServerError"])


def test_a_run_that_cannot_work_stops(server: Any, tmp_path: Path) -> None:
    with OpenAIServer(Teacher(good_and_bad)) as api:
        done = train(server, api, tmp_path, "--num-problems", "2", OPENAI_API_KEY="sk-wrong")
    assert done.returncode == 1
    assert "Stopped: the inference server failed: Error code: 401" in done.stderr
    assert "reward" not in done.stdout and not (tmp_path / "groups.jsonl").exists()
    assert supervisors(server.pid) == set()


def cached_base_model(folder: Path) -> str:
    """A cache of the hub's libraries that holds a tiny model by the name of the base model."""
    program = f"import sys; sys.argv[1:] = [{str(folder)!r}]; sys.path.insert(0, {str(ON_CPU.parent)!r}); import art_on_cpu"
    subprocess.run([str(PYTHON), "-c", program], check=True, timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT)})
    cached = folder / "hf" / "hub" / "models--Qwen--Qwen3-8B"
    (cached / "snapshots").mkdir(parents=True)
    (folder / "model").rename(cached / "snapshots" / "0")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0")
    return str(folder / "hf")


def test_dry_run(server: Any, tmp_path: Path) -> None:
    """With ART's own backend; by its path, so that this folder does not stand in for the package."""
    with OpenAIServer([text("")]) as api:
        env = environment(server, api, ART_TINKER_API_KEY="tml-secret", HF_HOME=cached_base_model(tmp_path))
        done = run([str(EXAMPLE), "--dry-run", "--backend", "tinker", "--base-url", api.url], env, tmp_path)
        assert api.requests == []
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "ART Training with Aviato Sandboxes" and set(lines[1]) == {"="}
    assert {"Backend: tinker", "Base model: Qwen/Qwen3-8B", "Project: aviato-mbpp", "Run name: train-001"} < set(lines)
    assert lines[-2].startswith("Dry run: ") and "Registering model with backend..." not in lines
    assert "tml-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        # What the local backend trains with is not in requirements.txt, and no tests' machine has a GPU.
        (["--backend", "local"], ["--backend local needs", "the package peft", "art/README.md", "a GPU"]),
        (["--backend", "tinker"], ["The tokenizer of --base-model Qwen/Qwen3-8B", "a folder that holds the model"]),
        (["--backend", "tinker", "--problems", "hub"], ["mbpp cannot be loaded", "--problems sample"]),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry run", "run"])
def test_what_a_run_lacks_is_said_before_anything_is_made(
    server: Any, tmp_path: Path, flags: list[str], words: list[str], dry: list[str]
) -> None:
    with OpenAIServer([text("")]) as api:
        env = environment(server, api, ART_TINKER_API_KEY="tml-secret", HF_HOME=str(tmp_path / "hf"))
        command = [str(PYTHON), str(EXAMPLE), "--problems", "sample", *flags, *dry, "--base-url", api.url]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert api.requests == []
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert "Creating" not in done.stdout


@pytest.mark.parametrize(("address", "key"), [("http://127.0.0.1:9/v1", None), (None, "sk-wrong")])
def test_a_dry_run_asks_the_inference_server(server: Any, tmp_path: Path, address: str | None, key: str | None) -> None:
    with OpenAIServer([text("")]) as api:
        more = {"OPENAI_API_KEY": key} if key else {}
        done = train(server, api, tmp_path, "--dry-run", "--base-url", address or api.url, **more)
    assert done.returncode == 1
    assert f"the inference server at {address or api.url}" in done.stderr and "--base-url" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_no_sandbox(server: Any, tmp_path: Path, number: signal.Signals) -> None:
    with OpenAIServer(lambda request: tool("execute_code", code="while True: pass")) as api:
        command = [
            str(PYTHON),
            str(ON_CPU),
            str(tmp_path),
            "--base-url",
            api.url,
            "--problems",
            "sample",
            "--num-problems",
            "2",
            "--trajectories-per-problem",
            "4",
        ]
        with (tmp_path / "stderr").open("wb") as stderr:
            program = subprocess.Popen(
                command, env=environment(server, api), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr
            )
            try:
                deadline = time.monotonic() + 100
                while len(supervisors(server.pid)) < 8 and time.monotonic() < deadline:
                    assert program.poll() is None, (tmp_path / "stderr").read_text()
                    time.sleep(0.05)
                program.send_signal(number)
                assert program.wait(30) == (1 if number == signal.SIGINT else -number)
            finally:
                program.kill()
                program.wait()
    while supervisors(server.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert supervisors(server.pid) == set()
    if number == signal.SIGINT:
        assert (tmp_path / "stderr").read_text().strip().endswith("Interrupted; the sandboxes are stopped.")
