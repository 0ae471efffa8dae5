"""Older versions of Landlock, which know less: what is promised there holds, and what is not is said.

Nothing but the version that the backend believes in is changed, so it asks this kernel for what the older one could do.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.real_backend import open_backend

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 5])
async def backend(anyio_backend, request):
    from aviato.server.backends.local import landlock_calls as calls

    if calls.abi() < request.param:
        pytest.skip("this kernel's version of Landlock is older still")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "abi", lambda: request.param)
        async for opened in open_backend("landlock"):
            yield opened


async def test_it_runs_and_says_what_it_lacks(backend, box):
    assert (await box.python("open('x', 'w').write('1'); print(open('x').read())")).stdout == "1\n"
    await box.put("a/b", b"x")
    assert await box.get("a/b") == b"x"
    names = {line.partition(":")[0] for line in backend.unkept_promises}
    assert ("signals" in names) == (os.geteuid() != 0) and ("renames" in names) == (backend._abi < 2)
    # Where directories cannot be linked across, mv copies.
    assert (await box.sh("mkdir -p c d && echo y > c/f && mv c/f d/f && cat d/f")).stdout == "y\n"


async def test_files_outside(box, tmp_path):
    place = tmp_path / "secret"
    place.write_text("secret")
    for path in (place, *place.parents[:-2]):
        path.chmod(0o777)
    for call in ("open('{}').read()", "open('{}', 'a')", "os.truncate('{}', 0)", "os.remove('{}')", "os.rename('{}', 'here')"):
        said = await box.python(f"import os\n{call.format(place)}")
        assert (said.returncode == 1 and "OSError" in said.stderr) or "PermissionError" in said.stderr, said
    assert place.read_text() == "secret"


async def test_trees_die_in_time(box, inside):
    """Without a signal to everyone, each is found."""
    neighbour, subscription = box.start("sleep", "64.25")
    script = "for i in $(seq 20); do (setsid sleep 65.25 &); done; setsid sh -c 'trap \"\" TERM; sleep 65.25; sleep 65.25'"
    result = await box.sh(script, timeout=1.0)
    assert result.exit["timed_out"]
    await inside(box).gone("65.25")
    assert len(inside(box).named("64.25")) == 1
    await box.link.cancel_all()
    assert (await box.finish(neighbour, subscription)).exit["cancelled"]
    await inside(box).gone()


async def test_a_tree_that_forks_on(box, inside):
    forking = "import os, time\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n    time.sleep(0.002)"
    result = await box.python(f"import os, time\nif os.fork() == 0:\n    exec({forking!r})\ntime.sleep(60)", timeout=0.5)
    assert result.exit["timed_out"]
    await inside(box).gone(seconds=10)


async def test_it_ends_within_its_grace(backend, boxes, inside):
    async with boxes.make_box(backend) as box:
        box.start("sh", "-c", "sleep 66.25")
        box.start("sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
        while len(inside(box).all()) < 5:
            assert (await box.run("true")).returncode == 0
        began = time.monotonic()
        assert (await box.link.stop(0.5)).reason == "stopped"
        assert time.monotonic() - began < 5


async def test_a_full_disk_ends_all(backend, boxes, inside):
    async with boxes.make_box(backend, limits={"disk": 8 << 20}) as box:
        other, subscription = box.start("sleep", "67.25")
        result = await box.sh("while :; do head -c 1000000 /dev/zero >> big; done")
        assert result.returncode == 137 and "8 MiB of disk" in result.stderr
        assert (await box.finish(other, subscription)).returncode == 137
        await inside(box).gone()
        assert (await box.run("true")).returncode == 0
