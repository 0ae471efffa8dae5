"""The promises, by pods of a real cluster."""

from __future__ import annotations

from aviato.promises.all_checks import *
from aviato.promises.fixtures import *
from tests.kubernetes.pods.conftest import serving

__all__ = ["serving"]
