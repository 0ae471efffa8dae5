"""The promises, by a small backend of one folder, which has nothing but commands and files and declares that."""

from __future__ import annotations

import pytest

from aviato.promises.all_checks import *
from aviato.promises.fixtures import *
from aviato.promises.serving import Serving
from tests.promises.conftest import serving_of

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def serving() -> Serving:
    return serving_of("tests.bubblewrap_backend:BubblewrapBackend")
