"""The suite itself: a backend that lies fails it, all that can be declared is asked for, and anybody can run it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from typing import Any

import pytest

import aviato.promises as suite
from aviato.promises import all_checks
from aviato.promises.refusals import ASKED
from aviato.server.backends.capabilities import WITHOUT, Capability

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
MUTANTS = {
    "WithoutSecrets": "test_a_secret",
    "WithoutFiles": "test_mounted_files",
    "OneNetwork": "test_no_network",
    "OneDirectory": "test_files_of_others",
    "OneProc": "test_processes_of_others",
    "SaysNoEnd": "test_what_ended_while_there_was_no_server",
    "LyingLimits": "test_memory",
    "OtherLimits": "test_they_are_shown",
    "LeavesPlaces": "test_no_place_is_left",
    "ListsNothing": "test_a_place_is_there_as_long_as_its_sandbox",
    "WithoutVariables": "test_its_variables",
    "ClaimsNothing": "test_a_pool",
    "AnyImage": "test_what_is_not_declared",
    "FindsNothingAgain": "test_a_server_that_is_killed_amid_a_command",
}
SHORT = 3


def run(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", suite.__name__, *words, "--timeout", "100"]
    # What a backend that lies leaves behind ends itself soon.
    environment = {**os.environ, "PYTHONPATH": ROOT, "AVIATO_ORPHAN_TIMEOUT": "20"}
    return subprocess.run(program, capture_output=True, text=True, timeout=250, env=environment, check=False, cwd="/")


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        pytest.param(*row, marks=[pytest.mark.deep] if number >= SHORT else [])  # Each has a server of its own.
        for number, row in enumerate(MUTANTS.items())
    ],
)
def test_a_backend_that_does_not_what_it_says(mutant: str, check: str) -> None:
    done = run("--backend", f"tests.promises.mutants:{mutant}", "-k", check, "--tb", "line")
    failed = re.search(rf"^FAILED .*all_checks\.py::{check}\b", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and failed, done.stdout + done.stderr


def test_against_a_server_that_runs(server: Any) -> None:
    done = run("--server", server.url, "-k", "test_a_result or test_a_place_is_there or test_a_build or test_a_secret")
    assert done.returncode == 0 and "2 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "is not the suite's own" in done.stdout


def checks() -> dict[str, Any]:
    """Each check by its name, and the module that has it."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(suite.__path__, f"{suite.__name__}."):
        if module.name.endswith(("__main__", "all_checks")):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if name.startswith("test_"):
                assert name not in found, f"{name} is twice, and only one of them would be run"
                found[name] = value
    return found


def test_every_check_is_run_and_says_what_it_holds() -> None:
    found = checks()
    assert found.keys() == {name for name in vars(all_checks) if name.startswith("test_")}
    assert [name for name, check in found.items() if not (check.__doc__ or "").endswith(".")] == []


def test_every_capability_is_asked_for() -> None:
    asked = {capability for check in checks().values() for capability in getattr(check, "needs", ())}
    assert (
        asked | {Capability.PACKAGES, Capability.INTERNET, Capability.PLACES} == set(ASKED) == set(WITHOUT) == set(Capability)
    )
