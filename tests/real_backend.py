"""Fixtures: sandboxes of a real backend, without a server. Imported by the conftests of the suites that use them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server import machine
from aviato.server.backends.local import syscalls
from aviato.server.backends.local.directories import Directories
from aviato.server.backends.registry import make_backend
from tests.base_roots import share
from tests.rl.machine import kill_process_1

CARRIER = os.environ.get("AVIATO_TEST_BACKEND", "local")
"""Which one, for suites that do not care."""


def _load():
    name = "aviato_test_boxes"
    if name not in sys.modules:
        path = Path(__file__).parent / "backends" / "boxes.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def boxes():
    return _load()


@pytest.fixture(scope="module")
async def backend(anyio_backend):
    async for opened in open_backend(CARRIER):
        yield opened


async def open_backend(name, directory=None):
    """A backend in a directory of its own, which ids of sandboxes can come to; this process is like a server's."""
    machine.raise_open_files()
    directory = directory or Path(tempfile.mkdtemp(prefix="aviato-backend-", dir="/tmp"))
    directory.chmod(0o711)
    share(directory)
    backend = make_backend(name, directory=directory, allow_any_directory=True)
    try:
        await backend.open()
    except SandboxUnavailableError as error:
        await backend.close()
        pytest.skip(str(error))
    try:
        yield backend
        assert await backend.place_ids() == []
        await backend.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # A backend may have closed this process to others, as a server's.


def end_sandboxes(directory):
    """End those that a server has left there for the next one."""
    directories = Directories(directory)
    for sandbox_id in directories.ids():
        kill_process_1(directories, sandbox_id)


@pytest.fixture
def make_box(backend, boxes):
    return lambda image=None, **options: boxes.make_box(backend, image, **options)


@pytest.fixture
async def box(make_box):
    async with make_box() as made:
        yield made
