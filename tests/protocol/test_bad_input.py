"""See `aviato.server.backends.conformance`: every implementation always, since it costs one sandbox."""

from typing import Any

import pytest

from aviato.server.backends.conformance.bad_input import *
from aviato.server.backends.conformance.process_1 import Make
from tests.protocol.implementations import IMPLEMENTATIONS


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def make(request: pytest.FixtureRequest, backend: Any) -> Make:
    return lambda **options: IMPLEMENTATIONS[request.param](backend, options)
