"""The promises, by the landlock backend."""

from __future__ import annotations

import pytest

from aviato.promises.all_checks import *
from aviato.promises.fixtures import *
from aviato.promises.serving import Serving
from aviato.server.backends.local import landlock_calls as calls
from tests.promises.conftest import serving_of

pytestmark = [pytest.mark.deep, pytest.mark.skipif(not calls.abi(), reason="this kernel has no Landlock")]


@pytest.fixture(scope="module")
def serving() -> Serving:
    return serving_of("landlock")
