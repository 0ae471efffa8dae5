"""What `import aviato` promises: names, cost, and nothing behind one's back."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import types
from importlib.util import find_spec

import pytest

import aviato
from aviato import exceptions

NAMES = [
    "AsyncClient",
    "AsyncUsageWarning",
    "FileInfo",
    "GradeCase",
    "GradeResult",
    "Image",
    "ImageInfo",
    "PushInfo",
    "NetworkOptions",
    "ResourceOptions",
    "OperationRef",
    "Pool",
    "Process",
    "ProcessResult",
    "RemoteFunction",
    "ResourceUsage",
    "Sandbox",
    "SandboxDefaults",
    "SandboxStatus",
    "Secret",
    "Serialization",
    "Session",
    "Snapshot",
    "StreamReader",
    "StreamWriter",
    "TerminalResult",
    "TerminalSession",
    "as_completed",
    "results",
    "stop_on_sigterm",
    "wait",
    "__version__",
]
FRAMEWORKS = {"inspect_ai", "verifiers", "harbor", "openenv"}
HEAVY = [
    "aviato.functions",
    "cloudpickle",
    "aiohttp",
    "pydantic",
    "wandb",
    "click",
    "docker",
    "kubernetes",
    "tenacity",
    "uvloop",
    "aviato.bridge.loop",
]


def client_modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(aviato.__path__, "aviato.")]
    return [name for name in found if not name.startswith(("aviato.server", "aviato.cli"))]


def test_the_public_names() -> None:
    errors = [
        name for name, value in vars(exceptions).items() if isinstance(value, type) and issubclass(value, (Exception, Warning))
    ]
    assert aviato.__all__ == sorted({*NAMES, *errors})
    for name in aviato.__all__:
        assert getattr(aviato, name) is not None
        assert name in dir(aviato)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = aviato.nothing  # type: ignore[attr-defined]


def test_results_is_the_function_whatever_was_imported() -> None:
    from aviato.results import ProcessResult

    assert isinstance(aviato.results, types.FunctionType)
    assert ProcessResult is aviato.ProcessResult
    assert aviato.exceptions.AviatoError is aviato.AviatoError


def test_import_loads_little_and_starts_nothing() -> None:
    source = f"""
import sys, threading, signal
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
import aviato
from aviato import Sandbox, Session, SandboxDefaults
Sandbox(), Session()
assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
assert threading.active_count() == 1
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", client_modules()[::10])
def test_a_module_is_imported_alone(module: str) -> None:
    """A part of them: that no two import each other is a contract of import-linter's."""
    _, _, framework = module.partition("aviato.integrations.")
    if framework in FRAMEWORKS:
        if find_spec(framework) is not None:
            pytest.skip("with its framework's own warnings, tests/integrations imports it")
        told = "'install it with: ' in str(error) or 'needs Python 3.12' in str(error)"
        refused = f"except ImportError as error: assert {told}, error"
        source = f"try: import {module}\n{refused}\nelse: raise SystemExit(1)"
    else:
        source = f"import {module}"
    subprocess.run([sys.executable, "-W", "error", "-c", source], check=True, timeout=250)


def test_imports_stay_few() -> None:
    """The time of an import is measured (benchmarks/latency.py); what it grows with is counted here."""

    def loaded(source: str) -> int:
        counting = f"import sys; before = len(sys.modules); {source}; print(len(sys.modules) - before)"
        return int(subprocess.run([sys.executable, "-c", counting], capture_output=True, check=True).stdout)

    assert loaded("import aviato") <= 35
    assert loaded("from aviato import Sandbox, Session, SandboxDefaults") <= 95
