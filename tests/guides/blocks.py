"""Reads the guides' code blocks out of the seeds. Nothing of the seeds is stored here but line numbers and indentation."""

from __future__ import annotations

import re
from pathlib import Path

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
FENCED = {"a": "rl-guide-a-first.txt", "b": "rl-guide-b-with-wandb.txt"}
HOSTED = "rl-guide-c-hosted.txt"

# Guide c has lost its fences and its indentation: block → first line and the level of each line from there on.
LEVELS = {
    "episode": (15, "0001112222232234554434434431111"),
    "step": (49, "011111111222211"),
    "tags": (65, "000122333321"),
    "wait": (94, "0012211000111"),
    "reward": (136, "00011001210111112332211123231"),
    "reward_long": (176, "0112111011111233221111233231"),
    "tool": (241, "0011234433233233121212"),
    "metrics_step": (304, "011222222111"),
    "wandb": (268, "000001222220"),
    "report_to": (282, "000000"),
    "keep": (338, "0"),
    "stats": (317, "000"),
    "count": (343, "00122112221"),
    "logged": (356, "00001111221122333332111"),
}

# In guides a and b a block is known by what only it contains; the first that fits is taken.
MARKS = {
    "episode": "def run_agent_episode",
    "step": "def training_step(model, batch: list[dict], session)",
    "tags": "def make_defaults",
    "wait": "pending = aviato.wait(",
    "reward": "def reward_fn(",
    "reward_long": "def code_execution_reward(",
    "tool": "def execute_tool(",
    "metrics_step": "def training_step(session, model",
    "wandb": "wandb.init(",
    "report_to": "report_to=[]",
    "keep": "reset=False",
    "stats": "print(sandbox.execution_stats)",
    "count": "def count_active_sandboxes(",
    "logged": "def logged_reward(",
}


def renamed(text: str) -> str:
    """The ancestor's names in every case form, as ours."""
    return re.sub("cwsandbox", "aviato", text.replace("CWSandbox", "Aviato").replace("CWSANDBOX", "AVIATO"))


def hosted_lines() -> list[str]:
    """Guide c, line by line."""
    return (SEEDS / HOSTED).read_text(encoding="utf-8").splitlines()


def hosted_block(name: str) -> str:
    """A block of guide c, indented again."""
    first, levels = LEVELS[name]
    lines = hosted_lines()[first - 1 : first - 1 + len(levels)]
    return renamed("\n".join("    " * int(level) + line for level, line in zip(levels, lines, strict=True)) + "\n")


def fenced_block(guide: str, name: str) -> str | None:
    """A block of guide a or b as it stands, or None where the guide does not have it."""
    text = renamed((SEEDS / FENCED[guide]).read_text(encoding="utf-8"))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return next((block for block in blocks if MARKS[name] in block), None)


def block(guide: str, name: str) -> str | None:
    """A block of any guide."""
    return hosted_block(name) if guide == "c" else fenced_block(guide, name)


def listed_metrics(guide: str) -> set[str]:
    """The names of metrics in the guide's tables."""
    text = renamed((SEEDS / {**FENCED, "c": HOSTED}[guide]).read_text(encoding="utf-8"))
    return set(re.findall(r"^[|` ]*(aviato/\w+)[` ]*\|", text, re.MULTILINE))


def expected_output(guide: str) -> list[str]:
    """The lines that a guide shows for `reward_function.py`."""
    if guide == "c":
        lines = hosted_lines()
        first = next(n for n, line in enumerate(lines) if line.startswith("RL Training Reward Function Example"))
        last = next(n for n in range(first, len(lines)) if lines[n].startswith("Pass rate"))
        return lines[first : last + 1]
    text = (SEEDS / FENCED[guide]).read_text(encoding="utf-8")
    return next(part for part in text.split("```\n") if part.startswith("RL Training Reward Function Example")).splitlines()
