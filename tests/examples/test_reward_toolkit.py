"""The reward toolkit, as a user runs it: real processes, real sandboxes, and a model server that plays a script."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.guides import blocks
from tests.integrations import offline_run
from tests.openai_server import OpenAIServer, Reply, Request, broken_tool, error, malformed, text, tool

pytest.importorskip("openai")

RL_TRAINING = Path(__file__).resolve().parents[2] / "examples" / "rl_training"
TRAIN = RL_TRAINING / "reward_toolkit" / "train.py"
SAMPLE = RL_TRAINING / "data" / "mbpp_sample.jsonl"
MBPP = blocks.SEEDS.parent / "data" / "mbpp.jsonl"
README = "art-readme-a-reward-toolkit.txt"
NOT_TRAINED = "WARNING: Nothing is trained: this server loads no adapters. The README says how to start one that does."
needs_seeds = pytest.mark.skipif(not (blocks.SEEDS / README).exists(), reason="the guides are not on this machine")


def rows(path: Path = SAMPLE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def problem_of(request: Request, problems: dict[str, dict[str, Any]]) -> dict[str, Any]:
    asked = next(message["content"] for message in request.conversation if message["role"] == "user")
    return problems[asked.split("\n\nYour code has to pass")[0]]


def solver(path: Path = SAMPLE, fails: Callable[[dict[str, Any], int], bool] = lambda row, turn: False) -> Callable[..., Reply]:
    """A model that knows the reference solutions, and fails where it is told to."""
    problems = {row["text"]: row for row in rows(path)}

    def play(request: Request) -> Reply:
        row = problem_of(request, problems)
        return text(
            "```python\nraise ValueError('wrong')\n```" if fails(row, request.turn) else f"```python\n{row['code']}\n```"
        )

    return play


def environment(server: Any, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "WANDB_"))}
    return {**kept, "AVIATO_BASE_URL": server.url, **more}


def run(command: list[str], env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False, **options)


def train(
    api: OpenAIServer, server: Any, *flags: str, data: Path | None = SAMPLE, **more: str
) -> subprocess.CompletedProcess[str]:
    given = [] if data is None else ["--dataset-file", str(data)]
    return run([sys.executable, str(TRAIN), "--base-url", api.url, *given, *flags], environment(server, **more))


def scripted(server: Any, api: OpenAIServer, body: str) -> Any:
    """What a program that imports the toolkit prints as JSON."""
    program = "import asyncio, json, sys\nimport reward_toolkit as rt\nfrom aviato import Session\n" + body
    env = environment(server, PYTHONPATH=os.pathsep.join([str(RL_TRAINING), os.environ.get("PYTHONPATH", "")]))
    done = run([sys.executable, "-c", program, api.url], env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ROLLOUTS = """
async def main():
    async with Session() as session:
        model = rt.VLLMModel("m", sys.argv[1])
        problems = rt.load_problems(path=%r, limit=%d)
        found = await asyncio.gather(*(rt.rollout(model, problem, session) for problem in problems))
        print(json.dumps([[t.reward, t.attempts, t.error, t.messages()] for t in found]))
asyncio.run(main())
"""


def rollouts(server: Any, api: OpenAIServer, limit: int = 1) -> list[list[Any]]:
    """reward, attempts, error and messages of the first problems' rollouts."""
    found: list[list[Any]] = scripted(server, api, ROLLOUTS % (str(SAMPLE), limit))
    return found


def seed_block(heading: str, language: str = "") -> list[str]:
    section = blocks.renamed((blocks.SEEDS / README).read_text(encoding="utf-8")).split(f"\n## {heading}\n")[1]
    return section.split(f"```{language}\n")[1].split("```")[0].splitlines()


@needs_seeds
def test_output_is_the_readme_s_line_by_line(server: Any, tmp_path: Path) -> None:
    passes = [2, 3, 2, 2, 2, 2, 2, 2, 2, 3]  # of the four problems of each step: the README's first three, and its sum
    order = [row["task_id"] for row in rows(MBPP)]

    def fails(row: dict[str, Any], turn: int) -> bool:
        step, place = divmod(order.index(row["task_id"]), 4)
        return place >= passes[step]

    key = {"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    with OpenAIServer(solver(MBPP, fails), key=None) as api:
        done = train(api, server, "--max-attempts", "1", data=MBPP, **key)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [NOT_TRAINED]  # and nothing else; the stand-in loads no adapters
    printed = [re.sub(r"127\.0\.0\.1:\d+", "localhost:8000", line) for line in done.stdout.splitlines()]

    def masked(line: str) -> str:
        line = re.sub(r"\(job: [0-9a-f]{8}\)", "(job: X)", re.sub(r"time=[\d.]+s", "time=T", line))
        return re.sub(r"W&B run: \S+", "W&B run: U", line)

    expected = [masked(line) for line in seed_block("Expected Output")]
    rest = next(n for n, line in enumerate(expected) if line.strip() == "...")
    shown = [masked(line) for line in printed]
    assert [*shown[:rest], "  ...", *shown[rest + 7 :]] == expected
    step = re.compile(r"  Step \d: reward=0\.\d{3}, success=\d\d\.0% \(\d/4\), time=T")
    assert all(step.fullmatch(line) for line in shown[rest : rest + 7])
    [files] = tmp_path.glob("wandb/offline-run-*/files")
    logged = [row for row in offline_run.rows(files) if "train/reward" in row]
    assert [(row["_step"], row["train/reward"], row["train/attempts"]) for row in logged] == [
        (step, passed / 4, 1.0) for step, passed in enumerate(passes)
    ]
    assert sum(row.get("aviato/sandboxes_created", 0) for row in offline_run.rows(files)) == 40


@needs_seeds
def test_flags_are_the_readme_s(server: Any) -> None:
    table = (blocks.SEEDS / README).read_text(encoding="utf-8").split("## Configuration Options")[1].split("\n## ")[0]
    flags = dict(re.findall(r"^\| `(--[a-z-]+)` \| `(.+?)` \|", blocks.renamed(table), re.MULTILINE))
    assert len(flags) == 10
    helped = run([sys.executable, str(TRAIN), "--help"], environment(server)).stdout
    entries = dict(re.findall(r"^  (--[a-z-]+)(.*?)(?=^  --|\Z)", helped, re.MULTILINE | re.DOTALL))
    for flag, default in flags.items():
        assert flag in entries
        assert default == "false" or default in " ".join(entries[flag].split()).replace("- ", "-"), flag


@needs_seeds
def test_the_readme_has_the_links_and_fields_of_the_old_one() -> None:
    old, new = (path.read_text(encoding="utf-8") for path in (blocks.SEEDS / README, TRAIN.with_name("README.md")))
    assert set(re.findall(r"\]\((\S+)\)", old)) <= set(re.findall(r"\]\((\S+)\)", new))
    for field in ("task_id", "prompt", "test_cases", "messages_and_choices", "reward", "art-rollout"):
        assert field in new
    assert "examples/rl_training/art/" in new  # where it was
    assert not re.search(r"pip install (?!-e \.|-r )\S*aviato", new)


def test_the_model_sees_why_it_failed_and_tries_again(server: Any) -> None:
    with OpenAIServer(solver(fails=lambda row, turn: turn < row["task_id"] % 4), key=None) as api:
        found = rollouts(server, api, 12)
    # 1001 needs two attempts, 1002 three, 1003 would need four, 1004 passes at once.
    assert [(reward, attempts) for reward, attempts, *_ in found] == [(1.0, 2), (1.0, 3), (0.0, 3), (1.0, 1)] * 3
    told = found[0][3]
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user", "assistant"]
    assert all(
        part in told[3]["content"] for part in (rows()[0]["test_list"][0], "ValueError: wrong", 'File "solution.py", line 1')
    )
    assert "in_child" not in told[3]["content"]


@pytest.mark.parametrize(
    "odd",
    [
        tool("execute_code", code="print(1)"),
        broken_tool("no_such_tool"),
        text(None),
        text(""),
        text("I do not know."),
        text("```python\nimport os; os._exit(0)\n```"),
    ],
    ids=["tool call", "broken tool call", "null", "empty", "prose", "early exit"],
)
def test_odd_replies_cost_an_attempt(server: Any, odd: Reply) -> None:
    good = solver()
    with OpenAIServer(lambda request: good(request) if request.turn else odd, key=None) as api:
        [[reward, attempts, failure, _]] = rollouts(server, api)
    assert (reward, attempts, failure, api.refused) == (1.0, 2, "", [])


def test_no_failure_of_a_server_becomes_a_reward(server: Any) -> None:
    wrong, right = text("```python\n1 / 0\n```"), solver()

    def rewards(script: Callable[[Request], Reply]) -> tuple[float | None, int, str]:
        with OpenAIServer(script, key=None) as api:
            [[reward, attempts, failure, _]] = rollouts(server, api)
        return reward, attempts, failure

    seen: list[Request] = []

    def soon_well(request: Request) -> Reply:
        seen.append(request)
        return error(429 if len(seen) == 1 else 500) if len(seen) < 3 else right(request)

    assert rewards(soon_well) == (1.0, 1, "")
    for broken, word in ((error(500), "InternalServerError"), (malformed(), "JSON"), (Reply(raw=b"[]"), "no choices")):
        # It fails after a wrong attempt: that attempt is no verdict on an episode that was cut short.
        reward, attempts, failure = rewards(lambda request, broken=broken: broken if request.turn else wrong)
        assert (reward, attempts) == (None, 1)
        assert word in failure
    # A conversation that has outgrown the model is the model's own doing.
    reward, attempts, failure = rewards(lambda request: error(400) if request.turn else wrong)
    assert (reward, attempts) == (0.0, 1)
    assert "BadRequestError" in failure


@pytest.mark.slow
def test_no_failure_of_a_sandbox_becomes_a_reward(make_server: Any) -> None:
    server = make_server()
    body = """
from reward_toolkit import rewards
from aviato.core import client
rewards.RETRY_BUDGET_SECONDS = client.NEVER_REACHED_SECONDS = 0.5
loop = rt.TrainingLoop(rt.VLLMModel("m", sys.argv[1]), rt.load_problems(path=%r), num_steps=1)
asyncio.run(loop.run())
print(json.dumps([[t.reward, t.attempts, t.error] for t in loop.trajectories]))
"""
    with OpenAIServer(solver(), key=None) as api:
        server.stop()
        found = scripted(server, api, body % str(SAMPLE))
    assert [(reward, attempts) for reward, attempts, _ in found] == [(None, 0)] * 4
    assert all(failure.startswith("sandbox: ") for *_, failure in found)


def test_a_run_without_any_verdict_says_so(server: Any) -> None:
    with OpenAIServer([error(500)]) as api:
        done = train(
            api, server, "--use-openai", "--num-steps", "1", "--batch-size", "2", "--dry-run", OPENAI_API_KEY=str(api.key)
        )
    assert done.returncode == 1
    assert {request.body["model"] for request in api.requests} == {"gpt-4o-mini"}
    assert "  Step 0: without a verdict: 2, time=" in done.stdout
    assert "  Without a verdict: 2 (infrastructure; not counted as failures)" in done.stdout
    assert "nothing is trained" in done.stdout
    assert "reward=" not in done.stdout
    assert "InternalServerError" in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_that_are_no_problems_are_left_out(server: Any, tmp_path: Path) -> None:
    good = rows()[0]
    lines = [{**good, "test_list": []}, {**good, "text": None}, {**good, "test_list": "assert True"}, 7, good]
    data = tmp_path / "data.jsonl"
    data.write_bytes(b'{"text": \n\xff\xfe\n' + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    with OpenAIServer(solver(), key=None) as api:
        done = train(api, server, "--num-steps", "1", "--batch-size", "1", data=data)
    assert done.returncode == 0, done.stderr
    assert "Loaded 1 problems" in done.stdout
    assert "Successful: 1 (100.0%)" in done.stdout
    assert re.findall(r"Row (\d) of the dataset is left out", done.stderr) == ["1", "2", "3", "4", "5", "6"]
    assert "Row 3 of the dataset is left out: it has no tests, so anything would pass" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_no_sandbox_left(server: Any, number: signal.Signals, tmp_path: Path) -> None:
    def script(request: Request) -> Reply:
        return text("```python\nimport time; time.sleep(600)\n```")

    with OpenAIServer(script, key=None) as api:
        command = [sys.executable, str(TRAIN), "--base-url", api.url, "--dataset-file", str(SAMPLE)]
        log = tmp_path / "out"
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment(server), stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 60
            while len(api.requests) < 4 or len(running(server, log)) < 4:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            assert {tag for box in running(server, log) for tag in box.tags} >= {
                f"problem-{row['task_id']}" for row in rows()[:4]
            }
            process.send_signal(number)
            assert process.wait(20) == 128 + number, log.read_text()
        finally:
            process.kill()
            process.wait()
        assert running(server, log) == []
        assert len(api.requests) == 4  # nobody asked again
    printed = log.read_text()
    assert f"Interrupted by {number.name}." in printed
    assert "Steps completed: 0" in printed
    assert "Traceback" not in printed


def running(server: Any, log: Path) -> list[aviato.Sandbox]:
    """The sandboxes of the job that the log names."""
    job = re.search(r"job: ([0-9a-f]{8})", log.read_text())
    return aviato.Sandbox.list(tags=["art-rollout", f"job-{job[1]}"], base_url=server.url).result() if job else []


def test_wrong_use_is_said_in_a_line(server: Any, tmp_path: Path) -> None:
    with OpenAIServer([text("")]) as api:
        for flags, more, word in (
            (["--use-openai"], {}, "OPENAI_API_KEY"),
            (["--use-openai"], {"OPENAI_API_KEY": "wrong"}, "Incorrect API key"),
            (["--base-url", "http://127.0.0.1:9/v1"], {}, "http://127.0.0.1:9/v1"),
            (["--dataset-file", str(tmp_path / "none.jsonl")], {}, "none.jsonl"),
            (["--dataset-split", "test"], {}, "--dataset-split"),
            (["--batch-size", "0"], {}, "--batch-size"),
        ):
            done = train(api, server, *flags, **more)
            assert done.returncode in (1, 2)
            assert word in done.stderr
            assert "Traceback" not in done.stderr


def test_it_runs_as_a_module_too_and_against_a_server_that_lists_no_models(server: Any) -> None:
    with OpenAIServer(solver(), key=None, models=[]) as api:
        flags = ["--base-url", api.url, "--dataset-file", str(SAMPLE), "--num-steps", "1", "--batch-size", "1", "--dry-run"]
        done = run([sys.executable, "-W", "error", "-m", "reward_toolkit.train", *flags], environment(server), cwd=RL_TRAINING)
    assert (done.returncode, done.stderr) == (0, "")
    # What a run that trains would lack; this server has no such call.
    assert "A run that trains would lack something: this server loads no adapters" in done.stdout


def test_without_a_hub_the_way_without_one_is_said(server: Any) -> None:
    with OpenAIServer(solver(), key=None) as api:
        done = train(api, server, "--dry-run", data=None, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "The problems cannot be loaded: " in done.stderr and "Traceback" not in done.stderr
    assert "--dataset-file examples/rl_training/data/mbpp_sample.jsonl" in done.stderr


def test_a_missing_package_is_named_with_what_brings_it(server: Any) -> None:
    """By its path: with nothing but the standard library beside aviato."""
    program = (
        "import runpy, sys; sys.modules['openai'] = None; sys.argv = sys.argv[1:]; sys.path[0] = sys.argv[0].rpartition('/')[0]"
    )
    program += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = run([sys.executable, "-c", program, str(TRAIN)], environment(server))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "pip install -r examples/rl_training/reward_toolkit/requirements.txt" in done.stderr
