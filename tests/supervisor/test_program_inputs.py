"""What programs that run one after the other read: a file each, as by a shell's `<`, and when they begin."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import time
from dataclasses import replace

import pytest

from aviato.exceptions import SandboxExecutionError
from aviato.wire.frames import FrameType
from tests.supervisor.test_programs import MIB, make, printed, program, python, run

pytestmark = pytest.mark.anyio

LOOKS = """
import mmap, os, stat, sys
found = os.fstat(0)
assert stat.S_ISREG(found.st_mode) and not os.isatty(0)
assert os.read(0, 10**8) == b"1\\n2\\n" and os.read(0, 1) == b""
sys.stdin.seek(0)
assert sys.stdin.readlines() == ["1\\n", "2\\n"]
assert open("/dev/stdin").read() == "1\\n2\\n"
assert bytes(mmap.mmap(0, 0, access=mmap.ACCESS_READ)) == b"1\\n2\\n"
print(found.st_size)
"""
EMPTY = """
import os, sys
assert os.fstat(0).st_size == 0 and not os.isatty(0) and os.lseek(0, 0, os.SEEK_END) == 0
print(repr(sys.stdin.read()))
"""
WRITES = """
import os
for path in ("/dev/stdin", "/proc/self/fd/0"):
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        continue
    for change in (lambda: os.write(fd, b"z"), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 99)):
        try:
            change()
        except OSError:
            pass
    os.close(fd)
print(sorted(map(int, os.listdir("/proc/self/fd"))), open("/dev/stdin").read())
"""
HELD = """
import os
if os.fork() == 0:
    os.setsid()
    os.lseek(0, 1, 0)
    os.write(1, os.read(0, 9))
else:
    os.wait()
    os.write(1, os.read(0, 9))
"""


def split(boxes, *programs, **options):
    """Such a command whose input comes later, and that."""
    spec = make(boxes, *programs, **options)
    return replace(spec, input=None), b"".join(one["given"] for one in programs)


def in_pieces(box, spec):
    """Begin it; gives the lines of its output as they come, and its end."""
    subscription = box.link.subscribe(spec, spec.exec_id)
    return asyncio.create_task(asyncio.wait_for(box.finish(spec.exec_id, subscription), 60))


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_stdin_is_a_file_as_by_redirection(box, boxes):
    _, (found, again, _) = await run(box, make(boxes, *[python(LOOKS, given=b"1\n2\n")] * 2))
    assert [printed(one) for one in (found, again)] == [(b"4\n", b"")] * 2


async def test_no_input_is_an_empty_file(box, boxes):
    _, (first, second, _) = await run(box, make(boxes, *[python(EMPTY)] * 2))
    assert [printed(one) for one in (first, second)] == [(b"''\n", b"")] * 2


async def test_nobody_inside_changes_a_share_or_has_other_descriptors(box, boxes):
    _, found = await run(box, make(boxes, python(WRITES, given=b"own"), python(WRITES, given=b"other"), python(WRITES)))
    assert [printed(one)[0].split() for one in found[:-1]] == [
        [b"[0,", b"1,", b"2,", b"3]", b"own"],
        [b"[0,", b"1,", b"2,", b"3]", b"other"],
        [b"[0,", b"1,", b"2,", b"3]"],
    ]


async def test_the_position_is_of_one_program_and_its_children(box, boxes):
    _, (first, second, _) = await run(box, make(boxes, python(HELD, given=b"abc"), program("cat", given=b"abc")))
    assert [printed(one)[0] for one in (first, second)] == [b"bc", b"abc"]


@pytest.mark.deep
@pytest.mark.parametrize("groups", [True, False], ids=["control groups", "looks"])
async def test_a_share_is_no_memory_that_its_program_takes(make_box, boxes, backend, monkeypatch, groups):
    if not groups and hasattr(backend, "_facts"):
        monkeypatch.setattr(backend, "_facts", replace(backend._facts, groups=()))
    given = b"x" * (96 * MIB)
    reads = program("sh", "-c", "wc -c; sleep 2; echo > touched; sleep 2", given=given)
    async with make_box(limits={"memory": 64 * MIB, "disk": 1024 * MIB}) as box:
        spec, given = split(boxes, reads)
        running = in_pieces(box, spec)
        await box.link.feed(spec.exec_id, given)
        found, end = lines(await running)
    assert (printed(found)[0], found["oom_killed"], end) == (b"%d\n" % len(given), False, {"cases": 1})


@pytest.mark.parametrize("first", [True, False], ids=["the first", "another"])
async def test_no_clock_runs_while_a_case_waits_for_its_input(box, boxes, first):
    """Both limits are over long before the last byte comes; nothing is started until then."""
    reads = program("sh", "-c", "echo >> ran; cat", given=b"abcdef", limit=2.0)
    spec, given = split(boxes, *([reads] if first else [program("true"), reads]), timeout=2.5)
    running = in_pieces(box, spec)
    await box.link.write_stdin(spec.exec_id, given[:3], 0, False)
    await asyncio.sleep(3.5)
    assert (await box.sh("cat ran")).returncode == 1
    await box.link.write_stdin(spec.exec_id, given[3:], 3, True)
    result = await running
    found = lines(result)
    assert (found[-1], result.exit["timed_out"]) == ({"cases": 1 if first else 2}, False)
    assert (printed(found[-2])[0], found[-2]["timed_out"]) == (b"abcdef", False)
    assert found[-2]["duration_seconds"] < 2


async def test_the_limit_of_all_goes_on_when_the_input_has_come(box, boxes):
    spec, given = split(boxes, program("sleep", "60", given=b"abc"), timeout=1.5)
    running = in_pieces(box, spec)
    await asyncio.sleep(2)
    await box.link.write_stdin(spec.exec_id, given, 0, True)
    result = await running
    assert (result.exit["timed_out"], result.stdout) == (True, "")


async def test_a_command_that_waits_for_input_can_be_cancelled(box, boxes):
    spec, given = split(boxes, program("cat", given=b"abc"), program("cat", given=b"d" * 10))
    running = in_pieces(box, spec)
    await box.link.write_stdin(spec.exec_id, given[:8], 0, False)
    await box.link.cancel(spec.exec_id)
    result = await running
    assert (result.exit["cancelled"], result.returncode) == (True, 137)


async def test_shares_that_nobody_reads_are_passed_over(box, boxes):
    given = [bytes([number]) * size for number, size in enumerate((3 * MIB, 1, 0, MIB))]
    programs = [
        program("true", given=given[0]),
        program("cat", given=given[1]),
        program("true"),
        program("wc", "-c", given=given[3]),
    ]
    spec, given = split(boxes, *programs)
    running = in_pieces(box, spec)
    await box.link.feed(spec.exec_id, given)
    _, second, _, last, end = lines(await running)
    assert (printed(second)[0], printed(last)[0].strip(), end) == (b"\x01", b"%d" % MIB, {"cases": 4})


async def test_a_stop_of_process_1_is_no_time_of_a_case(box, boxes):
    waits = program("sh", "-c", "echo > begun; until [ -e go ]; do sleep 0.01; done", limit=4.0)
    spec = make(boxes, waits)
    running = in_pieces(box, spec)
    await box.sh("until [ -e begun ]; do sleep 0.01; done")
    os.kill(box.process_1, signal.SIGSTOP)
    try:
        time.sleep(5.5)
    finally:
        os.kill(box.process_1, signal.SIGCONT)
    await box.run("touch", "go")
    found, _ = lines(await running)
    assert (found["timed_out"], found["returncode"]) == (False, 0)


async def test_a_share_that_nobody_can_keep_ends_the_command_with_the_reason(box, boxes):
    try:
        _, hard = resource.prlimit(box.process_1, resource.RLIMIT_FSIZE)
        resource.prlimit(box.process_1, resource.RLIMIT_FSIZE, (1000, hard))
    except PermissionError:
        pytest.skip("this user may not limit that supervisor")
    result, found = await run(box, make(boxes, program("cat", given=b"little"), program("cat", given=b"x" * 2000)))
    assert (result.returncode, len(found), printed(found[0])[0]) == (126, 1, b"little")
    assert "no room for the 2000 bytes of its input: File too large" in result.stderr


@pytest.mark.parametrize("piece", [b"last", b""], ids=["a piece", "the end"])
async def test_what_comes_after_the_last_program_finds_it_closed(box, boxes, piece):
    """Wherever it begins: that a program ended early is no mistake of who sends."""
    spec, _ = split(boxes, program("false", given=b"first", required=True), program("cat", given=b"second and last"))
    subscription = box.link.subscribe(spec, spec.exec_id)
    await box.link.write_stdin(spec.exec_id, b"first", 0, False)
    while not any(frame.type == FrameType.EXIT for frame in subscription.drain()):
        await asyncio.wait_for(subscription.wait(), 30)
    with pytest.raises(SandboxExecutionError) as caught:
        await box.link.write_stdin(spec.exec_id, piece, 12, True)
    assert caught.value.reason == "stdin_closed"
    await box.link.write_stdin(spec.exec_id, b"first", 0, False)  # What had been taken may come again.
