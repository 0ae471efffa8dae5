"""Every `uv` line of the README, the guides and the examples, and of the guides that were there before: run in a fresh clone.

What trains is made small, and what needs a hub takes the problems that lie beside the examples. Packages that bring a CUDA
build of torch are resolved and not downloaded: TRL and ART come from the environments that `AVIATO_TEST_TRL_PYTHON` and
`AVIATO_TEST_ART_PYTHON` name, and who has none of them skips those lines.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_state_dir, remove, stop_embedded
from tests.guides.blocks import SEEDS, renamed
from tests.installation.conftest import ROOT, call, clean
from tests.openai_server import OpenAIServer, text

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
DATA = "examples/rl_training/data/mbpp_sample.jsonl"
TOOLKIT = "examples/rl_training/reward_toolkit"
OLD_TOOLKIT = ("art-readme-a-reward-toolkit.txt", "rl-guide-a-first.txt")
"""Pages that were written when the reward toolkit lay at `examples/rl_training/art`."""
FRAMEWORKS = {"trl": ("AVIATO_TEST_TRL_PYTHON", "trl-0.27.1"), "art": ("AVIATO_TEST_ART_PYTHON", "art")}


@dataclass(frozen=True)
class Line:
    """A command of a page."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def lines() -> list[Line]:
    """Each once a page, those that go on in the next line as one."""
    found: dict[Line, None] = {}
    for path in [*PAGES, *sorted(SEEDS.glob("*.txt"))]:
        joined = re.sub(r"\\\n\s*", "", renamed(path.read_text(encoding="utf-8")))
        for line in re.findall(r"^\s*(?:\$ )?(uv .*?)(?:\s+#.*)?$", joined, re.MULTILINE):
            found[Line(path.name if path.parent == SEEDS else str(path.relative_to(ROOT)), line)] = None
    return list(found)


@dataclass(frozen=True)
class Plan:
    """How a line is run.

    Attributes:
        words: the command.
        says: what it prints.
        framework: whose environment it needs, or None.
        status: its exit status.
    """

    words: list[str]
    says: str
    framework: str | None = None
    status: int = 0


def plan(line: Line, model_server: str) -> Plan:
    """What a line becomes, so that it ends in seconds and without a hub."""
    words = shlex.split(line.text)
    if words[:3] == ["uv", "pip", "install"]:
        own = words[3:] == ["-e", "."]
        return Plan(words if own else [*words[:3], "--dry-run", *words[3:]], "aviato-sandbox" if own else "Would install")
    assert words[:2] == ["uv", "run"], f"{line}: say here how it is run"
    [place] = [n for n, word in enumerate(words) if word.endswith(".py")]
    script, flags = words[place], words[place + 1 :]
    if script.endswith("/reward_function.py"):
        return Plan(words, "Pass rate: 3/5 (60%)")
    if script.endswith("/trl_grpo_integration.py"):
        return Plan([*words, "--tiny", "--steps", "1"], "Training completed successfully!", "trl")
    if script.startswith(TOOLKIT) or line.page in OLD_TOOLKIT:
        small = ["--num-steps", "1", "--batch-size", "1", "--max-attempts", "1"]
        given = [] if "--dataset-file" in flags else ["--dataset-file", DATA]
        needed = [] if "--with-requirements" in words else ["--with-requirements", f"{TOOLKIT}/requirements.txt"]
        run = ["uv", "run", *needed, *words[2:place], f"{TOOLKIT}/train.py", *flags]
        return Plan([*run, "--dry-run", "--base-url", model_server, *given, *small], "Steps completed: 1")
    assert script == "examples/rl_training/art/train.py", f"{line}: say here how it is run"
    run = [*words, "--dry-run", "--problems", "sample", "--base-url", model_server]
    # They find what a machine without a hub and without a GPU lacks, which ends what the line asks for in a sentence.
    says = "The tokenizer of --base-model" if "tinker" in flags else "--backend local needs"
    return Plan(run, says, "art", status=1)


LINES = lines()
ONCE = list({tuple(plan(line, "http://127.0.0.1/v1").words): line for line in reversed(LINES)}.values())[::-1]
"""What several pages say is run once."""
PYTHONS = {
    name: os.environ.get(variable) or str(ROOT / ".venv" / there / "bin" / "python")
    for name, (variable, there) in FRAMEWORKS.items()
}
VARIABLES = {
    "AVIATO_IMAGE_FALLBACK": "nearest",
    "UV_PYTHON_DOWNLOADS": "never",
    # Of nobody: the model server is a stand-in, and nothing is registered anywhere.
    "OPENAI_API_KEY": "a-key",
    "VLLM_API_KEY": "a-key",
    "ART_TINKER_API_KEY": "tml-of-nobody",
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@pytest.fixture(scope="module")
def fresh(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A clone for the lines that need no framework, and one for each framework's; a state directory for their servers."""
    state = make_state_dir()
    yield {"clones": tmp_path_factory.mktemp("clones"), "of": clone, "state": state}
    stop_embedded(state)
    remove(state)


def _has(python: str, module: str) -> bool:
    look = f"import importlib.util; print(importlib.util.find_spec({module!r}) is not None)"
    return call(python, "-c", look).strip() == "True"


def own_clone(fresh: dict[str, Any], uv: Path, framework: str | None) -> Path:
    """A clone; with a framework, one whose environment sees what that framework's has."""
    folder = Path(fresh["clones"] / (framework or "plain"))
    if framework is not None and not os.access(PYTHONS[framework], os.X_OK):
        pytest.skip(f"no environment with {framework.upper()} is here ({FRAMEWORKS[framework][0]})")
    if framework is not None and not _has(PYTHONS[framework], framework):
        pytest.skip(f"{PYTHONS[framework]} has no {framework.upper()}: its environment was not made to its end")
    if folder.exists():
        return folder
    shutil.copytree(fresh["of"], folder)
    if framework is not None:
        python = PYTHONS[framework]
        site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        call(uv, "venv", "-q", "--python", os.path.realpath(python), folder / ".venv")
        [own] = folder.glob(".venv/lib/python3*/site-packages")
        (own / "framework.pth").write_text(f"{site}\n")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("line", ONCE, ids=str)
def test_line(line: Line, fresh: dict[str, Any], uv: Path, tmp_path: Path) -> None:
    with OpenAIServer(lambda request: text("```python\npass\n```"), key="a-key") as api:
        planned = plan(line, api.url)
        folder = own_clone(fresh, uv, planned.framework)
        if planned.words[1] == "pip" and not (folder / ".venv").exists():
            call(uv, "venv", "-q", "--python", sys.executable, cwd=folder)
        variables = VARIABLES | {"PATH": f"{uv.parent}:{os.environ['PATH']}", "AVIATO_STATE_DIR": str(fresh["state"])}
        if planned.framework is None and planned.words[1] != "pip":
            # `uv pip` would install into the environment of that Python, and not into the clone's.
            variables["UV_PYTHON"] = sys.executable
        done = subprocess.run(
            planned.words,
            cwd=folder,
            env=clean(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=840,
            check=False,
        )
    assert (done.returncode, planned.says in done.stdout) == (planned.status, True), done.stdout
    here = call(sys.executable, "-c", "import aviato; print(aviato.__path__[0])", cwd=tmp_path).strip()
    assert not here.startswith(str(fresh["clones"])), "it went into the environment of these tests"


def test_every_line_is_known() -> None:
    """There are some, and each is planned; a line of another form has to be decided about here."""
    assert {plan(line, "http://127.0.0.1/v1").framework for line in LINES} >= {None}
    assert "uv run examples/rl_training/reward_function.py" in {line.text for line in LINES}


@pytest.mark.long
def test_all_extras_lock_and_no_lock_is_committed(clone: Path, uv: Path, tmp_path: Path) -> None:
    """Each extra can be had; those that exclude one another are declared to."""
    folder = tmp_path / "clone"
    shutil.copytree(clone, folder)
    call(uv, "lock", "-q", cwd=folder, environment={"UV_PYTHON_DOWNLOADS": "never"})
    assert (folder / "uv.lock").exists()
    assert call("git", "status", "--porcelain", cwd=folder) == ""
    assert "uv.lock" not in call("git", "ls-files", cwd=folder).splitlines()
