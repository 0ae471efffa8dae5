"""The guides' code blocks run unchanged where sandboxes are containers."""

from __future__ import annotations

from tests.docker.engines import Engine
from tests.docker.test_promises import serving
from tests.guides.elsewhere import *

__all__ = ["serving"]
OF_THE_GUIDES = "python:3.11"
"""What their blocks ask for: in this engine it is the tests' own."""


@pytest.fixture(scope="module", autouse=True)
def image_of_the_guides(engine: Engine, python_image: str) -> None:
    if not engine.has(OF_THE_GUIDES):
        engine.tag(python_image, OF_THE_GUIDES)
