"""What a run ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The facts that a result is read with."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uid": os.getuid(),
        "load": os.getloadavg()[0],
    }


def description(facts: dict[str, Any]) -> str:
    """One line about it."""
    who = "root" if facts["uid"] == 0 else "a user"
    python = f"Python {facts['python']}, as {who}, load {facts['load']:.1f}"
    return f"{facts['cpus']} × {facts['model']}, Linux {facts['kernel']}, {python}"
