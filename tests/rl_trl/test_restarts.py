"""A GRPO run whose server is killed and restarted under its reward calls has the rewards of an undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import aviato
from tests.conftest import make_state_dir, remove, start_server
from tests.rl_trl.by_hand import logged

SCRIPT = Path(__file__).with_name("restarts.py")
STEPS = 6
KILLS = 3
"""Each in another reward call."""
RUNNING = 2
"""Programs that run at each kill, at least."""


def test_rewards_are_those_of_an_undisturbed_run(environment: dict[str, str], tmp_path: Path) -> None:
    results, call, said = tmp_path / "results", tmp_path / "call", tmp_path / "said"
    state = make_state_dir()
    server = start_server(state)
    kills: list[str] = []
    command = [sys.executable, str(SCRIPT), str(results), str(call), "undisturbed", "restarted"]
    with said.open("w") as output:
        run = subprocess.Popen(command, env={**environment, "AVIATO_BASE_URL": server.url}, stdout=output, stderr=output)

    def now() -> str:
        try:
            return call.read_text()
        except FileNotFoundError:
            return ""

    try:
        while run.poll() is None:
            time.sleep(0.02)
            if not now().startswith("restarted") or now() in kills or len(kills) == KILLS:
                continue
            if len(aviato.Sandbox.list(status="running", base_url=server.url).result()) < RUNNING:
                continue
            server.process.kill()
            server.process.wait()
            killed = now()
            time.sleep(0.3)
            if killed and now() == killed:  # What is under way now waits for a server, and may be over as soon as there is one.
                kills.append(killed)
            server.restart()
    finally:
        run.kill()
        run.wait()
        server.stop()
        remove(state)
    assert run.returncode == 0, said.read_text()[-4000:]
    found = json.loads(results.read_text())
    assert len(set(kills)) == KILLS
    undisturbed, restarted = found["undisturbed"], found["restarted"]
    assert undisturbed["error"] is restarted["error"] is None
    rewards = [[value for (value,) in batch["rewards"]] for batch in undisturbed["batches"]]
    assert len(rewards) == STEPS and {0.0, 1.0} == {value for batch in rewards for value in batch}
    assert restarted["batches"] == undisturbed["batches"]
    for key in ("reward", "rewards/told/mean", "loss"):
        assert logged(restarted, key) == logged(undisturbed, key)
        assert len(logged(restarted, key)) == STEPS
