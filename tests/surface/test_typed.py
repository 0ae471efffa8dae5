"""What a type checker finds in a user's program before it runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio
import pathlib

import aviato
from aviato import Sandbox, Session, SandboxDefaults
from aviato.rl import Task, evaluate

box = Sandbox.run("true", typo=1)  # WRONG
box = Sandbox.run("true", command="echo")  # WRONG
box = Sandbox(image="host")  # WRONG
box = Sandbox(container_image=3)  # WRONG
aviato.Nope  # WRONG
aviato.Client()  # WRONG
box.exec(["true"], timeout=3)  # WRONG
box.exec(["true"], timeout_seconds="3")  # WRONG
box.kill()  # WRONG
box.exec(["true"]).result().exit_code  # WRONG
SandboxDefaults(image="host")  # WRONG
aviato.NetworkOptions(egress="none")  # WRONG
Session().sandbox(image="host")  # WRONG
Task(solution="1")  # WRONG
evaluate([], image="host")  # WRONG


async def main() -> None:
    async with aviato.AsyncClient() as client:
        made = await client.sandbox(image="host")  # WRONG
        await made.exec(["true"], timeout=3)  # WRONG
        made.spawn(["true"], timeout=3)  # WRONG
        await made.exec([pathlib.Path("/bin/true")], timeout_seconds=3.0, check=True)


Sandbox.run("echo", "here", container_image="host", tags=["a"], detached=True)
Sandbox.run(args=["a"])
Sandbox(command="true", environment_variables={"A": "b"}, exec_timeout_seconds=3)
box.exec([pathlib.Path("/bin/true"), "x"], cwd="/", env={"A": "b"}, check=True).result().returncode + 1
box.exec(["true"]).result().stdout.upper()
Session(SandboxDefaults(tags=("a",))).sandbox(container_image="host")
evaluate([Task(code="1", tests=["assert True"])], container_image="host").result()[0].passed
asyncio.run(main())
aviato.__version__.upper()
"""


def test_wrong_names_are_found_and_right_ones_are_not(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--strict", str(file)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    found = {int(number) for number in re.findall(rf"{re.escape(file.name)}:(\d+): error", done.stdout)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# WRONG")}
    assert found == wrong, done.stdout + done.stderr
