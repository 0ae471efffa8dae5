"""What is the code's fault, and what is ours: only the first may become a reward.

Run it with `python examples/errors.py`.
"""

from aviato import AviatoError, Sandbox, SandboxCommandTimeoutError, SandboxExecutionError, SandboxFileError


def what_happened(sandbox: Sandbox, command: list[str]) -> str:
    try:
        sandbox.exec(command, timeout_seconds=1, check=True).result()
    except SandboxCommandTimeoutError as error:
        return f"timed out, and had printed {error.exec_result.stdout!r}"
    except SandboxExecutionError as error:
        return f"failed with returncode {error.exec_result.returncode}"
    return "passed"


with Sandbox() as sandbox:
    print(what_happened(sandbox, ["true"]))
    print(what_happened(sandbox, ["sh", "-c", "exit 3"]))
    print(what_happened(sandbox, ["sh", "-c", "echo begun; sleep 60"]))
    try:
        sandbox.read_file("/missing").result()
    except SandboxFileError as error:
        print(f"{error.filepath}: {error.reason}, infrastructure: {error.is_infrastructure}")

try:
    Sandbox(base_url="unix:///nobody/listens.sock").start().result()
except AviatoError as error:
    print(f"no server: infrastructure: {error.is_infrastructure}")
