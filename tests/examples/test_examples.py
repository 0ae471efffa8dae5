"""Each small example prints what it is there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OUTPUTS = {
    "quick_start": "42\nreturncode 0, 0 characters on stderr\n",
    "async_rollouts": f"{['2'] * 8}\n",
    "streaming": "".join(f"{how}: step {step}\n" for how in ("block", "await") for step in (1, 2, 3)) + "returncode 0\n",
    "stdin": "3\n1 + 1 = 2\n2 ** 10 = 1024\nreturncode 1\n",
    "files": (
        "b'4999950000\\n'\n588890 bytes of numbers\ndirectory data \nfile result 11\nfile sum.py 42\n"
        "['data', 'numbers', 'result', 'sum.py']\nproject/result no_such_file\n"
    ),
    "functions": (
        "Score(expression='4 * 6', right=True)\nScore(expression='4 + 6', right=False)\nraised ZeroDivisionError\n"
        "Score(expression='3 * 8', right=True) without a sandbox\n"
    ),
    "reconnect_by_id": "step 1\nstep 2\nreturncode 3\nafter the first line: step 2\n",
    "port": "hello from inside\n",
    "network": (
        "HTTP Error 403: Forbidden: the allow-list of this sandbox does not have example.org\n"
        "HTTP Error 403: Forbidden: the allow-list of this sandbox does not have api.example.net at port 80\n"
        "HTTP Error 403: Forbidden: the allow-list of this sandbox does not have 169.254.169.254\n"
        "reaches example.com *.example.net:443\n"
    ),
    "use_a_secret": "here: 21 characters\nin another sandbox: 0 characters\nrefused: AVIATO_SECRET_NO_SUCH_TOKEN\n",
    "many_sandboxes": f"{[n**2 for n in range(16)]}\n16 live\n0 live\n",
    "batch_with_progress": (
        "4 of 12 done\n8 of 12 done\n12 of 12 done\n"
        "wrong: a mistake: SandboxExecutionError, too slow: SandboxCommandTimeoutError\n"
    ),
    "adopt_orphans": "".join(f"{n} goes on at turn 5 of episode {n}\n" for n in range(3)) + "3 adopted\n0 left\n",
    "tagged_jobs": (
        "wandb-run:local\nslurm-job:interactive\nmodel:Qwen/Qwen2.5-3B-Instruct\nenv:dev\nproblem-0\n"
        "{'running': 3, 'pending': 0, 'total': 3}\n{'running': 0, 'pending': 0, 'total': 0}\n"
    ),
    "clean_up_by_tag": "3 of experiment-a ended\n2 of experiment-b live on\n2 of experiment-b ended\n",
    "old_sandboxes": "ended the one made for Monday\nthe young one is running\n",
    "hidden_grading": (
        "right, separate: passed\nright, in_process: passed\nwrong, separate: failed\nwrong, in_process: failed\n"
        "cheats, separate: failed\ncheats, in_process: passed\n"
    ),
    "errors": (
        "passed\nfailed with returncode 3\ntimed out, and had printed 'begun\\n'\n"
        "/missing: no_such_file, infrastructure: False\nno server: infrastructure: True\n"
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_example(name: str, server: Any) -> None:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert (done.stdout, done.returncode) == (OUTPUTS[name], 0), done.stderr
