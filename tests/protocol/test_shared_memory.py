"""See `aviato.server.backends.conformance`."""

import pytest

from aviato.server.backends.conformance.shared_memory import *
from tests.matrices import deep

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("make", ["zygote", *deep(["serve"])], indirect=True)]
"""Not over a network, where no descriptors come."""
