"""A server over TCP with a key, and how the clients of others read its answers."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import RunningServer, make_state_dir, remove, start_server

KEY = "the-key"


@contextmanager
def over_tcp(**settings: Any) -> Iterator[tuple[RunningServer, str]]:
    """A server of its own, and its base URL with the key as the password, as clients that can set no header have it."""
    state = make_state_dir()
    keys = state / "keys"
    keys.write_text(f"{KEY}\nonly-run-code /run_code\n")
    running = start_server(state, port=0, api_key_file=keys, **settings)
    try:
        yield running, base_url(running).replace("http://", f"http://aviato:{KEY}@")
    finally:
        running.stop()
        remove(state)


def base_url(running: RunningServer) -> str:
    deadline = time.monotonic() + 60
    while not (found := re.findall(r"export AVIATO_BASE_URL=(http://\S+)", running.log.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return str(found[-1])


def judged(status_code: int, body: dict[str, Any], expected: str | None) -> bool | int:
    """How verl scores an answer: True, False for a wrong answer, -1 machine, -2 run, -3 run timeout, -4 compilation."""
    if status_code != 200:
        return -1
    compiled, ran = body.get("compile_result"), body.get("run_result")
    if body["status"] == "SandboxError":
        return -1
    if body["status"] == "Failed":
        if compiled and (compiled["status"] != "Finished" or compiled["return_code"] != 0):
            return -4
        if not ran:
            return -1
        if ran["status"] == "TimeLimitExceeded":
            return -3
        return -2 if ran["status"] == "Error" or ran["return_code"] != 0 else -1
    if body["status"] != "Success" or not ran or ran["status"] != "Finished":
        return -1
    return expected is None or (ran["stdout"] or "").rstrip("\n") == expected.rstrip("\n")


def verl_client() -> ModuleType:
    """verl's own client, without the rest of verl, which needs torch and ray."""
    found = importlib.util.find_spec("verl")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        path = Path(place, "utils", "reward_score", "sandbox_fusion", "utils.py")
        if path.exists():
            spec = importlib.util.spec_from_file_location("verl_sandbox_fusion", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    pytest.skip("verl is not installed (pip install --no-deps verl is enough)")
