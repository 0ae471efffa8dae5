"""Tests that the policy never sees, in a sandbox that it never was in: code that cheats passes the one way and not the other.

Run it with `python examples/hidden_grading.py`.
"""

from aviato import Sandbox

TESTS = b"""
from solution import double

def check():
    assert double(2) == 4
    assert double(3) == 6

check()
"""
SOLUTIONS = {
    "right": b"def double(n): return 2 * n",
    "wrong": b"def double(n): return n * n",
    "cheats": b"class Equal:\n    __eq__ = lambda *_: True\n\ndef double(n): return Equal()",
}

with Sandbox() as sandbox:
    for name, solution in SOLUTIONS.items():
        sandbox.write_file("solution.py", solution).result()
        for mode in ("separate", "in_process"):
            graded = sandbox.grade(
                {"check.py": TESTS}, ["python3", "check.py"], result_paths=["solution.py"], mode=mode, timeout_seconds=20
            ).result()
            print(f"{name}, {graded.mode}: {'passed' if graded.passed else 'failed'}")
