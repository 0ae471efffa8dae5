"""Sandboxes of the real local backend."""

from tests.real_backend import anyio_backend, backend, box, boxes, make_box

__all__ = ["anyio_backend", "backend", "box", "boxes", "make_box"]
