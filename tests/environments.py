"""Virtual environments with packages written by hand, for the Python that sandboxes of this machine have."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from aviato.server.images.interpreters import Interpreter, choose_default, find_interpreters


@cache
def interpreter() -> Interpreter:
    """The Python of sandboxes that ask for none."""
    found = choose_default(find_interpreters())
    assert found is not None
    return found


def make_environment(path: Path, *, minor: int | None = None, **packages: str) -> Path:
    """An environment: names of packages with their source."""
    minor = interpreter().minor if minor is None else minor
    site = path / "lib" / f"python3.{minor}" / "site-packages"
    site.mkdir(parents=True)
    home = os.path.dirname(interpreter().executable)
    (path / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\nversion = 3.{minor}.1\n")
    install(site, **packages)
    return path


def install(directory: Path, **packages: str) -> Path:
    """Packages as pip leaves them in a directory."""
    for name, source in packages.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(source)
        (directory / f"{name}-1.0.dist-info").mkdir()
        (directory / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    return directory


def site_of(environment: Path) -> Path:
    """Where its packages are."""
    return next(environment.glob("lib/*/site-packages"))
