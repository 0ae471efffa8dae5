"""Attaching where it is not expected: with wrong ids and offsets, from two processes, while servers come and go, unread."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from aviato.wire.ids import new_exec_id


@pytest.fixture
def box(served: Any) -> Iterator[Sandbox]:
    made = Sandbox.run(detached=True)
    yield made
    made.stop(0.0, missing_ok=True).result()


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
    return value


def kept_bytes(server: Any, box: Sandbox) -> int:
    """What the disk holds of a sandbox's detached commands."""
    found = 0
    for path in Path(server.state_dir).glob(f"*/log/execs/{box.sandbox_id}/*/*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:
            pass  # A segment that was pushed out meanwhile.
    return found


def begin(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


# -- wrong ids


def test_a_command_belongs_to_its_sandbox(box: Sandbox, session: aviato.Session) -> None:
    other = session.sandbox()
    for process in (box.exec(["sh", "-c", "echo mine; sleep 1"], detach=True), box.exec(["sh", "-c", "echo mine; sleep 1"])):
        assert next(iter(process.stdout)) == "mine\n"
        stranger = other.attach(process.exec_id)
        with pytest.raises(aviato.SandboxExecutionError, match="no command") as caught:
            list(stranger.stdout)
        assert (caught.value.reason, caught.value.is_infrastructure) == ("exec_not_found", False)
        cancelled = other.attach(process.exec_id)
        cancelled.cancel()
        assert isinstance(cancelled.exception(), aviato.AviatoError)
        assert process.result().stdout == "mine\n"


EXEC_ID = "ex-01m81dp5vre208qvmdeydzrp13"


@pytest.mark.parametrize("exec_id", ["", "ex-", f"../{EXEC_ID}", f"{EXEC_ID}/../x", f"{EXEC_ID}\n", "a" * 100_000, "é\0"])
def test_what_is_no_id_is_no_command(box: Sandbox, exec_id: str) -> None:
    with pytest.raises(aviato.SandboxExecutionError, match="no command") as caught:
        box.attach(exec_id).result()
    assert caught.value.reason == "exec_not_found"


def test_async_form_of_wrong_ids_and_offsets(box: Sandbox) -> None:
    async def main() -> None:
        ended = box.exec(["echo", "x"], detach=True)
        await ended
        async with AsyncClient() as client:
            found = await client.from_id(box.sandbox_id)
            for exec_id in ("../x", new_exec_id()):
                with pytest.raises(aviato.SandboxExecutionError, match=re.escape(exec_id)):
                    await found.attach(exec_id)
            with pytest.raises(aviato.AviatoValidationError, match="stderr_offset is 1, but"):
                await found.attach(ended.exec_id, 2, 1)
            with pytest.raises(aviato.AviatoValidationError, match="0 or more"):
                found.attach(ended.exec_id, 0, -1)

    asyncio.run(main())


# -- wrong offsets


@pytest.mark.parametrize("detach", [True, False])
def test_an_offset_ahead_of_the_output_waits_for_it_and_stalls_nothing(box: Sandbox, detach: bool) -> None:
    command = ["sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.02; done; head -c 3000000 /dev/zero; echo end"]
    process = box.exec(command, detach=detach)
    box.exec(["true"]).result()
    ahead = box.attach(process.exec_id, stdout_offset=2_500_000)
    beyond = box.attach(process.exec_id, stdout_offset=1 << 62) if detach else None
    ahead_text = iter(ahead.stdout)
    box.write_file("/tmp/go", b"").result()
    assert sum(map(len, ahead_text)) == 500_004
    assert ahead.result().stdout_bytes_total == 3_000_004
    if beyond is not None:
        with pytest.raises(aviato.AviatoValidationError, match="wrote only 3000004 bytes"):
            beyond.result()
        assert process.result().stdout_bytes_total == 3_000_004


def test_a_reader_goes_on_where_one_that_confirmed_nothing_was_killed(box: Sandbox) -> None:
    source = f"""
import aviato, time
process = aviato.Sandbox.from_id({box.sandbox_id!r}).result().exec(["sh", "-c", "head -c 9000000 /dev/zero; echo end"])
reader = iter(process.stdout)
next(reader)
last, since = 0, time.monotonic()
while time.monotonic() < since + 0.5:
    if process.stdout.total_bytes != last:
        last, since = process.stdout.total_bytes, time.monotonic()
    time.sleep(0.01)
print(process.exec_id, last, flush=True)
time.sleep(60)
"""
    with begin(source) as child:
        assert child.stdout is not None
        exec_id, total = child.stdout.readline().split()
        child.kill()
    assert 1 << 20 < int(total) < 9_000_000
    rest = box.attach(exec_id, stdout_offset=int(total)).result(20)
    assert (rest.stdout_bytes_total, rest.returncode) == (9_000_004, 0)
    assert rest.stdout.strip("\0") == "end\n"


# -- input


@pytest.mark.parametrize("size", [20, 5_000_000])
@pytest.mark.parametrize("how", ["given", "written"])
def test_its_input_is_sent_before_its_process_goes(box: Sandbox, script: Any, size: int, how: str) -> None:
    given, written = f"stdin=b'x' * {size}", f"process.stdin.write(b'x' * {size}); process.stdin.close()"
    done = script(f"""
        import aviato
        box = aviato.Sandbox.from_id({box.sandbox_id!r}).result()
        process = box.exec(["sh", "-c", "sleep 0.3; wc -c"], detach=True, {given if how == "given" else "stdin=True"})
        {written if how == "written" else ""}
        print(process.exec_id)
    """)
    assert done.returncode == 0, done.stderr
    assert box.attach(done.stdout.strip()).result(10).stdout.split() == [str(size)]


def test_input_that_nobody_reads_does_not_hold_its_process(box: Sandbox, script: Any) -> None:
    begin_time = time.monotonic()
    done = script(f"""
        import aviato
        box = aviato.Sandbox.from_id({box.sandbox_id!r}).result()
        print(box.exec(["sleep", "1000"], detach=True, stdin=b"x" * 5_000_000).exec_id)
    """)
    assert time.monotonic() - begin_time < 20
    assert "stdin" in done.stderr
    assert box.attach(done.stdout.strip()).poll() is None


# -- two at once, and readers that stall


def test_two_processes_read_it_at_once(box: Sandbox) -> None:
    piece = "hashlib.shake_256(b'%d' % n).digest(40000)"
    program = f"import sys,hashlib\nsys.stdin.readline()\nfor n in range(300): sys.stdout.buffer.write({piece})"
    process = box.exec(["python", "-c", program], stdin=True, detach=True)
    expected = hashlib.sha256(b"".join(hashlib.shake_256(b"%d" % n).digest(40000) for n in range(300))).hexdigest()
    source = f"""
import asyncio, hashlib, aviato
async def main():
    async with aviato.AsyncClient() as client:
        process = (await client.from_id({box.sandbox_id!r})).attach({process.exec_id!r}, text=False)
        print(await process.started(), flush=True)
        seen = hashlib.sha256()
        async for chunk in process.stdout:
            seen.update(chunk)
        print(seen.hexdigest(), (await process).returncode)
asyncio.run(main())
"""
    with begin(source) as one, begin(source) as two:
        for child in (one, two):
            assert child.stdout is not None
            assert child.stdout.readline() == "True\n"
        assert process.stdin is not None
        process.stdin.writeline("go").result()
        for child in (one, two):
            assert child.communicate(timeout=250)[0] == f"{expected} 0\n"
    assert hashlib.sha256(process.result().stdout_bytes).hexdigest() == expected


def test_a_hostile_flood_takes_bounded_disk_and_no_reader_holds_the_end(box: Sandbox, served: Any) -> None:
    flood = box.exec(["sh", "-c", "yes out & yes err >&2"], detach=True)
    stuck = box.attach(flood.exec_id)
    stuck_reader = iter(stuck.stdout)
    next(stuck_reader)
    most = 0
    while flood.stdout.total_bytes < 200_000_000:
        most = max(most, kept_bytes(served, box))
        time.sleep(0.01)
    assert 32 << 20 < most < 50 << 20
    begin_time = time.monotonic()
    box.stop(0.0).result()
    assert time.monotonic() - begin_time < 5
    assert isinstance(flood.exception(10), aviato.SandboxNotRunningError)
    del stuck_reader
    assert stuck.exception(10) is not None
    wait_for(lambda: kept_bytes(served, box) == 0)


def test_a_stopped_reader_process_keeps_no_disk_and_no_server(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    box = Sandbox.run(detached=True)
    flood = box.exec(["sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.02; done; yes out"], detach=True)
    source = f"""
import aviato
process = aviato.Sandbox.from_id({box.sandbox_id!r}).result().attach({flood.exec_id!r})
next(iter(process.stdout))
print(flush=True)
process.result()
"""
    with begin(source) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        box.write_file("go", b"").result()
        before = flood.stdout.total_bytes
        wait_for(lambda: flood.stdout.total_bytes > before + 40_000_000)
        begin_time = time.monotonic()
        server.stop(signal.SIGTERM)
        assert time.monotonic() - begin_time < 4
        server.restart()
        wait_for(lambda: flood.stdout.total_bytes > before + 80_000_000)
        child.kill()
    box.stop(0.0).result()


# -- servers that come and go


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_attached_before_and_while_the_server_is_away(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    box = Sandbox.run(detached=True)
    program = (
        "import os,time\nfor n in range(300):\n os.write(1, b'%07d' % n * 3000); os.write(2, b'%d,' % n); time.sleep(.005)"
    )
    out, err = b"".join(b"%07d" % n * 3000 for n in range(300)), b"".join(b"%d," % n for n in range(300))
    process = box.exec(["python", "-c", program], detach=True)
    wait_for(lambda: process.stdout.total_bytes > 100_000)
    before = box.attach(process.exec_id, 5, 7)
    live: list[str] = []
    reading = threading.Thread(target=lambda: live.extend(before.stdout))
    reading.start()
    wait_for(lambda: live)
    server.process.send_signal(end)
    server.process.wait()
    away = [box.attach(process.exec_id, 0, 1) for _ in range(3)]
    server.restart()
    for one, offsets in ((process, (0, 0)), (before, (5, 7)), *((one, (0, 1)) for one in away)):
        result = one.result(30)
        assert result.stdout_bytes == out[offsets[0] :]
        assert result.stderr_bytes == err[offsets[1] :]
    reading.join(10)
    assert "".join(live).encode() == out[5:]
    box.stop(0.0).result()


def test_its_last_words_come_before_the_end_of_its_sandbox(served: Any) -> None:
    sandbox = Sandbox.run("sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.02; done; exit 0", detached=True)
    process = sandbox.exec(
        ["sh", "-c", "trap 'echo last words; exit 0' TERM; echo up; while :; do sleep 0.02; done"], detach=True
    )
    lines = process.stdout.lines()
    other = sandbox.attach(process.exec_id).stdout.lines()
    assert (next(lines), next(other)) == ("up", "up")
    sandbox.stop(5.0).result()
    for reader in (lines, other):
        assert next(reader) == "last words"
