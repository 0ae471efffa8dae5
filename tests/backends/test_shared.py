"""The template's memory as a file that its children map: it is the same memory, and each writes for itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aviato.server.backends.local import native
from tests.real_backend import open_by

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(native.load() is None, reason="there is no compiled part")]

PRELUDE = """
import ctypes, gc, json, mmap, os, re
from aviato.server.backends.local import native
library = native.load()
held = {number: str(number) * 9 for number in range(200_000)}
large = bytearray(b"x" * 1_000_000)  # A mapping of the C library's own, which it makes longer where it is or elsewhere.
def shared():
    with open("/proc/self/maps") as file:
        return [line.split() for line in file if "memfd:aviato-template" in line]
def written():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))
def intact():
    return all(text == str(number) * 9 for number, text in held.items())
before = written()
library.aviato_share_memory()
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_the_same_memory_and_a_clone_copies_little_of_it():
    maps, was, now, whole = run("""
now = written()
print(json.dumps([len(shared()), before, now, intact() and large == b"x" * 1_000_000]))
""")
    assert maps > 3
    assert was > 20_000
    assert now < 1_000
    assert whole


def test_what_is_wiped_in_a_child_stays_so():
    """The C library draws random numbers from such a page: as another one all children would draw the same."""
    wiped = run("""
MADV_WIPEONFORK = 18
page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page.madvise(MADV_WIPEONFORK)
page[:] = b"x" * mmap.PAGESIZE
library.aviato_share_memory()
child = os.fork()
if child == 0:
    os._exit(page[:] != bytes(mmap.PAGESIZE))
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0))
""")
    assert wiped


def test_what_one_writes_nobody_else_sees():
    child, own = run("""
child = os.fork()
if child == 0:
    held.update({number: "other" for number in held})
    large[:] = b"y" * len(large)
    gc.collect()
    os._exit(0)
status = os.waitpid(child, 0)[1]
print(json.dumps([status, intact() and large == b"x" * 1_000_000]))
""")
    assert child == 0
    assert own


def test_what_grows_goes_on_into_new_memory():
    large, many = run("""
for _ in range(12):
    large += bytes(1_000_000)
more = [bytearray(b"z" * size) for size in range(1, 200_000, 1_000)]
print(json.dumps([large == b"x" * 1_000_000 + bytes(12_000_000), intact()]))
""")
    assert large
    assert many


def test_nobody_can_change_the_file():
    assert (
        run("""
seals = None
line = shared()[0]
begin, end = line[0].split("-")
path = f"/proc/self/map_files/{begin.lstrip('0')}-{end.lstrip('0')}"
try:
    with open(path, "r+b", buffering=0) as file:
        try: file.write(b"x"); changed = True
        except PermissionError: changed = False
        try: os.truncate(file.fileno(), 0); changed = True
        except PermissionError: pass
except PermissionError:  # An ordinary user may not even open it.
    changed = False
print(json.dumps(changed))
""")
        is False
    )


async def test_the_templates_is_shared_with_its_sandboxes(anyio_backend, boxes):
    def written(pid):
        return int(re.search(r"Anonymous:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1])

    async for backend in open_by("compiled"):
        template = backend._template._process.pid
        async with boxes.make_box(backend) as box:
            assert (await box.run("true")).returncode == 0
            assert written(template) < 1_500
            children = map(int, Path(f"/proc/{template}/task/{template}/children").read_text().split())
            if os.geteuid() == 0:  # Nobody else may look into them.
                sizes = {Path(f"/proc/{pid}/comm").read_text().strip(): written(pid) for pid in children}
                assert sizes["aviato-supervis"] < 1_500
            # Python comes in.
            await box.put("/workspace/f", b"x" * 100_000)
            assert (await box.run("wc", "-c", "/workspace/f")).stdout.startswith("100000")
