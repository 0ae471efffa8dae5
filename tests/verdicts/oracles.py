"""The verdicts of plain Python, pytest and unittest on a test source beside code, and the one that is had here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import aviato.grading.inside
from aviato.rl.test_source import look

RIGHT = """
def f(x):
    if x < 0:
        raise ValueError("negative")
    return 2 * x
"""
WRONG = """
def f(x):
    return 7
"""
COLLECT = Path(aviato.grading.inside.__file__).with_name("collect.py")
ENVIRONMENT = dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
"""Without the plugins of this project's tests, whose import takes longer than all the rest."""
DRIVEN = Path(__file__).with_name("driven.py")


def plain(how: str, code: str, source: str, folder: Path) -> str:
    """`passed` or `failed`, by the return code of `python` or `python -m unittest`."""
    path = folder / "test_solution.py"
    path.write_bytes((code + "\n" + source).encode(errors="surrogatepass"))
    command = {
        "python": [sys.executable, "-S", path.name],
        "unittest": [sys.executable, "-m", "unittest", path.stem],
    }[how]
    found = subprocess.run(command, cwd=folder, capture_output=True, timeout=250, env=ENVIRONMENT)
    return "failed" if found.returncode else "passed"


def by_pytest(codes: tuple[str, ...], sources: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """What one run of pytest says of each source with each code: `passed`, `failed`, or `not_run` where it found no test."""
    for number, source in enumerate(sources.values()):
        for which, code in enumerate(codes):
            (folder / f"test_{number}_{which}.py").write_text(code + "\n" + source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
    command += ["--continue-on-collection-errors", "--junitxml", "report.xml"]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=250, env=ENVIRONMENT)
    found: dict[str, str] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        module = next(part for part in f"{case.get('classname')}.{case.get('name')}".split(".") if part.startswith("test_"))
        bad = case.find("failure") is not None or case.find("error") is not None
        found[module] = "failed" if bad else found.get(module, "passed")
    names = [[f"test_{number}_{which}" for which in range(len(codes))] for number in range(len(sources))]
    return {name: [found.get(one, "not_run") for one in row] for name, row in zip(sources, names, strict=True)}


def here(code: str, source: str, folder: Path, python: str = sys.executable) -> str:
    """`refused`, or what the driver says: `passed`, `failed: …`, `not_run`, `skipped`, `ended_early`."""
    told = look(source)
    if told.kind == "nothing":
        return "refused"
    job = {"code": code, "source": told.instrumented, "kind": told.kind}
    job |= {"counts_checks": told.counts_checks, "already_run": told.already_run}
    found = subprocess.run(
        [python, str(DRIVEN), str(COLLECT)],
        cwd=folder,
        env=ENVIRONMENT,
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.rstrip("\n").split("\n")[-1]
