"""llm-sandbox: its bubblewrap backend, without the virtual environment that it else makes in each session."""

import os
import shlex
import tempfile
from pathlib import Path

from llm_sandbox import SandboxSession
from llm_sandbox.local.config import LocalSandboxConfig

config = LocalSandboxConfig(max_output_bytes=1 << 30)
options = {"lang": "python", "skip_environment_setup": True, "bwrap_path": os.environ["BENCHMARK_BWRAP"]}
copies = tempfile.TemporaryDirectory()


def create():
    session = SandboxSession(backend="bubblewrap", sandbox_config=config, **options)
    session.open()
    return session


def run(session, argv):
    output = session.execute_command(shlex.join(argv))
    return output.exit_code, output.stdout


def write(session, path):
    session.copy_to_runtime(path, "/sandbox/payload")


def read(session):
    session.copy_from_runtime("/sandbox/payload", f"{copies.name}/payload")
    return Path(copies.name, "payload").read_bytes()


def stop(session):
    session.close()
