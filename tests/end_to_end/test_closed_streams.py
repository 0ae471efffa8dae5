"""Programs that were started without some of their standard streams: the library takes none of their numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrices import deep

"""Each row is some processes one after the other."""
CLOSED = ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
WHERE = """
import os, sys
def where():
    return [os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else "" for fd in range(3)]
of_the_program = []
def report(said):
    taken = [name for name in where() if name.startswith(("anon_inode:", "socket:")) or "aviato" in name]
    ours = [name for name in taken if name not in of_the_program]
    with open(sys.argv[1], "w") as file:
        file.write(f"{said!r} {ours}")
"""
HOW = {
    "blocking": """
import aviato
with aviato.Sandbox() as sandbox:
    report(sandbox.exec(["echo", "hi"]).result(60).stdout)
""",
    "async": """
import aviato, asyncio
async def main():
    of_the_program.extend(where())  # its own loop's
    async with aviato.AsyncClient() as client, await client.sandbox() as sandbox:
        report((await sandbox.exec(["echo", "hi"])).stdout)
asyncio.run(main())
""",
    "closed between calls": """
import aviato
with aviato.Sandbox() as sandbox:
    sandbox.exec(["true"]).result(60)
    os.closerange(0, 3)
    report(sandbox.exec(["echo", "hi"]).result(60).stdout)
""",
    "a function": """
import aviato
with aviato.Session() as session:
    @session.function()
    def greet(name):
        return f"hi{chr(10)}"
    report(greet.remote("you").result(60))
""",
}


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *deep(CLOSED[:-1])])
@pytest.mark.parametrize("how", ["blocking", *deep(sorted(set(HOW) - {"blocking"}))])
def test_it_works_and_ends(served: Any, tmp_path: Path, closed: str, how: str) -> None:
    path, program = tmp_path / "said", tmp_path / "program.py"
    program.write_text(WHERE + HOW[how])
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, str(program), str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr, path.read_text()) == (0, b"", b"", "'hi\\n' []")


def test_the_embedded_server_comes_up_too(state: Path, tmp_path: Path) -> None:
    path, program = tmp_path / "said", tmp_path / "program.py"
    program.write_text(WHERE + HOW["blocking"])
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, str(program), str(path)]
    done = subprocess.run(command, env={**os.environ, "AVIATO_STATE_DIR": str(state)}, timeout=250, check=False)
    assert (done.returncode, path.read_text()) == (0, "'hi\\n' []")
