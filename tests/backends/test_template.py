"""What the template does with requests that fail, and with those that compiled code leaves to Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.base import MountedFile
from aviato.server.backends.local import native
from tests.real_backend import CARRIER, open_backend

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["compiled", "interpreted"])
async def backend(request, anyio_backend):
    if request.param == "compiled" and native.load() is None:
        pytest.skip("no C compiler was there when aviato was installed")
    async for opened in open_backend(CARRIER):
        opened._native = request.param == "compiled"
        yield opened


def descriptors(backend):
    folder = Path(f"/proc/{backend._template._process.pid}/fd")
    return sorted((fd.name, str(fd.readlink())) for fd in folder.iterdir())


def children(backend):
    pid = backend._template._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_what_fails_is_named_and_nothing_is_left_of_it(backend, boxes):
    async with boxes.make_box(backend):
        pass
    before = descriptors(backend)
    real = backend._places.path
    # A name that has to be escaped on its way to the server, whoever writes it.
    for path in ('/nowhere/"quoted\\ ü\n', str(backend._places.sandboxes)):
        backend._places.path = lambda _, path=path: path
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError) as caught:
                async with boxes.make_box(backend):
                    pass
            assert "exists" in str(caught.value) or "No such file or directory" in str(caught.value)
            assert path in str(caught.value) or repr(path)[1:-1] in str(caught.value)
    backend._places.path = real
    assert descriptors(backend) == before
    assert children(backend) == []
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0


async def test_a_child_whose_ids_cannot_be_mapped_is_killed(backend, boxes):
    take = backend._uids.take
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one id for all sandboxes")
    backend._uids.take = lambda: (2**32 - 1, 1)  # No id at all.
    before = descriptors(backend)
    with pytest.raises(SandboxUnavailableError, match="could not be made"):
        async with boxes.make_box(backend):
            pass
    backend._uids.take = take
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0
    assert descriptors(backend) == before
    assert children(backend) == []


async def test_requests_of_both_kinds_take_turns(backend, boxes):
    """Files of the caller's are put where they belong by looking at what is there, which no list of calls can."""
    files = (MountedFile(path="/opt/given", content=b"given"),)
    for _ in range(3):
        async with boxes.make_box(backend, mounted_files=files) as box, boxes.make_box(backend) as other:
            assert (await box.run("cat", "/opt/given")).stdout == "given"
            assert (await other.run("cat", "/opt/given")).returncode == 1
            assert (await box.run("cat", "/etc/hosts")).stdout != (await other.run("cat", "/etc/hosts")).stdout


async def test_ports_are_arranged_beside_the_rest(backend, boxes):
    async with boxes.make_box(backend, exposes_ports=True) as box:
        assert (await box.run("sh", "-c", "ls /proc/self/fd | wc -l")).stdout.strip() == "4"
        passage = await backend.open_passage(box.id)
        passage.close()


async def test_it_ends_with_its_server_and_its_sandboxes_live_on(backend, boxes):
    async with boxes.make_box(backend) as box:
        process = backend._template._process
        await backend._template.close()
        assert process.returncode == 0
        assert (await box.run("true")).returncode == 0
