"""A sandbox, a command, its result.

Run it with `python examples/quick_start.py`.
"""

from aviato import Sandbox

with Sandbox() as sandbox:
    result = sandbox.exec(["python", "-c", "print(6 * 7)"], timeout_seconds=30).result()
    print(result.stdout, end="")
    print(f"returncode {result.returncode}, {len(result.stderr)} characters on stderr")
