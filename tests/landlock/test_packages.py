"""Packages of a caller's in sandboxes without namespaces: read where they lie, and nothing beside them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from tests.environments import make_environment, site_of

pytestmark = pytest.mark.anyio
SAY = "import greetings; print(greetings.WORD)"


@pytest.fixture
def environment():
    """Where the ids of sandboxes can come to it."""
    path = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    path.chmod(0o755)
    yield make_environment(path / "env", greetings="WORD = 'hello'")
    shutil.rmtree(path)


async def test_they_are_imported_however_python_is_started(make_box, environment):
    async with make_box(packages=str(environment)) as box:
        for argv in (["python3"], ["python", "-I"]):
            assert (await box.run(*argv, "-c", SAY)).stdout == "hello\n"
        assert (await box.run("python3", "-c", SAY, env={"HOME": "/nowhere"})).stdout == "hello\n"
    async with make_box() as box:
        assert "No module named 'greetings'" in (await box.run("python3", "-c", SAY)).stderr


async def test_nothing_changes_them_and_nothing_beside_them_is_read(make_box, environment):
    site = site_of(environment)
    site.chmod(0o777)
    beside = site.with_name("beside")
    beside.write_text("secret")
    async with make_box(packages=str(environment)) as box:
        assert (await box.sh(f"cat {site}/greetings/__init__.py")).stdout == "WORD = 'hello'"
        for script in (f"touch {site}/new", f"rm -r {site}/greetings", f"cat {beside}", f"cat {environment}/pyvenv.cfg"):
            assert (await box.sh(script)).returncode != 0, script
    assert sorted(path.name for path in site.iterdir()) == ["greetings", "greetings-1.0.dist-info"]


@pytest.mark.parametrize("by", ["rename", "link"])
async def test_what_is_put_in_its_place_is_not_read(backend, make_box, environment, monkeypatch, by):
    site, create = site_of(environment), backend._create_somewhere
    away, hidden = site.with_name("away"), site.with_name("hidden")
    hidden.mkdir()
    (hidden / "secret").write_text("secret")

    def swap():
        site.rename(away)
        site.symlink_to(hidden) if by == "link" else hidden.rename(site)

    async def swapped(spec):
        swap()
        return await create(spec)

    monkeypatch.setattr(backend, "_create_somewhere", swapped)
    with pytest.raises(SandboxUnavailableError):
        async with make_box(packages=str(environment)):
            pass
    site.unlink() if by == "link" else site.rename(hidden)
    away.rename(site)
    monkeypatch.setattr(backend, "_create_somewhere", create)
    # In its place later: what is open is the directory, and not what has its name.
    async with make_box(packages=str(environment)) as box:
        swap()
        assert (await box.sh(f"cat {site}/secret")).stdout == ""
        assert (await box.sh(f"cat {away}/greetings/__init__.py")).stdout == "WORD = 'hello'"


@pytest.mark.skipif(os.geteuid() != 0, reason="sandboxes have the server's id")
async def test_a_directory_above_that_is_closed(backend, environment):
    environment.parent.chmod(0o700)
    image = backend.resolve_image(None)
    with pytest.raises(AviatoValidationError, match="a directory above it is closed"):
        await backend.check_packages(str(environment), image, registered=False)
