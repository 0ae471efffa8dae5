"""`python -m aviato.promises`: the suite against a backend, or against a server that runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

PACKAGE = "aviato.promises"


def main() -> int:
    """Hand the checks to pytest; returns its exit status."""
    try:
        import pytest
    except ImportError:
        sys.exit("the checks are run by pytest, which is not installed: pip install pytest")

    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--backend", help="NAME or MODULE:CLASS, as aviato serve --backend")
    which.add_argument("--server", help="URL of a server that runs")
    known, others = parser.parse_known_args()
    chosen = ["--promises-backend", known.backend] if known.backend else ["--promises-server", known.server]
    checks = str(Path(__file__).with_name("all_checks.py"))
    # Without the settings of whatever project it is started in.
    usual = ["-c", "/dev/null", "--rootdir", str(Path(__file__).parent), "-p", "no:cacheprovider", "-q", "-rfEs"]
    plugins = ["-p", f"{PACKAGE}.options", "-p", f"{PACKAGE}.fixtures"]
    return int(pytest.main([*usual, *plugins, *chosen, *others, checks]))


if __name__ == "__main__":
    sys.exit(main())
