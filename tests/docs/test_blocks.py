"""Every fenced block of the README and the guides runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.attacks import mutants
from tests.attacks.registry import Patch
from tests.conftest import make_state_dir, remove

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
KNOWN = {"python", "bash", "rust", "text"}
FRAMEWORKS = {"inspect_ai", "verifiers", "harbor", "openenv"}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    source: str


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: match.start()].count("\n") + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[2]))
    return found


def those(language: str) -> Any:
    chosen = [block for block in blocks() if block.language == language]
    return pytest.mark.parametrize("block", chosen, ids=[f"{b.page}:{b.line}" for b in chosen])


@pytest.fixture
def environment(server: Any) -> Iterator[dict[str, str]]:
    binaries = str(Path(sys.executable).parent)
    # Not below pytest's own directory, which is closed to the sandboxes' uids.
    state = make_state_dir()
    yield {
        **os.environ,
        "AVIATO_BASE_URL": server.url,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "AVIATO_STATE_DIR": str(state),
    }
    remove(state)


def test_every_block_says_its_language() -> None:
    assert {block.language for block in blocks()} <= KNOWN


@those("python")
def test_python(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    needed = FRAMEWORKS & set(re.findall(r"^(?:from|import) (?:aviato\.integrations\.)?(\w+)", block.source, re.MULTILINE))
    for name in needed:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # A framework's own warnings are not ours to end.
    command = [sys.executable, "-W", "default" if needed else "error", "-c", block.source]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "print(" not in block.source or done.stdout


@pytest.mark.deep
@those("rust")
def test_rust(block: Block) -> None:
    """An operation, put in front of another one: it compiles."""
    if shutil.which("cargo") is None:
        pytest.skip("no cargo")
    function, row = re.split(r"^// (?=init/)", block.source, flags=re.MULTILINE)[1:]
    patches = []
    for part, before in ((function, "    pub fn list("), (row, '    Operation { name: b"list"')):
        path, _, source = part.partition("\n")
        patches.append(Patch(path, before, textwrap.indent(source.strip(), "    ") + "\n\n" + before))
    assert mutants.program(patches).exists()


@those("bash")
def test_bash(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    if re.search(r"pip install|^uv |^\./bootstrap\b", block.source, re.MULTILINE):
        pytest.skip("set-up: .ci/run runs it, and tests/installation the lines of uv")
    if "kubectl" in block.source:
        pytest.skip("it needs a cluster: tests/kubernetes runs it")
    if block.source.startswith("aviato serve"):
        return serve(block, environment)
    done = subprocess.run(
        ["bash", "-eu", "-c", block.source],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def serve(block: Block, environment: dict[str, str]) -> None:
    """A server runs until it is ended; it must have printed how to reach it."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {block.source}"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = next((line for line in process.stdout if line.startswith("export AVIATO_BASE_URL=unix://")), None)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        process.stdout.read()
    assert printed


def test_relative_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


ANCHORS = {
    *("why-sandboxes-for-agent-tool-execution", "prerequisites", "core-pattern", "training-step-with-parallel-episodes"),
    *("tagging-for-job-metadata", "try-it-reward_functionpy", "trl-grpotrainer-integration", "try-it-trl_grpo_integrationpy"),
    *("error-handling-in-agent-episodes", "wb-metrics-integration", "monitoring-and-debugging", "counting-active-sandboxes"),
    *("logging-execution-details", "multi-step-rollouts-with-art"),
}


def test_the_anchors_that_others_link_to_are_there() -> None:
    page = (ROOT / "docs" / "guides" / "rl-training.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    there = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert ANCHORS - there == set()
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) - there == set()


FALLBACK = re.compile(r"except (Base)?Exception[^\n]*:\s*\n?\s*(return 0|\w*rewards?\w*(\[\w+\])? = 0)")


def test_no_example_turns_a_failure_into_a_reward() -> None:
    sources = {str(path): path.read_text() for folder in ("examples", "aviato") for path in (ROOT / folder).rglob("*.py")}
    sources |= {f"{block.page}:{block.line}": block.source for block in blocks() if block.language == "python"}
    assert not [name for name, source in sources.items() if FALLBACK.search(source)]
