"""A command that goes on without the process that began it, and another process that reads the rest.

Run it with `python examples/reconnect_by_id.py`.
"""

import subprocess
import sys

from aviato import Sandbox


def begin() -> None:
    """Runs in a process of its own, which ends at once."""
    sandbox = Sandbox.run(detached=True, max_lifetime_seconds=600)
    process = sandbox.exec(["sh", "-c", "echo step 1; sleep 1; echo step 2; exit 3"], detach=True)
    print(sandbox.sandbox_id, process.exec_id)


def reconnect(sandbox_id: str, exec_id: str) -> None:
    sandbox = Sandbox.from_id(sandbox_id).result()
    process = sandbox.attach(exec_id)
    for line in process.stdout.lines():
        print(line)
    print("returncode", process.result().returncode)
    rest = sandbox.attach(exec_id, stdout_offset=len("step 1\n")).result()
    print("after the first line:", rest.stdout, end="")
    sandbox.stop().result()


if sys.argv[1:] == ["begin"]:
    begin()
else:
    ids = subprocess.run([sys.executable, __file__, "begin"], capture_output=True, text=True, check=True).stdout.split()
    reconnect(*ids)
