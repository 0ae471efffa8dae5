"""docs/protocol.md: Commands."""

from __future__ import annotations

import asyncio

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio

LEAVES = "(setsid sh -c 'echo $$ > /tmp/pid; exec sleep 60' >/dev/null 2>&1 &) ; while [ ! -s /tmp/pid ]; do sleep 0.01; done"
HEARS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"got\\n"))
print("ready", flush=True)
while True: time.sleep(0.02)
"""
ALIVE = "kill -0 $(cat /tmp/pid) 2>/dev/null && echo alive || echo dead"


async def test_its_frames_in_order_and_its_result(peer: Peer) -> None:
    seen = await peer.sh("echo out; echo err >&2; exit 3")
    assert (seen.stdout, seen.stderr) == ("out\n", "err\n")
    assert seen.types[:2] == [FrameType.ACCEPTED, FrameType.STARTED] and seen.types[-1] == FrameType.EXIT
    usage = {name: seen.result.pop(name) for name in ("duration_seconds", "cpu_seconds", "max_rss_bytes")}
    assert seen.result == {
        "returncode": 3,
        "signal": None,
        "timed_out": False,
        "oom_killed": False,
        "cancelled": False,
        "stdout_bytes_total": 4,
        "stderr_bytes_total": 4,
    }
    assert usage["duration_seconds"] > 0 and usage["cpu_seconds"] >= 0
    assert usage["max_rss_bytes"] is None or usage["max_rss_bytes"] > 100_000


async def test_nothing_waits_for_an_end_that_is_far(peer: Peer) -> None:
    channel = await peer.start(peer.spec("sh", "-c", "echo said; exec sleep 60"), together=True)
    types = [(await peer.next(channel)).type for _ in range(3)]
    assert types == [FrameType.ACCEPTED, FrameType.STARTED, FrameType.DATA]


@pytest.mark.parametrize("size", [0, 10, 20_000, 300_000])
async def test_what_comes_with_the_end_is_the_same(peer: Peer, size) -> None:
    spec = peer.spec("sh", "-c", f"head -c {size} /dev/zero; echo error >&2")
    seen = await peer.finish(await peer.start(spec, together=True))
    assert seen.types[:2] == [FrameType.ACCEPTED, FrameType.STARTED] and seen.types[-1] == FrameType.EXIT
    assert (len(seen.stdout), seen.stderr, seen.result["stdout_bytes_total"]) == (size, "error\n", size)


async def test_environment_and_directory(peer: Peer) -> None:
    assert (await peer.sh("echo $A; pwd", environment={"A": "b c"}, working_dir="/usr")).stdout == "b c\n/usr\n"
    with pytest.raises(Refused) as caught:
        await peer.sh("true", working_dir="/nowhere")
    assert (caught.value.code, caught.value.reason) == ("FILE", "no_such_file")


@pytest.mark.parametrize(
    ("command", "returncode"),
    [(["not-there-at-all"], 127), (["/etc/hostname-that-is-not"], 127), (["/etc"], 126), (["/etc/passwd"], 126), ([""], 127)],
)
async def test_what_cannot_be_started_has_ended_as_a_shell_says_it(peer: Peer, command, returncode) -> None:
    seen = await peer.run(*command)
    assert seen.result["returncode"] == returncode and seen.stderr.endswith("\n") and seen.stdout == ""


async def test_an_id_runs_at_most_once(process_1: Process1) -> None:
    peer = process_1.peer
    spec = peer.spec("sh", "-c", "echo x >> /tmp/ran; echo said")
    assert (await peer.finish(await peer.start(spec))).stdout == "said\n"
    assert (await peer.finish(await peer.start(spec))).stdout == "said\n"
    other = await process_1.connect()
    assert (await other.finish(await other.start(spec))).stdout == "said\n"
    with pytest.raises(Refused) as caught:
        await other.finish(await other.start(other.spec("true", exec_id=spec.exec_id)))
    assert caught.value.code == "REQUEST_ID_CONFLICT"
    await other.confirm(spec.exec_id, 5, done=True)
    for again in (spec, None):
        with pytest.raises(Refused) as caught:
            await other.finish(await other.start(again, spec.exec_id))
        assert caught.value.code == "EXEC_NOT_FOUND"
    assert (await other.sh("cat /tmp/ran")).stdout == "x\n"


async def test_what_was_done_in_another_place_is_not_done_again(peer: Peer) -> None:
    elsewhere, here = peer.spec("touch", "/tmp/elsewhere"), peer.spec("touch", "/tmp/here")
    await peer.begin("remember", commands=[elsewhere.exec_id], calls=["done"])
    with pytest.raises(Refused) as caught:
        await peer.finish(await peer.start(elsewhere))
    assert caught.value.code == "EXEC_NOT_FOUND"
    await peer.ask("remove", path="/tmp", recursive=True, key="done")
    assert (await peer.finish(await peer.start(here))).result["returncode"] == 0
    await peer.confirm(here.exec_id, 0, done=True)
    assert (await peer.sh("ls /tmp")).stdout == "here\n"
    said = await peer.ask("rest")
    assert {elsewhere.exec_id, here.exec_id} <= set(said["commands"]) and said["calls"] == ["done"]


async def test_an_id_that_nobody_knows(peer: Peer) -> None:
    unknown = new_exec_id()
    for op, fields in (
        ("signal", {"signal": 15}),
        ("resize", {"width": 80, "height": 24}),
        ("stdin", {"offset": 0, "eof": True}),
    ):
        with pytest.raises(Refused) as caught:
            await peer.ask(op, b"" if op == "stdin" else None, exec_id=unknown, **fields)
        assert caught.value.code == "EXEC_NOT_FOUND", op
    assert await peer.ask("cancel", exec_id=unknown) == {}


async def test_one_channel_listens_and_the_newest_replaces_it(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", "read line; echo $line", stdin=True)
    first = await peer.start(spec)
    second = await peer.start(None, spec.exec_id)
    assert (await peer.next(second)).type == FrameType.ACCEPTED
    await peer.ask("stdin", b"word\n", exec_id=spec.exec_id, offset=0, eof=True)
    assert (await peer.finish(second)).stdout == "word\n"
    assert [(await peer.next(first)).type for _ in range(2)] == [FrameType.ACCEPTED, FrameType.STARTED]
    assert peer.silent(first)


@pytest.mark.parametrize(("script", "returncode", "signal"), [("kill -9 $$", 137, 9), ("kill -10 $$", 138, 10)])
async def test_ended_by_a_signal_of_its_own(peer: Peer, script, returncode, signal) -> None:
    result = (await peer.sh(script)).result
    assert (result["returncode"], result["signal"], result["cancelled"]) == (returncode, signal, False)


async def test_signals_go_to_its_group_and_once_by_key(peer: Peer) -> None:
    spec = peer.spec("python3", "-I", "-c", HEARS)
    channel = await peer.start(spec)
    while (await peer.next(channel)).type != FrameType.DATA:
        pass
    for _ in range(3):
        await peer.ask("signal", exec_id=spec.exec_id, signal=10, key="a")
    frame = await peer.next(channel)
    assert frame.payload == b"got\n"
    await peer.ask("signal", exec_id=spec.exec_id, signal=9, key="b")
    seen = await peer.finish(channel)
    assert seen.stdout == "" and seen.result["signal"] == 9
    await peer.ask("signal", exec_id=spec.exec_id, signal=9, key=None)


async def test_a_time_limit_ends_its_tree(peer: Peer) -> None:
    seen = await peer.sh(f"{LEAVES}; echo begun; sleep 60", timeout_seconds=1.5)
    assert (seen.stdout, seen.result["returncode"], seen.result["timed_out"]) == ("begun\n", 137, True)
    assert (await peer.sh(ALIVE)).stdout == "dead\n"


async def test_cancelling_ends_its_tree_and_waits_for_that(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", f"{LEAVES}; echo begun; sleep 60")
    channel = await peer.start(spec)
    while (await peer.next(channel)).type != FrameType.DATA:
        pass
    assert await peer.ask("cancel", exec_id=spec.exec_id) == {}
    assert (await peer.sh(ALIVE)).stdout == "dead\n"
    result = (await peer.finish(channel)).result
    assert (result["returncode"], result["cancelled"]) == (137, True)


async def test_cancelling_one_that_ended_kills_what_it_left(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", LEAVES)
    assert (await peer.finish(await peer.start(spec))).result["returncode"] == 0
    assert (await peer.sh(ALIVE)).stdout == "alive\n"
    await peer.ask("cancel", exec_id=spec.exec_id)
    assert (await peer.sh(ALIVE)).stdout == "dead\n"


async def test_all_but_the_main_command_are_cancelled(peer: Peer) -> None:
    main = peer.spec("sh", "-c", "sleep 60 & until pgrep -x sleep >/dev/null; do :; done; echo ready; wait", main=True)
    of_main = await peer.start(main)
    while (await peer.next(of_main)).type != FrameType.DATA:
        pass
    other = await peer.start(peer.spec("sleep", "60"))
    assert [(await peer.next(other)).type for _ in range(2)] == [FrameType.ACCEPTED, FrameType.STARTED]
    await peer.ask("cancel_all")
    assert (await peer.finish(other)).result["cancelled"] is True
    assert (await peer.sh("pgrep -c sleep || true")).stdout == "1\n"


async def test_who_holds_a_pipe_open_does_not_hold_the_result_up(peer: Peer) -> None:
    began = asyncio.get_running_loop().time()
    seen = await peer.sh("sleep 60 & echo said")
    assert seen.stdout == "said\n" and seen.result["returncode"] == 0
    assert asyncio.get_running_loop().time() - began < 20


async def test_what_is_given_as_input_is_all_there_is(peer: Peer) -> None:
    seen = await peer.run("cat", stdin=True, input="aGVsbG8K")
    assert seen.stdout == "hello\n"
    assert (await peer.run("cat")).stdout == ""


async def test_a_terminal(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", "stty size; tty >/dev/null && echo yes; read a; stty size; echo $a >&2", terminal=(80, 24))
    channel = await peer.start(spec)
    said = b""
    while b"yes\r\n" not in said:
        frame = await peer.next(channel)
        said += frame.payload if frame.type == FrameType.DATA else b""
    assert said.startswith(b"24 80\r\n")
    await peer.ask("resize", exec_id=spec.exec_id, width=100, height=30)
    await peer.ask("stdin", b"typed\n", exec_id=spec.exec_id, offset=0, eof=False)
    seen = await peer.finish(channel)
    assert "30 100\r\n" in seen.stdout and seen.stdout.endswith("typed\r\n") and seen.stderr == ""


async def test_many_at_once(peer: Peer) -> None:
    channels = [await peer.start(peer.spec("sh", "-c", f"echo {number}")) for number in range(40)]
    for number, channel in enumerate(channels):
        assert (await peer.finish(channel)).stdout == f"{number}\n"
