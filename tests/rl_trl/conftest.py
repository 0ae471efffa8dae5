"""Real TRL, in the interpreter that runs the tests; without it everything here is skipped."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REASON = "TRL is not installed beside this interpreter; .ci/run makes environments with it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):
            item.add_marker(pytest.mark.timeout(600))
            if importlib.util.find_spec("trl") is None:
                item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def environment(server: Any) -> dict[str, str]:
    """For processes that import TRL: no hub, one thread, the server of the tests."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**os.environ, **offline, "OMP_NUM_THREADS": "1", "AVIATO_BASE_URL": server.url, "PYTHONPATH": paths}


@pytest.fixture(scope="session")
def run_script(environment: dict[str, str], tmp_path_factory: Any) -> Callable[..., dict[str, Any]]:
    """Run training.py or another script beside it; its results."""

    def run(script: str, *names: str) -> dict[str, Any]:
        results = tmp_path_factory.mktemp("trl") / "results.json"
        command = [sys.executable, str(HERE / script), str(results), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(results.read_text())
        return found

    return run
