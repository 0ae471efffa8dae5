"""The guides' code blocks run unchanged where sandboxes are pods."""

from __future__ import annotations

from tests.guides.elsewhere import *
from tests.kubernetes.pods.conftest import serving

__all__ = ["serving"]
