"""Certificates that sign themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(path: Path, names: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
    """The files of a certificate and its key, in a directory."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    cert, key = path / "cert.pem", path / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command = ["openssl", "req", "-x509", *kind, "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
