"""The words of pytest's command line that say what the suite is for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# For assertions that say what they compared.
pytest.register_assert_rewrite(
    *({f"{__package__}.{path.stem}" for path in Path(__file__).parent.glob("*.py")} - {*sys.modules, f"{__package__}.__init__"})
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    parser.addoption("--promises-backend", help="the backend that servers of the suite carry sandboxes by")
    parser.addoption("--promises-server", help="the server that runs and is asked")
