"""The guides' code blocks run unchanged against a real server."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aviato
from tests.guides import blocks
from tests.integrations import offline_run
from tests.matrices import deep

pytestmark = [
    pytest.mark.skipif(not blocks.SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)"),
]

GUIDES = ["a", "b", "c"]
BUSY_COMPLETIONS = 64
BUSY_LIMIT = 8


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks find the test's server by the environment, as a user's would."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    monkeypatch.setenv("AVIATO_IMAGE_FALLBACK", "nearest")


@pytest.fixture
def crowded(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with room for 8 sandboxes."""
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=BUSY_LIMIT).url)
    monkeypatch.setenv("AVIATO_IMAGE_FALLBACK", "nearest")


def run(guide: str, name: str, **supplied: Any) -> dict[str, Any]:
    """Execute a block with what the guide leaves undefined."""
    source = blocks.block(guide, name)
    if source is None:
        pytest.skip(f"guide {guide} has no such block")
    namespace: dict[str, Any] = {"__name__": f"guide_{guide}", **supplied}
    exec(compile(source, f"guide {guide}: {name}", "exec"), namespace)
    return namespace


class Model:
    """Answers with one tool call after another, then with none."""

    def __init__(self, *calls: Any) -> None:
        self.calls = [*calls, None]

    def generate(self, messages: list[Any]) -> Any:
        return self.calls[sum(m["role"] == "assistant" for m in messages)]


def parse_tool_calls(response: Any) -> list[Any]:
    return [] if response is None else [response]


def tool(name: str, **fields: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, **fields)


MODEL = (
    tool("write_file", path="/tmp/answer.py", content="def answer():\n    return 42\n"),
    tool("bash", command="cd /tmp && python3 -c 'import answer; print(answer.answer())' && echo warning >&2"),
    tool("read_file", path="/tmp/answer.py"),
)
TASK = {
    "prompt": "write answer()",
    "test_command": ["bash", "-c", "cd /tmp && python3 -c 'import answer; assert answer.answer() == 42'"],
}
WRONG = {**TASK, "test_command": ["python3", "-c", "raise SystemExit(3)"]}


@pytest.mark.parametrize("name", blocks.LEVELS)
def test_guide_c_differs_from_its_block_by_indentation_only(name: str) -> None:
    first, levels = blocks.LEVELS[name]
    raw = [blocks.renamed(line) for line in blocks.hosted_lines()[first - 1 : first - 1 + len(levels)]]
    assert [line.strip() for line in blocks.hosted_block(name).splitlines()] == [line.strip() for line in raw]


@pytest.mark.parametrize("guide", GUIDES)
def test_episode_loop(served: None, guide: str) -> None:
    namespace = run(guide, "episode", parse_tool_calls=parse_tool_calls)
    with aviato.Session() as session:
        messages, reward = namespace["run_agent_episode"](Model(*MODEL), TASK, session.sandbox())
        assert reward == 1.0
        observations = [m["content"] for m in messages if m["role"] == "tool"]
        assert observations[1] == "exit=0\n42\nwarning\n"
        assert observations[2].startswith("def answer()")
        assert namespace["run_agent_episode"](Model(), WRONG, session.sandbox())[1] == 0.0


@pytest.mark.parametrize("limit", ["served", *deep(["crowded"])])
@pytest.mark.parametrize("guide", GUIDES)
def test_training_step(request: pytest.FixtureRequest, guide: str, limit: str) -> None:
    request.getfixturevalue(limit)
    namespace = run(guide, "episode", parse_tool_calls=parse_tool_calls)
    namespace = {**namespace, **run(guide, "step", **namespace)}
    batch = [TASK if n % 3 else WRONG for n in range(12)]
    with aviato.Session() as session:
        assert namespace["training_step"](Model(*MODEL), batch, session) == [1.0 if n % 3 else 0.0 for n in range(12)]


@pytest.mark.parametrize(("count", "limit"), [(5, "served"), *deep([(BUSY_COMPLETIONS, "crowded")])])
@pytest.mark.parametrize("guide", GUIDES)
def test_wait_loop(request: pytest.FixtureRequest, guide: str, count: int, limit: str) -> None:
    request.getfixturevalue(limit)
    completions = [f"import sys; sys.exit({n % 2})" for n in range(count)]
    source = blocks.block(guide, "wait")
    assert source is not None
    head, marker, loop = source.partition("# Collect results as they complete")
    rewards: list[float] = []
    loop += "    rewards.append(reward)\n"
    with aviato.Session() as session:
        names = {"aviato": aviato, "session": session, "completions": completions, "EXECUTION_TIMEOUT_SECONDS": 30.0}
        names["rewards"] = rewards
        exec(head, names)
        names["pending"] = list(names["processes"])
        del names["processes"]
        exec(marker + loop, names)
    assert sorted(rewards) == [0.0] * (count // 2) + [1.0] * (count - count // 2)


@pytest.mark.parametrize("guide", GUIDES)
def test_tags_and_listing(served: None, guide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", f"run-{guide}")
    defaults = run(guide, "tags")["make_defaults"]("tiny")
    count = run(guide, "count")["count_active_sandboxes"]
    with aviato.Session(defaults) as session:
        sandboxes = [session.sandbox() for _ in range(3)]
        aviato.results([sandbox.start() for sandbox in sandboxes])
        assert count(f"run-{guide}")["total"] == 3
        aviato.wait(sandboxes)
        assert count(f"run-{guide}") == {"running": 3, "pending": 0, "total": 3}
    assert count(f"run-{guide}")["total"] == 0


STRINGS = ["<answer>print('ok')</answer>", "no code here", "so <answer>raise SystemExit(1)</answer>", "<answer>1/0</answer>"]
MESSAGES = [[{"role": "assistant", "content": text}] for text in STRINGS]
REWARDS = [1.0, 0.0, 0.0, 0.0]
FUNCTIONS = {"reward": "reward_fn", "reward_long": "code_execution_reward"}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("guide", "completions"),
    [("a", STRINGS), ("b", STRINGS), ("c", STRINGS), ("c", MESSAGES)],
    ids=["a-strings", "b-strings", "c-strings", "c-messages"],
)
def test_trl_reward(served: None, guide: str, name: str, completions: list[Any]) -> None:
    with aviato.Session() as session:
        namespace = run(guide, name, session=session, EXECUTION_TIMEOUT_SECONDS=30.0, aviato=aviato)
        assert namespace[FUNCTIONS[name]](completions) == REWARDS
        namespace["session"].close().result()


@pytest.mark.parametrize("guide", GUIDES)
def test_trl_reward_with_more_completions_than_room(crowded: None, guide: str) -> None:
    completions = [STRINGS[0] if n % 4 else STRINGS[2] for n in range(BUSY_COMPLETIONS)]
    namespace = run(guide, "reward", aviato=aviato)
    try:
        assert namespace["reward_fn"](completions) == [1.0 if n % 4 else 0.0 for n in range(BUSY_COMPLETIONS)]
    finally:
        namespace["session"].close().result()


@pytest.mark.parametrize("guide", GUIDES)
def test_error_handling(served: None, guide: str) -> None:
    execute = run(guide, "tool")["execute_tool"]
    with aviato.Session() as session:
        sandbox = session.sandbox()
        assert execute(sandbox, MODEL[0]) == "File written successfully"
        assert execute(sandbox, MODEL[1]) == "exit=0\n42\nwarning\n"
        assert "def answer" in execute(sandbox, MODEL[2])
        missing = execute(sandbox, tool("read_file", path="/nowhere/at/all"))
        assert missing.startswith("Error: ")
        assert "/nowhere/at/all" in missing
        sandbox.stop().result()
        assert execute(sandbox, MODEL[1]).startswith("Error: SandboxNotRunningError")


@pytest.mark.parametrize("guide", GUIDES)
def test_error_handling_of_a_timeout(served: None, guide: str) -> None:
    source = blocks.block(guide, "tool")
    assert source is not None
    names: dict[str, Any] = {}
    exec(source.replace("timeout_seconds=30.0", "timeout_seconds=0.3"), names)
    with aviato.Session() as session:
        assert names["execute_tool"](session.sandbox(), tool("bash", command="sleep 60")).startswith("Error: command timed out")


@pytest.mark.parametrize("guide", GUIDES)
def test_metrics_of_a_step(served: None, guide: str) -> None:
    with aviato.Session() as session:
        step = run(guide, "metrics_step")["training_step"]
        assert step(session, None, [{"code": "pass"}, {"code": "raise SystemExit(1)"}], 7) == [1.0, 0.0]
        metrics = session.get_metrics()
        assert metrics["aviato/executions"] == 2
        assert metrics["aviato/exec_completed_ok"] == metrics["aviato/exec_successes"] == 1
        assert metrics["aviato/exec_failures"] == 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The real wandb, offline; the guide begins its run itself."""
    module = pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield module
    if module.run is not None:
        module.finish()


def rows_of(wandb: Any) -> list[dict[str, Any]]:
    """The rows with metrics of ours; the run ends."""
    run = wandb.run
    run.finish()
    return [row for row in offline_run.rows(run.dir) if "aviato/executions" in row]


@pytest.mark.parametrize("guide", ["b", "c"])
def test_wandb(served: None, wandb: Any, guide: str) -> None:
    defaults = aviato.SandboxDefaults()
    run(guide, "wandb", defaults=defaults, num_steps=3, code="print(4)")
    rows = rows_of(wandb)
    assert [row["aviato/step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert (row["aviato/sandboxes_created"], row["aviato/executions"], row["aviato/exec_successes"]) == (1, 1, 1)
        assert len(blocks.listed_metrics(guide)) >= 10
        assert blocks.listed_metrics(guide) <= set(row)


@pytest.mark.parametrize("guide", ["b", "c"])
def test_report_to(served: None, wandb: Any, guide: str) -> None:
    source = blocks.block(guide, "report_to")
    assert source is not None
    wandb.init(project="my-rl-training")
    names: dict[str, Any] = {"Session": aviato.Session, "defaults": aviato.SandboxDefaults()}
    logged = []
    for step, statement in enumerate(ast.parse(source).body):
        exec(compile(ast.Module([statement], []), f"guide {guide}: report_to", "exec"), names)
        with names["session"] as session:
            session.sandbox().exec(["true"]).result()
            logged.append(session.log_metrics(step=step))
    assert logged == [True, False, True]
    assert [(row["aviato/step"], row["aviato/executions"]) for row in rows_of(wandb)] == [(0, 1), (2, 1)]


@pytest.mark.parametrize("guide", ["b", "c"])
def test_keep_accumulating(served: None, wandb: Any, guide: str) -> None:
    wandb.init(project="my-rl-training")
    with aviato.Session() as session:
        for step in range(3):
            session.sandbox().exec(["true"]).result()
            run(guide, "keep", session=session, step=step)
    assert [(row["aviato/step"], row["aviato/executions"]) for row in rows_of(wandb)] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("guide", ["b", "c"])
def test_logged_at_each_step(served: None, wandb: Any, guide: str) -> None:
    wandb.init(project="my-rl-training")
    with aviato.Session() as session:
        step = run(guide, "metrics_step")["training_step"]
        for number in (7, 8):
            assert step(session, None, [{"code": "pass"}, {"code": "raise SystemExit(1)"}], number) == [1.0, 0.0]
    rows = rows_of(wandb)
    assert [row["aviato/step"] for row in rows] == [7, 8]
    assert [(row["aviato/exec_successes"], row["aviato/exec_failures"]) for row in rows] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("guide", GUIDES)
def test_per_sandbox_statistics(served: None, guide: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = blocks.block(guide, "stats")
    if source is None:
        pytest.skip(f"guide {guide} has no such block")
    with aviato.Session() as session:
        run(guide, "stats", session=session)
    shown = source.rsplit("# ", 1)[1].strip()
    assert eval(capsys.readouterr().out) == eval(shown)


@pytest.mark.parametrize("guide", GUIDES)
def test_logged_reward(served: None, guide: str, caplog: pytest.LogCaptureFixture) -> None:
    extract = {"extract_code": lambda text: text, "extract_xml_answer": lambda text: text}
    with aviato.Session() as session, caplog.at_level(logging.DEBUG):
        namespace = run(guide, "logged", session=session, **extract)
        assert namespace["logged_reward"]("print('four')", 4) == 1.0
        assert namespace["logged_reward"]("raise SystemExit(2)", 5) == 0.0
    records = [record for record in caplog.records if record.message == "Reward computation"]
    assert [(r.step, r.returncode, r.stdout_len) for r in records] == [(4, 0, 5), (5, 2, 0)]  # type: ignore[attr-defined]
