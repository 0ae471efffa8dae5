"""Sandboxes of the real local backend, and nobody's settings."""

import pytest

from tests.real_backend import anyio_backend, backend, box, boxes, make_box

__all__ = ["anyio_backend", "backend", "box", "boxes", "make_box"]


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """No credentials and no proxies of whoever runs the tests."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "SSL_CERT_FILE")
    for name in (*names, *(f"{scheme}_proxy" for scheme in ("http", "https", "all", "no"))):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
