"""Benchmarks run as a user runs them: in a process of their own, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviato.bench import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(server: Any) -> Run:
    """`aviato bench …` on the tests' server; the status is looked at by the test."""
    return _running(server, "-m", "aviato", "bench")


@pytest.fixture
def checkouts(server: Any) -> Callable[[str], Run]:
    """A script of `benchmarks/` on the tests' server."""
    return lambda name: _running(server, str(ROOT / "benchmarks" / f"{name}.py"))


def _running(server: Any, *program: str) -> Run:
    def run(*arguments: str, timeout: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "COLUMNS": "200", **environment}
        command = [sys.executable, *program, "--base-url", server.url, *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout, check=False)

    return run


@pytest.fixture
def measured(bench: Run, checkouts: Callable[[str], Run], tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run one benchmark with small sizes: what it wrote, and what it printed. It must have succeeded, and drawn."""

    def run(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        asked = ("--quick", "--json", str(tmp_path), *arguments)
        done = bench(name, *asked) if name in BENCHMARKS else checkouts(name)(*asked)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        found: dict[str, Any] = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["problems"] == [] and found["machine"]["cpus"] > 0
        return found, done.stdout

    return run
