"""The threat model names what shows each promise; what it names is there, and every attack has its control."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.attacks import registry
from tests.attacks.registry import ATTACKS, DEFENCES

ROOT = Path(__file__).resolve().parents[2]
PAIRS = "tests/attacks/pairs/"
CONTROLLED = {
    "tests/attacks/test_filter.py",
    "tests/attacks/test_process_1.py",
    "tests/attacks/grading/test_controls.py",
    "tests/attacks/grading/test_hacks.py::test_each_is_real",
    "tests/attacks/grading/test_skips.py",
    "tests/server/test_tenants.py::test_without_the_check_they_are_seen",
}
"""Tests that take their defences away themselves."""
UNCONTROLLED = {
    "a command: other commands of the sandbox that it may signal": "nothing is promised",
    "a client: another client's turn": "an order, of which the tests know every place",
    "a registry, or who stands between: the server": "requests, of which a stand-in sees every head",
    "who wrote a Dockerfile: the caller's files": "a look at paths, of which the tests try each spelling",
    "a sandbox: layers that other sandboxes lie on": "the kernel writes to no lower layer",
    "a command in a pod: the server, process 1, through exposed ports and the proxy": "numbers, which the tests count each way",
    "a client with a made-up W&B key: the server, W&B": "numbers, counted at a stand-in",
    "a policy: a repository's issue, `swe`": "verdicts and processor time, of which the tests know each",
}
"""Promises whose attacks have no control, and why."""

registry.load()


PROMISE = re.compile(r"\*\*(?P<target>[^*]+: [^*]+)\*\*: (?P<promise>.+) \((?P<shown>`[^()]+`)\)")


def assets() -> dict[str, list[str]]:
    """Of each asset: its paragraphs and items, each in one line."""
    section = (ROOT / "docs" / "threat_model.md").read_text().split("\n## ")[1]
    found = {}
    for part in section.split("\n### ")[1:]:
        name, _, text = part.partition("\n")
        found[name] = [" ".join(block.split()) for block in re.split(r"\n\n|\n(?=\* )", text.strip())]
    return found


def promises() -> list[tuple[str, str, list[str]]]:
    """Of each item: who attacks what, the promise, and what shows it."""
    items = [item.removeprefix("* ") for blocks in ASSETS.values() for item in blocks if item.startswith("* ")]
    read = [(item, PROMISE.fullmatch(item)) for item in items]
    return [
        (row["target"], row["promise"], re.findall(r"`([^`]+)`", row["shown"])) if row else (item, "", []) for item, row in read
    ]


ASSETS = assets()
ROWS = promises()


def test_the_promises_are_read():
    assert len(ROWS) > 50 and not [target for target, promise, _ in ROWS if not promise]
    assert len({target for target, _, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize("asset", ASSETS)
def test_an_asset_says_what_holds_its_promises(asset):
    held, *items = ASSETS[asset]
    paths = re.findall(r"`([^`]+)`", held)
    assert held.startswith("Held by ") and paths and not [path for path in paths if not (ROOT / path).exists()]
    assert items and all(item.startswith("* ") for item in items)


@pytest.mark.parametrize("row", ROWS, ids=[f"{number}: {row[0][:60]}" for number, row in enumerate(ROWS)])
def test_what_shows_a_promise_is_there(row):
    target, _, shown = row
    assert shown or target in UNCONTROLLED
    for name in shown:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        if test:
            functions = [node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if hasattr(node, "name")]
            assert test in functions, name
        assert not path.startswith(PAIRS) or any(attack.area == Path(path).stem for attack in ATTACKS.values()), name
    controlled = [name for name in shown if name.startswith(PAIRS) or name in CONTROLLED]
    assert bool(controlled) is not (target in UNCONTROLLED), f"{target}: name its pairs, or say in UNCONTROLLED why it has none"


def test_every_test_of_attacks_shows_a_promise():
    named = {name.partition("::")[0] for _, _, shown in ROWS for name in shown}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "attacks").rglob("[a-z]*.py")}
    tests = {path for path in files if path.startswith(PAIRS) or Path(path).name.startswith("test_")}
    about = {"test_pairs.py", "test_inventory.py", "test_ordinary_programs.py"}
    assert {path for path in tests - named if Path(path).name not in about} == set()


def test_every_attack_has_its_control():
    assert len(ATTACKS) > 150
    assert all(attack.walls and set(attack.walls) <= set(DEFENCES) for attack in ATTACKS.values())
    assert {attack.area for attack in ATTACKS.values()} == {path.stem for path in registry.PAIRS.glob("[a-z]*.py")}


def test_every_defence_can_be_taken_away():
    """What a patch replaces stands there, so that its attack is not red for another reason."""
    for defence in DEFENCES.values():
        for patch in defence.patches:
            path = ROOT / patch.path if patch.path.startswith("init/") else ROOT / "aviato" / patch.path
            assert path.read_text().count(patch.old) == 1, f"{patch.path}: {patch.old}"
