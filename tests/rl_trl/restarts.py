"""The same training run again and again, for a test that kills its server: `python restarts.py RESULTS CALL NAME…`.

CALL is a file that says which reward call is under way. Each run has the same completions; what differs is what happens to the
machine meanwhile.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import training  # noqa: E402

from aviato.rl.trl import code_reward  # noqa: E402

STEPS = 6
SECONDS = 1.5
"""Each completion's code takes so long."""


def sayer(seed: int) -> Callable[[int, str], str]:
    """Right, wrong, raising or without code, drawn from the seed, the step and the place."""
    draw = random.Random(seed)

    def say(index: int, prompt: str) -> str:
        number = int(re.findall(r"#(\d+)#", prompt)[-1])
        result = draw.choice([number, number, number + 1, "1 / 0", None])
        if result is None:
            return "I would rather not."
        return f"<answer>import time\ntime.sleep({SECONDS})\ndef answer(): return {result}</answer>"

    return say


class Told:
    """A reward function that tells which of its calls is under way."""

    def __init__(self, reward: Any, file: Path, run: str) -> None:
        self.__name__ = "told"
        self._reward = reward
        self._file = file
        self._run = run
        self._calls = 0

    def __call__(self, **columns: Any) -> Any:
        self._calls += 1
        self._file.with_suffix(".new").write_text(f"{self._run} {self._calls}")
        self._file.with_suffix(".new").rename(self._file)
        rewards = self._reward(**columns)
        self._file.unlink()
        return rewards


def main() -> None:
    results, call, *names = sys.argv[1:]
    folder = training.local_models.make_tiny(Path(tempfile.mkdtemp()))
    found: dict[str, Any] = {}
    for name in names:
        reward = Told(code_reward(tests_column="unit_tests"), Path(call), name)
        found[name] = training.train(folder, sayer(1), reward, conversational=True, max_steps=STEPS)
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
