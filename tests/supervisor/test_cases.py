"""Cases in real sandboxes: what process 1 says of each, and what becomes of a program that cannot go on."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from dataclasses import replace

import pytest

from aviato.grading import driver
from aviato.grading.driver import Case

pytestmark = pytest.mark.anyio

MIB = 1 << 20
WINDOW = 1 << 20
TOKEN = "0123456789abcdef"
NOTE = "import os\nwith open('/workspace/starts', 'a') as file: file.write('%d\\n' % os.getpid())\n"
"""Each process that runs the code is noted."""
RECORDS = "import os\nrecords = max(map(int, os.listdir('/proc/self/fd')))\n"
"""The descriptor by which verdicts leave is the last that is possible."""
TOKEN_INSIDE = RECORDS + "import sys, time\ntoken = sys._getframe(1).f_locals['token']\n"
"""Code under test can find both, since it is in the same process."""
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def make(boxes, code, *cases, timeout=None, **options):
    """A command that runs cases, with all its input."""
    told = [case if isinstance(case, Case) else Case(case, f"test_{number}") for number, case in enumerate(cases, 1)]
    command = driver.command(code, told, **options)
    spec = boxes.make_spec(*command.argv, stdin=True, timeout=timeout)
    return replace(spec, input=b64encode(command.given).decode(), cases=command.cases)


def raw(boxes, script, cases=1, **options):
    """A command that is no such program, where one is expected."""
    asked = {"timeout_seconds": [None] * cases, "token": TOKEN, "output_bytes": 1000, "reports": False}
    return replace(boxes.make_spec("sh", "-c", script, stdin=True, **options), input="", cases=asked)


async def run(box, spec):
    """Its result, and what was said of each case."""
    result = await asyncio.wait_for(box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id)), 10)
    return result, verdicts(result)


def verdicts(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def reasons(found):
    return [verdict.get("reason", verdict.get("cases")) for verdict in found]


async def starts(box):
    return (await box.get("/workspace/starts")).split()


async def gone(box, name):
    """Wait until no process of this name is left."""
    deadline = time.monotonic() + 10
    while (await box.run("pgrep", "-c", name)).stdout != "0\n":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_verdict_on_each_and_a_last_line(box, boxes):
    code = "def half(n):\n    return n / 2\n"
    spec = make(boxes, code, "assert half(4) == 2", "assert half(3) == 1, 'no whole number'", "half('x')", "half(0)")
    result, (right, wrong, raising, last, end) = await run(box, spec)
    assert (result.returncode, result.exit["signal"], result.stderr) == (0, None, "")
    assert right["passed"] and last["passed"] and end == {"cases": 4}
    assert right.keys() == {"passed", "reason", "message", "duration_seconds", "stdout", "stderr"}
    assert (wrong["passed"], wrong["reason"], wrong["message"]) == (False, "assertion", "no whole number")
    assert (raising["passed"], raising["reason"]) == (False, "exception") and raising["message"].startswith("TypeError: ")
    assert 'File "solution.py", line 2, in half' in raising["traceback"]
    assert all(0 < verdict["duration_seconds"] < 5 for verdict in (right, wrong, raising, last))


async def test_each_case_has_what_was_printed_in_it(box, boxes):
    code = "import os, subprocess, sys\nprint('code')\n"
    say = "print('out {0}'); print('err {0}', file=sys.stderr); subprocess.run(['sh', '-c', 'echo sub {0}; echo bus {0} >&2'])"
    # Python's own text comes last, since it is kept until the case is over.
    spec = make(boxes, code, say.format(1), say.format(2) + "; 1 / 0", say.format(3), "os.write(2, b'\\xff')")
    _, found = await run(box, spec)
    assert [verdict["stdout"] for verdict in found[:-1]] == [
        "sub 1\ncode\nout 1\n",
        "sub 2\nout 2\n",
        "sub 3\ncode\nout 3\n",
        "",
    ]
    assert [verdict["stderr"] for verdict in found[:-1]] == [*(f"err {n}\nbus {n}\n" for n in (1, 2, 3)), "\ufffd"]


async def test_what_is_too_much_of_output_is_dropped(box, boxes):
    flood = "import os, sys\nfor _ in range(160): os.write(1, b'x' * 65536)\nprint('y' * 65536, file=sys.stderr)"
    result, (much, little, end) = await run(box, make(boxes, "", flood, "print('z')", output_bytes=100_000))
    assert (len(much["stdout"]), len(much["stderr"]), much["passed"]) == (100_000, 65537, True)
    assert (little["stdout"], little["stderr"], end) == ("z\n", "", {"cases": 2})
    assert result.exit["stdout_bytes_total"] == len(result.streams[1]) < 200_000


async def test_what_is_in_a_pipe_at_the_end_of_a_case_is_its_own(box, boxes):
    much = "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, b'x' * 500_000)"
    _, (first, second, _) = await run(box, make(boxes, "", much, "print('z')", output_bytes=1 << 20))
    assert (first["stdout"], second["stdout"]) == ("x" * 500_000, "z\n")


async def test_reports_arrive_with_their_case(box, boxes):
    case = "__aviato_report__({'name': '\\u00e4'}); __aviato_report__(2); assert %s"
    _, (first, second, _) = await run(box, make(boxes, "", case % "True", case % "False", reports=True))
    assert first["reports"] == second["reports"] == "{'name': '\\xe4'}\n2\n"
    assert (first["passed"], second["passed"]) == (True, False)


async def test_a_time_limit_of_a_case_is_only_its_own(box, boxes):
    slow = Case("print('begun', flush=True)\nwhile True: pass", "slow", timeout_seconds=0.3)
    result, found = await run(box, make(boxes, NOTE, "", slow, "", ""))
    assert (result.returncode, result.exit["timed_out"]) == (0, False)
    assert reasons(found) == ["passed", "timed_out", "passed", "passed", 4]
    assert found[1]["stdout"] == "begun\n" and 0.3 <= found[1]["duration_seconds"] < 3
    assert len(await starts(box)) == 2


@pytest.mark.parametrize(
    ("end", "reason", "message"),
    [
        ("import os; os._exit(0)", "ended_early", "the process ended with code 0 before the last assertion"),
        (KILL, "killed", "killed by signal 9"),
        ("import os; os.abort()", "killed", "killed by signal 6"),
        ("import sys; sys.exit(3)", "ended_early", "the code called exit(3)"),
    ],
    ids=["_exit", "killed", "aborted", "exit"],
)
async def test_whatever_ends_the_process_the_others_have_another(end, reason, message, box, boxes):
    left = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    result, found = await run(box, make(boxes, NOTE, "", left + end, "", left + end, ""))
    assert (result.returncode, result.exit["signal"], result.stderr) == (0, None, "")
    assert reasons(found) == ["passed", reason, "passed", reason, "passed", 5]
    assert found[1]["message"] == message and found[1].get("signal") == (int(message[-1]) if reason == "killed" else None)
    assert len(set(await starts(box))) == 3
    await gone(box, "sleep")


@pytest.mark.parametrize(
    "written",
    [
        "b'0' * len(token) + b'%8d' % 6 + b'passed'",
        "token + b'sixbytes' + b'passed'",
        "token + b'%8d' % (1 << 20) + b'passed'",
        "token + b'%8d' % -6 + b'passed'",
        "token + b'%8d' % 3 + b'odd' + b'x' * 100",
    ],
    ids=["another token", "no number", "too large", "negative", "bytes after it"],
)
async def test_what_is_no_record_ends_the_process_at_once(written, box, boxes):
    case = f"{TOKEN_INSIDE}os.write(records, {written})\ntime.sleep(1000)"
    result, found = await run(box, make(boxes, "", case, "assert True"))
    assert (result.returncode, reasons(found)) == (0, ["ended_early", "passed", 2])
    assert result.exit["duration_seconds"] < 10


async def test_what_stands_before_a_record_spoils_it(box, boxes):
    _, found = await run(box, make(boxes, "", RECORDS + "os.write(records, b'x')", "assert True"))
    assert reasons(found) == ["ended_early", "passed", 2]


async def test_who_closes_the_records_has_not_passed(box, boxes):
    elsewhere = Case(RECORDS + "os.dup2(1, records)", "elsewhere", timeout_seconds=0.3)
    _, found = await run(box, make(boxes, "", RECORDS + "os.close(records)", "", elsewhere, ""))
    assert reasons(found) == ["ended_early", "passed", "ended_early", "passed", 4]


async def test_verdicts_wait_for_their_reader_and_none_is_lost(box, boxes):
    cases, size = 70, 60_000
    spec = make(boxes, "", *[f"print('{number} ' + 'x' * {size})" for number in range(cases)])
    subscription = box.link.subscribe(spec, spec.exec_id)
    result = boxes.Result(spec.exec_id)
    while len(result.streams[1]) < WINDOW:
        result.take(await asyncio.wait_for(anext(subscription), 5))
    with pytest.raises(TimeoutError):
        while True:  # The last one in it may come in two parts.
            result.take(await asyncio.wait_for(anext(subscription), 0.3))
    assert WINDOW <= len(result.streams[1]) < WINDOW + size + 1000 and result.exit is None
    assert (await box.run("pgrep", "-c", "python3")).stdout == "1\n"
    async with asyncio.timeout(20):
        while result.exit is None:
            box.link.acknowledge(spec.exec_id, len(result.streams[1]), 0, False)
            result.take(await anext(subscription))
    *found, end = verdicts(result)
    assert [verdict["stdout"].split()[0] for verdict in found] == [str(number) for number in range(cases)]
    assert end == {"cases": cases} and len(result.streams[1]) == result.exit["stdout_bytes_total"]


STAND = "open('/workspace/standing', 'w')\nimport time; time.sleep(1000)"


async def test_the_time_limit_of_the_command(box, boxes):
    result, found = await run(box, make(boxes, NOTE, "", "import time; time.sleep(1000)", "", timeout=1))
    assert (result.returncode, result.exit["timed_out"], result.exit["signal"]) == (137, True, 9)
    assert reasons(found) == ["passed"]
    assert len(await starts(box)) == 1
    await gone(box, "python3")


async def test_who_cancels_has_the_verdicts_until_then(box, boxes):
    spec = make(boxes, NOTE, "", "1 / 0", STAND, "")
    subscription = box.link.subscribe(spec, spec.exec_id)
    await box.sh("until [ -e standing ]; do sleep 0.01; done", timeout=10)
    await box.link.cancel(spec.exec_id)
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 10)
    assert (result.returncode, result.exit["cancelled"]) == (137, True)
    assert reasons(verdicts(result)) == ["passed", "exception"]
    assert len(await starts(box)) == 2  # The code ran anew after the exception, in the same process.
    assert len(set(await starts(box))) == 1
    await gone(box, "python3")


async def test_a_program_that_cannot_be_started(box, boxes):
    result, found = await run(box, make(boxes, "", "", "", python="no-such-python"))
    assert (result.returncode, found, result.stderr) == (127, [], "no-such-python: command not found\n")


async def test_a_program_that_ends_before_its_first_case_is_started_once(box, boxes):
    script = "echo x >> /workspace/starts; cat; echo lost; echo broken >&2; exit 7"
    result, found = await run(box, raw(boxes, script, cases=3))
    assert (result.returncode, found, result.stderr) == (7, [], "broken\n")
    assert await starts(box) == [b"x"]


async def test_a_second_program_that_ends_before_its_case_is_the_last(box, boxes):
    first = f"read told <&4; printf '{TOKEN}       5begin' >&3; exit 7"
    begin = f"[ -e starts ] && again=1; echo x >> starts; [ $again ] && exit 8; {first}"
    result, found = await run(box, raw(boxes, begin, cases=3))
    assert (result.returncode, reasons(found)) == (8, ["ended_early"])
    assert found[0]["message"] == "the process ended with code 7 before the last assertion"
    assert await starts(box) == [b"x", b"x"]


async def test_input_that_comes_in_pieces_is_kept_for_the_others(box, boxes):
    command = driver.command(
        f"kept = {'x' * 600_000!r}\n", [Case(source, "test") for source in ("", KILL, "assert len(kept) == 600_000")]
    )
    spec = replace(boxes.make_spec(*command.argv, stdin=True), cases=command.cases)
    subscription = box.link.subscribe(spec, spec.exec_id)
    for offset in range(0, len(command.given), 100_000):
        piece = command.given[offset : offset + 100_000]
        await box.link.write_stdin(spec.exec_id, piece, offset, offset + len(piece) == len(command.given))
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 10)
    assert (result.returncode, reasons(verdicts(result))) == (0, ["passed", "killed", "passed", 3])


async def test_what_all_processes_used_adds_up(box, boxes):
    burn = "import os, time\nwhile time.process_time() < 0.3: pass\n"
    result, found = await run(box, make(boxes, "", burn + "os._exit(0)", burn + "os._exit(0)", burn))
    assert reasons(found) == ["ended_early", "ended_early", "passed", 3]
    assert 0.9 <= result.exit["cpu_seconds"] < 2
    big = "kept = b'x' * (80 << 20)"
    result, _ = await run(box, make(boxes, "", big + "\nimport os; os._exit(0)", ""))
    assert 80 << 20 < result.exit["max_rss_bytes"] < 200 << 20


async def test_a_limit_of_memory_ends_all(make_box, boxes):
    bomb = "kept = bytearray(b'x') * (200 << 20)\nimport time; time.sleep(20)"
    async with make_box(limits={"memory": 80 * MIB}) as box:
        result, found = await run(box, make(boxes, NOTE, "", bomb, ""))
        assert (result.returncode, result.exit["oom_killed"], result.exit["signal"]) == (137, True, 9)
        assert reasons(found) == ["passed", "out_of_memory"]
        assert len(await starts(box)) == 1
