"""The promises, by the docker backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aviato.promises.all_checks import *
from aviato.promises.fixtures import *
from aviato.promises.serving import Serving
from tests.docker.engines import Engine
from tests.docker.test_sandboxes import mine
from tests.promises.conftest import serving_of

pytestmark = pytest.mark.timeout(300)  # The first one may have the image made.


@pytest.fixture(scope="module")
def serving(engine: Engine, python_image: str) -> Iterator[Serving]:
    yield serving_of("docker", AVIATO_DEFAULT_IMAGE=python_image, AVIATO_DOCKER_HOST=engine.address)
    assert mine(engine) == []
