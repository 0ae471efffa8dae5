"""Cases that are programs, in real sandboxes: what process 1 says of each, and what becomes of those that come after."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from dataclasses import replace
from inspect import cleandoc

import pytest

pytestmark = pytest.mark.anyio

MIB = 1 << 20


def program(*command, given=b"", output=64 << 10, required=False, limit=None):
    return {
        "command": list(command),
        "input_bytes": len(given),
        "output_bytes": output,
        "required": required,
        "given": given,
        "limit": limit,
    }


def python(source, *arguments, **options):
    return program("python3", "-I", "-c", cleandoc(source), *arguments, **options)


def make(boxes, *programs, timeout=None):
    """A command that runs programs, with all their input."""
    given = b"".join(one["given"] for one in programs)
    told = [{name: one[name] for name in ("command", "input_bytes", "output_bytes", "required")} for one in programs]
    cases = {
        "timeout_seconds": [one["limit"] for one in programs],
        "token": None,
        "output_bytes": 1,
        "reports": False,
        "programs": told,
    }
    spec = boxes.make_spec(*programs[0]["command"], stdin=True, timeout=timeout)
    return replace(spec, input=b64encode(given).decode(), cases=cases)


async def run(box, spec):
    result = await asyncio.wait_for(box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id)), 30)
    return result, [json.loads(line) for line in result.stdout.splitlines()]


def printed(verdict):
    return b64decode(verdict["stdout"]), b64decode(verdict["stderr"])


async def test_each_is_a_process_of_its_own_with_its_share_of_the_input(box, boxes):
    programs = [
        program("cat", given=b"one\n"),
        program("sh", "-c", "read line; echo $line $line >&2; exit 3", given=b"two\nrest"),
        program("wc", "-c"),
        program("sh", "-c", "kill -9 $$", given=b"never read"),
        program("python3", "-c", "import os; os.write(1, bytes(range(256)))"),
    ]
    result, (first, second, third, killed, binary, end) = await run(box, make(boxes, *programs))
    assert (result.returncode, result.stderr, end) == (0, "", {"cases": 5})
    assert (printed(first), first["returncode"]) == ((b"one\n", b""), 0)
    assert (printed(second), second["returncode"], second["signal"]) == ((b"", b"two two\n"), 3, None)
    assert printed(third) == (b"0\n", b"")
    assert (killed["returncode"], killed["signal"], killed["timed_out"]) == (137, 9, False)
    assert printed(binary)[0] == bytes(range(256))
    assert all(0 < verdict["duration_seconds"] < 5 for verdict in (first, second, third, binary))


async def test_what_is_too_much_is_counted_and_dropped(box, boxes):
    flood = program("sh", "-c", "head -c 300000000 /dev/zero; echo error >&2", output=1000)
    _, (much, little, _) = await run(box, make(boxes, flood, program("echo", "z")))
    assert (len(printed(much)[0]), much["stdout_bytes_total"], printed(much)[1]) == (1000, 300_000_000, b"error\n")
    assert (printed(little), little["stdout_bytes_total"]) == ((b"z\n", b""), 2)


async def test_of_stderr_little_is_kept_whatever_is_kept_of_stdout(box, boxes):
    noisy = python("import os; os.write(2, b'e' * 4_000_000); os.write(1, b'x' * 1_000_000)", output=8 * MIB)
    terse = python("import os; os.write(2, b'e' * 70_000); os.write(1, b'x' * 70_000)", output=10)
    _, (much, little, _) = await run(box, make(boxes, noisy, terse))
    assert [len(one) for one in printed(much)] == [1_000_000, 64 << 10]
    assert (much["stdout_bytes_total"], much["stderr_bytes_total"]) == (1_000_000, 4_000_000)
    assert [len(one) for one in printed(little)] == [10, 64 << 10]


async def test_output_and_input_of_many_mebibytes_arrive_whole(box, boxes):
    given = bytes(range(256)) * (4 * MIB // 256)
    spec = make(boxes, program("cat", given=given, output=8 * MIB), program("cat", given=given[::-1], output=8 * MIB))
    subscription = box.link.subscribe(replace(spec, input=None), spec.exec_id)
    feeding = asyncio.create_task(box.link.feed(spec.exec_id, given + given[::-1]))
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 30)
    await feeding
    first, second, end = [json.loads(line) for line in result.stdout.splitlines()]
    assert (printed(first)[0] == given, printed(second)[0] == given[::-1], end) == (True, True, {"cases": 2})


async def test_a_time_limit_is_of_one_program(box, boxes):
    slow = program("sh", "-c", "echo begun; (setsid sleep 60 &) ; sleep 60", limit=0.5)
    result, (late, after, end) = await run(box, make(boxes, slow, program("pgrep", "-c", "sleep"), timeout=20))
    assert (printed(late)[0], late["timed_out"], late["returncode"], late["signal"]) == (b"begun\n", True, 137, 9)
    assert printed(after)[0] == b"0\n", "what the one left behind lives while the next runs"
    assert (end, result.exit["timed_out"]) == ({"cases": 2}, False)


async def test_a_time_limit_of_all_leaves_the_verdicts_before_it(box, boxes):
    result, found = await run(box, make(boxes, program("echo", "a"), program("sleep", "60"), timeout=1.0))
    assert (result.exit["timed_out"], result.returncode) == (True, 137)
    assert [printed(verdict)[0] for verdict in found] == [b"a\n"]


async def test_nothing_follows_a_required_one_that_fails(box, boxes):
    result, found = await run(
        box, make(boxes, program("true", required=True), program("false", required=True), program("true"))
    )
    assert ([verdict["returncode"] for verdict in found], result.returncode) == ([0, 1], 0)


async def test_one_that_cannot_be_started_has_a_verdict(box, boxes):
    result, (first, missing, after, end) = await run(
        box, make(boxes, program("true"), program("no-such-program"), program("echo", "z"))
    )
    assert (missing["started"], missing["returncode"]) == (False, 127)
    assert b"no-such-program: command not found" in printed(missing)[1]
    assert (first["started"], printed(after)[0], end, result.returncode) == (True, b"z\n", {"cases": 3}, 0)


async def test_a_first_one_that_cannot_be_started_is_as_any_command(box, boxes):
    result, found = await run(box, make(boxes, program("no-such-program"), program("true")))
    assert (result.returncode, found) == (127, []) and "command not found" in result.stderr


async def test_out_of_memory_is_of_one_program(make_box, boxes):
    hungry = program("python3", "-c", "kept = bytearray(b'x') * (300 << 20); import time; time.sleep(20)")
    async with make_box(limits={"memory": 64 * MIB}) as box:
        result, (over, after, end) = await run(box, make(boxes, hungry, program("echo", "z")))
    assert (over["oom_killed"], over["returncode"]) == (True, 137)
    assert (printed(after)[0], end, result.exit["oom_killed"]) == (b"z\n", {"cases": 2}, False)


async def test_children_that_outlive_a_program_hold_nothing_up(box, boxes):
    _, (left, after, end) = await run(box, make(boxes, program("sh", "-c", "sleep 60 & echo a"), program("echo", "b")))
    assert (printed(left)[0], printed(after)[0], end) == (b"a\n", b"b\n", {"cases": 2})
    assert left["duration_seconds"] < 5


async def test_children_that_print_after_the_end_are_heard_until_they_are_still(box, boxes):
    prints = python("""
        import os, time
        parent = os.getpid()
        if os.fork() == 0:
            os.setsid()
            while os.getppid() == parent: time.sleep(0.01)
            for turn in range(4):
                time.sleep(0.2)
                os.write(1, b"%d" % turn)
    """)
    for limit in (None, 20.0):
        _, (verdict, _) = await run(box, make(boxes, {**prints, "limit": limit}))
        assert (printed(verdict)[0], verdict["returncode"], verdict["timed_out"]) == (b"0123", 0, False)


async def test_children_that_print_for_ever_are_heard_until_the_time_is_over(box, boxes):
    floods = program("sh", "-c", "(while echo y; do sleep 0.01; done) & echo a", limit=1.0)
    _, (flood, after, end) = await run(box, make(boxes, floods, program("pgrep", "-c", "sleep")))
    assert (flood["returncode"], flood["timed_out"], end) == (0, False, {"cases": 2})
    assert flood["stdout_bytes_total"] == len(printed(flood)[0]) > 20
    assert printed(after)[0] == b"0\n"


async def test_verdicts_wait_for_their_reader(box, boxes):
    big = [program("head", "-c", "600000", "/dev/zero", output=MIB) for _ in range(6)]
    _, found = await run(box, make(boxes, *big))
    assert [verdict["stdout_bytes_total"] for verdict in found[:-1]] == [600_000] * 6
