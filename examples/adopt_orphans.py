"""A new trainer takes over the detached sandboxes of one that died, state and all, and stops them at its own end.

Run it with `python examples/adopt_orphans.py`.
"""

import subprocess
import sys

from aviato import Sandbox, SandboxDefaults, Session

FIRST = """
import os
from aviato import Sandbox

for number in range(3):
    sandbox = Sandbox(tags=["run-7"], annotations={"episode": str(number)}, detached=True, max_lifetime_seconds=3600)
    sandbox.write_file("state", b"turn 5 of episode %d" % number).result()
os._exit(1)
"""

subprocess.run([sys.executable, "-c", FIRST])

with Session(SandboxDefaults(tags=["run-7"])) as session:
    for sandbox in session.list(status="running", adopt=True).result():
        print(sandbox.annotations["episode"], "goes on at", sandbox.read_file("state").result().decode())
    print(session.sandbox_count, "adopted")
print(len(Sandbox.list(tags=["run-7"]).result()), "left")
