"""What a client loads: aiohttp only where it is asked for what needs it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import in_interpreter

PROGRAM = """
import sys
import aviato
from aviato.rl import Task, evaluate
box = aviato.Sandbox()
assert box.exec(["cat"], stdin=b"in").result().stdout == "in"
box.write_file("a", b"x" * 3_000_000).result()
assert len(box.read_file("a").result()) == 3_000_000
assert [outcome.passed for outcome in evaluate([Task(code="n = 1", tests=["assert n == 1"])] * 8).result(50)] == [True] * 8
try:
    box.read_file("missing").result()
except aviato.SandboxFileError:
    pass
box.stop().result()
print("aiohttp" in sys.modules)
"""


def test_on_a_unix_socket_it_is_not_loaded(state: Path) -> None:
    done = in_interpreter(PROGRAM, timeout=50, AVIATO_STATE_DIR=str(state))
    assert (done.stdout, done.stderr) == ("False\n", "")
