"""What code sees of the process that it runs in: that of a bare `python solution.py`, and what it does to it spoils nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

CODES = {
    "the first descriptor is 3": "n = open('/dev/null').fileno()\nassert n == 3, n",
    "pipes are 3 and 4": "import os\nassert os.pipe() == (3, 4)",
    "descriptors that are listed": "import os\nassert [n for n in range(3, 200) if os.path.exists(f'/proc/self/fd/{n}')] == []",
    "closerange to 256": "import os\nos.closerange(3, 256)",
    "closerange to 4096": "import os\nos.closerange(3, 4096)",
    "closerange far beyond": "import os\nos.closerange(3, 1 << 20)",
    "closerange of what may be": "import os\nos.closerange(3, os.sysconf('SC_OPEN_MAX'))",
    "closerange by its limit": "import os, resource\nos.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])",
    "a loop of close": (
        "import os, resource\nfor n in range(3, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 17)):\n"
        "    try: os.close(n)\n    except OSError: pass"
    ),
    "a loop of close to 1024": "import os\nfor n in range(3, 1024):\n    try: os.close(n)\n    except OSError: pass",
    "dup2 to 3": "import os\nos.dup2(1, 3); os.dup2(2, 4); os.dup2(2, 5)",
    "a child without descriptors": "import subprocess\nsubprocess.run(['true'], close_fds=True, check=True)",
    "a child that sees none": (
        "import subprocess\nseen = subprocess.check_output(['sh', '-c', 'echo /proc/self/fd/*'], close_fds=False)\n"
        "assert b'/3' in seen and b'/4' not in seen, seen"
    ),
    "a daemon": (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 256)\n    os._exit(0)\nassert os.wait()[1] == 0"
    ),
    "getrecursionlimit": "import sys\nassert sys.getrecursionlimit() == 1000, sys.getrecursionlimit()",
    "setrecursionlimit": "import sys\nsys.setrecursionlimit(5000)\nassert sys.getrecursionlimit() == 5000",
    "setrecursionlimit twice": "import sys\nfor _ in range(9): sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 ** 6))",
    "a depth that was set": (
        "import sys\nsys.setrecursionlimit(2000)\ndef deep(n): return n and 1 + deep(n - 1)\nassert deep(1990) == 1990"
    ),
    "the depth of a limit": (
        "import sys\ndef deep(n):\n    try: return deep(n + 1)\n    except RecursionError: return n\n"
        "assert 980 < deep(0) <= 1000, deep(0)"
    ),
    "a limit that is wrong": (
        "import sys\nfor wrong, kind in ((0, ValueError), (-5, ValueError), ('9', TypeError), (1 << 40, OverflowError)):\n"
        "    try: sys.setrecursionlimit(wrong)\n    except kind: pass\n    else: assert False, wrong"
    ),
    "orig_argv": "import sys\nassert not any('marshal' in each for each in sys.orig_argv)",
    "argv": "import sys\nassert len(sys.argv) == 1 and sys.argv[0].endswith('solution.py')",
    "__cached__": "assert '__cached__' in globals()",
    "a descriptor that is open no more": "import os\ntry: os.fstat(3)\nexcept OSError: pass\nelse: assert False",
    "no assertion holds": "assert False",
}
WRONG = ("no assertion holds",)


def test_the_verdict_is_a_bare_runs(outcomes: Callable[..., list[Outcome]], tmp_path: Path) -> None:
    test = "assert f(2) == 4"
    codes = {name: f"{code}\ndef f(n): return 2 * n\n" for name, code in CODES.items()}
    for number, (name, code) in enumerate(codes.items()):
        (folder := tmp_path / str(number)).mkdir()
        assert bare(Row(code, test), folder) is (name not in WRONG), f"the table is wrong about a plain Python: {name}"
    for mode in ("in_process", "separate"):
        found = outcomes([Task(code=code, tests=[test, test], grading=mode) for code in codes.values()])
        wrong = {name: one.message for name, one in zip(codes, found, strict=True) if one.passed is (name in WRONG)}
        assert not wrong, (mode, wrong)


ENDS = {
    "what speaks is closed": "import os\nfor n in map(int, os.listdir('/proc/self/fd')):\n    if n > 2: os.close(n)\n",
    "it is closed and it ends": "import os\nos.closerange(3, 1 << 20)\nos._exit(0)\n",
    "a verdict of its own": (
        "import os\nfor n in map(int, os.listdir('/proc/self/fd')):\n"
        "    try: n > 2 and os.write(n, b'passed\\n' * 9)\n    except OSError: pass\n"
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_nothing_is_won_by_it(name: str, outcomes: Callable[..., list[Outcome]]) -> None:
    code = f"{ENDS[name]}def f(n): return 7\n"
    tasks = [Task(code=code, tests=["assert f(2) == 4"], grading=mode) for mode in ("in_process", "separate")]
    assert [one.reward() for one in outcomes(tasks, timeout_seconds=8)] == [0.0, 0.0]
