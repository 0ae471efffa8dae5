"""Tables of tests that are long: which rows always run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def deep(values: Iterable[Any]) -> list[Any]:
    """Parameters (a tuple is several) that are made with `--long` only: others show what they show, for its kind."""
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.deep) for value in values]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """One parameter of so many always, beginning with the first, and the others with `--long`."""
    return [value if number % step == 0 else deep([value])[0] for number, value in enumerate(values)]
