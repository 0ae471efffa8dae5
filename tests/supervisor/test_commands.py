"""Commands through the real program: results, codes, directories, input, output."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from dataclasses import replace

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.wire.errors import ExecNotFoundError
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio


async def test_a_command_has_two_streams_and_a_code(box):
    result = await box.sh("echo out; echo err >&2; exit 3")
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert result.frames[0].type == FrameType.ACCEPTED
    assert result.frames[1].type == FrameType.STARTED
    assert result.exit["signal"] is None
    assert result.exit["stdout_bytes_total"] == 4
    assert 0 < result.exit["duration_seconds"] < 5


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["no-such-program"], 127, "command not found"),
        ([""], 127, "command not found"),
        (["/no/such"], 127, "No such file"),
        (["/etc/passwd"], 126, "Permission denied"),
        (["/etc"], 126, "directory"),
        (["/workspace/bad-interpreter"], 127, "/no/interpreter"),
        (["/workspace/no-shebang"], 126, "Exec format error"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["sh", "-c", "kill -TERM $$"], 143, ""),
    ],
)
async def test_codes(box, argv, code, text):
    await box.put("/workspace/bad-interpreter", b"#!/no/interpreter\n", mode=0o755)
    await box.put("/workspace/no-shebang", b"true\n", mode=0o755)
    result = await box.run(*argv)
    assert result.returncode == code
    assert text in result.stderr
    assert result.exit["signal"] == (code - 128 if code > 128 else None)


async def test_a_supervisor_of_an_earlier_version_gets_no_longer_command_than_it_takes(box):
    words = ["x" * 65536] * 20
    assert (await box.run("true", *words)).returncode == 0
    box.link.hello["features"].remove("long_commands")
    with pytest.raises(AviatoValidationError, match="at most 1048576 fit"):
        await box.run("true", *words)
    assert (await box.run("true")).returncode == 0


async def test_the_lookup_uses_the_commands_own_path(box):
    await box.put("/workspace/bin/hello", b"#!/bin/sh\necho hello $0\n", mode=0o755)
    assert (await box.run("hello", env={"PATH": "/workspace/bin:/bin"})).stdout == "hello /workspace/bin/hello\n"
    assert (await box.run("hello", env={"PATH": "bin:/bin"})).returncode == 0
    assert (await box.run("bin/hello")).returncode == 0
    assert (await box.run("hello")).returncode == 127


@pytest.mark.parametrize(("cwd", "reason"), [("/nowhere", "no_such_file"), ("/etc/passwd", "not_a_directory")])
async def test_a_wrong_directory_is_an_error_before_the_start(box, cwd, reason):
    result = await box.run("touch", "/workspace/ran", cwd=cwd)
    assert (result.error["code"], result.error["reason"], result.error["filepath"]) == ("FILE", reason, cwd)
    assert result.exit is None
    assert (await box.run("ls", "/workspace")).stdout == ""


async def test_directories(box):
    assert (await box.run("pwd")).stdout == "/workspace\n"
    assert (await box.run("pwd", cwd="/tmp")).stdout == "/tmp\n"
    await box.link.make_directory("a/b")
    assert (await box.run("pwd", cwd="a/b")).stdout == "/workspace/a/b\n"


async def test_the_environment_is_clean(make_box, monkeypatch):
    monkeypatch.setenv("AVIATO_API_KEY", "very-secret")
    async with make_box(environment={"ONE": "sandbox", "TWO": "sandbox"}) as box:
        env = dict(line.split("=", 1) for line in (await box.run("env", env={"TWO": "exec"})).stdout.splitlines())
        ids = (await box.run("awk", "{n += $3} END {print n}", "/proc/self/uid_map")).stdout.strip()
        writable = (await box.run("sh", "-c", "test -w /usr/local && echo /usr/local || echo /root/.local")).stdout.strip()
    assert re.match("/.aviato/bin:(/[^:]*/bin:)?/usr/local/sbin:", env.pop("PATH"))
    expected = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "LANG": "C.UTF-8", "ONE": "sandbox", "TWO": "exec"}
    tools = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    tools["NPM_CONFIG_PREFIX"] = writable
    if ids == "1":
        tools["TAR_OPTIONS"] = "--no-same-owner"
    assert env == {**expected, **tools}


async def test_signals_are_as_new(box):
    status = (await box.run("cat", "/proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    # posix_spawn of the C library leaves its own two signals, 32 and 33, ignored.
    assert int(fields["SigBlk"], 16) == int(fields["SigIgn"], 16) & ~(3 << 31) == int(fields["SigCgt"], 16) == 0


async def test_a_session_of_its_own_without_terminal(box):
    source = "import os; print(os.getsid(0) == os.getpid()); open('/dev/tty')"
    result = await box.python(source)
    assert result.stdout == "True\n"
    assert "ENXIO" in result.stderr or "No such device" in result.stderr


async def test_stdin_is_empty_or_a_real_pipe(box):
    assert (await box.run("cat")).stdout == ""
    assert (await box.run("sh", "-c", "readlink /proc/self/fd/0")).stdout == "/dev/null\n"
    assert (await box.run("cat", stdin=b"some bytes")).stdout == "some bytes"
    await box.put("/root/.bashrc", b"echo noise\n")
    for options in ({}, {"stdin": b""}):
        result = await box.run("bash", "-c", "cat", **options)  # It is there until its input ends.
        assert (result.stdout, result.stderr) == ("", "")


async def test_stdin_is_idempotent_by_offset(box):
    exec_id, subscription = box.start("cat", stdin=True)
    await box.link.write_stdin(exec_id, b"hello ", 0, False)
    await box.link.write_stdin(exec_id, b"hello ", 0, False)
    await box.link.write_stdin(exec_id, b"lo world", 3, True)
    await box.link.write_stdin(exec_id, b"world", 6, True)
    assert (await box.finish(exec_id, subscription)).stdout == "hello world"


async def test_stdin_that_leaves_a_gap_or_is_closed(box):
    exec_id, subscription = box.start("sleep", "10", stdin=True)
    with pytest.raises(ValueError, match="gap"):
        await box.link.write_stdin(exec_id, b"x", 5, False)
    await box.link.write_stdin(exec_id, b"", 0, True)
    with pytest.raises(Exception, match="closed") as caught:
        await box.link.write_stdin(exec_id, b"x", 0, False)
    assert caught.value.reason == "stdin_closed"
    await box.link.cancel(exec_id)
    await box.finish(exec_id, subscription)


async def test_stdin_waits_for_room_and_is_released_by_the_exit(box):
    exec_id, subscription = box.start("sh", "-c", "sleep 0.3; exec cat >/dev/null", stdin=True)
    await box.link.write_stdin(exec_id, b"x" * 3_000_000, 0, True)
    assert (await box.finish(exec_id, subscription)).returncode == 0
    exec_id, subscription = box.start("sleep", "0.3", stdin=True)
    with pytest.raises(Exception, match="closed"):
        await box.link.write_stdin(exec_id, b"x" * 3_000_000, 0, True)
    await box.finish(exec_id, subscription)


async def test_ten_at_once(box):
    begin = time.monotonic()
    results = await asyncio.gather(*(box.sh(f"sleep 0.2; echo {number}") for number in range(10)))
    assert time.monotonic() - begin < 1
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(10)]


async def test_a_repeat_joins_and_never_runs_again(box, boxes):
    spec = boxes.make_spec("sh", "-c", "echo run >> /workspace/count; echo out")
    first = await box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id), acknowledge=False, done=False)
    second = await box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id), acknowledge=False, done=False)
    assert (first.exit, first.stdout) == (second.exit, second.stdout)
    other = boxes.make_spec("true", exec_id=spec.exec_id)
    conflict = await box.finish(spec.exec_id, box.link.subscribe(other, spec.exec_id))
    assert conflict.error["code"] == "REQUEST_ID_CONFLICT"
    await box.finish(spec.exec_id, box.link.subscribe(None, spec.exec_id))
    again = await box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id))
    assert again.error["code"] == "EXEC_NOT_FOUND"
    assert await box.get("/workspace/count") == b"run\n"


async def test_unknown_commands(box):
    exec_id = new_exec_id()
    result = await box.finish(exec_id, box.link.subscribe(None, exec_id))
    assert result.error["code"] == "EXEC_NOT_FOUND"
    with pytest.raises(ExecNotFoundError):
        await box.link.signal(exec_id, 15)
    with pytest.raises(ExecNotFoundError):
        await box.link.write_stdin(exec_id, b"", 0, True)
    await box.link.cancel(exec_id)


async def test_active_execs(box):
    exec_id, subscription = box.start("true")
    assert box.link.active_execs() == 1
    await box.finish(exec_id, subscription, done=False)
    assert box.link.active_execs() == 1
    box.link.acknowledge(exec_id, 0, 0, True)
    assert box.link.active_execs() == 0


async def test_usage(box):
    small = (await box.run("true")).exit
    # None where it was over before anyone could look.
    assert small["max_rss_bytes"] is None or 0 < small["max_rss_bytes"] < 4 << 20
    assert small["cpu_seconds"] < 0.1
    big = (await box.python("x = b'x' * (80 << 20)")).exit
    assert 80 << 20 < big["max_rss_bytes"] < 200 << 20
    assert (await box.python("import time\nwhile time.process_time() < 0.3: pass")).exit["cpu_seconds"] >= 0.3


async def test_the_memory_of_a_short_command(box):
    peaks = sorted([(await box.python("print(42)")).exit["max_rss_bytes"] for _ in range(5)])
    assert peaks[2] > 4 << 20


async def test_input_for_a_supervisor_that_does_not_take_it_with_the_command(boxes, box):
    """One that an earlier server made: it gets what it knows."""
    box.link.hello["features"].remove("input")
    for given in (b"", b"in", b"x" * 65536):
        spec = replace(boxes.make_spec("wc", "-c", stdin=True), input=b64encode(given).decode())
        result = await box.finish(spec.exec_id, box.link.subscribe(spec, spec.exec_id))
        assert result.stdout.strip() == str(len(given)), result
