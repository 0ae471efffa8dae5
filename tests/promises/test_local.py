"""The promises, by the local backend."""

from __future__ import annotations

import pytest

from aviato.promises.all_checks import *
from aviato.promises.fixtures import *
from aviato.promises.serving import Serving
from tests.promises.conftest import serving_of


@pytest.fixture(scope="module")
def serving() -> Serving:
    return serving_of("local")
