"""Where a framework is not installed, its adapter says what installs it; nothing else needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aviato.installation import extra_command

PROGRAM = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('inspect_ai', 'verifiers', 'harbor', 'openenv', 'opentelemetry', 'prometheus_client'):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import aviato.integrations, aviato.rl, aviato.cli.main
from aviato import Sandbox, Session
try:
    import aviato.integrations.MODULE
except ImportError as error:
    print(error)
"""


EXTRAS = {
    "inspect_ai": "inspect",
    "verifiers": "verifiers",
    "harbor": "harbor",
    "openenv": "openenv",
    "opentelemetry": "otel",
    "prometheus": "prometheus",
}


@pytest.mark.parametrize(("module", "extra"), EXTRAS.items())
def test_a_missing_framework_names_the_extra(module: str, extra: str) -> None:
    command = [sys.executable, "-c", PROGRAM.replace("MODULE", module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    if module == "harbor" and sys.version_info < (3, 12):
        assert "harbor needs Python 3.12 or newer" in done.stdout
    else:
        assert done.stdout.endswith(f"install it with: {extra_command(extra)}\n")
