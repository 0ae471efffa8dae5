"""`scripts/shape.py`: what it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "shape.py"
PYTHON = """'A module.'


def one():  # a reason
    return 1


class Two:
    def three(self):
        # Another reason.

        return 3
"""
RUST = """//! A module.

// A reason.
pub(crate) fn one() -> u8 {
    1
}

trait Two {
    fn declared(&self);
}
"""


def shape(folder: Path) -> list[str]:
    said = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True, timeout=250, check=True).stdout
    return next(line for line in said.splitlines() if line.startswith(str(folder))).split()[1:]


def test_what_it_counts(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "one.py").write_text(PYTHON)
    (tmp_path / "python" / "two.py").write_text("pass\n")
    assert shape(tmp_path / "python") == ["2", "13", "12", "6", "2", "4", "15.4"]
    (tmp_path / "rust").mkdir()
    (tmp_path / "rust" / "one.rs").write_text(RUST)
    assert shape(tmp_path / "rust") == ["1", "10", "10", "10", "3", "3", "10.0"]


@pytest.mark.deep
def test_the_tree_has_one() -> None:
    said = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=250, check=True).stdout
    assert all(name in said for name in ("aviato ", "init/src ", "tests ", "httpx ", "lines of tests for 100 of the product"))
