"""The image of sandboxes that name none: the machine's own tree, or the one that `AVIATO_TEST_IMAGE` names.

`AVIATO_TEST_IMAGE=$(python -m tests.images.debian)` has all attacks made in an imported image. No flag of the product does
it: what a server takes for its default is replaced in its process.
"""

from __future__ import annotations

import os

IMAGE = os.environ.get("AVIATO_TEST_IMAGE")
"""As a user gives it; None: the machine's own tree."""

_REPLACE = """
def replace(image):
    from aviato.server.images.resolve import LocalImages
    resolve = LocalImages.resolve
    def of_default(images, reference, fallback=None):
        # Before there is a store, a backend asks for the machine's own Python.
        return resolve(images, reference or (image if images.store is not None else None), fallback)
    LocalImages.resolve = of_default
"""
BEFORE_SERVE = f"{_REPLACE}replace({IMAGE!r})\n" if IMAGE else ""
"""What a program does first that then starts a server."""


def replace_here() -> None:
    """Have backends of this process do so."""
    exec(BEFORE_SERVE, {})
