"""Servers for the suite of whole backends, which share what is the same for all of a test run."""

from __future__ import annotations

import sys

from aviato.promises.serving import Serving
from tests.base_roots import share
from tests.conftest import SERVE


def serving_of(backend: str, **variables: str) -> Serving:
    """How the suite comes by servers with this backend."""
    return Serving(backend=backend, variables=variables, command=(sys.executable, "-c", SERVE), prepare=share)
