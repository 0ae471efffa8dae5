"""Terminals: job control, keys, sizes, and what hostile programs do with theirs."""

from __future__ import annotations

import asyncio
import time

import pytest

from aviato.exceptions import AviatoValidationError, SandboxExecutionError
from aviato.server.backends.local import plan

pytestmark = pytest.mark.anyio

SIZE = (80, 24)


class Terminal:
    """A command on a terminal, driven by keys."""

    def __init__(self, box, boxes, *command, size=SIZE, **options):
        self.box = box
        self.exec_id, self.subscription = box.start(*command, terminal=size, stdin=True, **options)
        self.result = boxes.Result(self.exec_id)
        self.typed = 0

    @property
    def screen(self):
        return self.result.stdout

    async def type(self, keys):
        await self.box.link.write_stdin(self.exec_id, keys, self.typed, False)
        self.typed += len(keys)

    async def until(self, text, times=1):
        async with asyncio.timeout(10):
            while self.screen.count(text) < times:
                await self._more()

    async def press(self, key, text):
        """Press a key until a text comes, as people do: a shell may miss one."""
        async with asyncio.timeout(10):
            while text not in self.screen:
                await self.type(key)
                try:
                    async with asyncio.timeout(0.5):
                        while text not in self.screen:
                            await self._more()
                except TimeoutError:
                    pass

    async def _more(self):
        frame = await anext(self.subscription)
        self.result.take(frame)
        self.box.link.acknowledge(self.exec_id, len(self.result.streams[1]), 0, False)

    async def end(self, seconds=10):
        async with asyncio.timeout(seconds):
            while self.result.exit is None and self.result.error is None:
                await self._more()
        self.box.link.acknowledge(self.exec_id, len(self.result.streams[1]), 0, True)
        return self.result


@pytest.fixture
def terminal(box, boxes):
    return lambda *command, **options: Terminal(box, boxes, *command, **options)


@pytest.fixture
async def bash(terminal):
    shell = terminal("bash", "--norc", env={"PS1": "ready> ", "TERM": "dumb"})
    await shell.until("ready> ")
    return shell


async def test_bash_has_job_control_and_keys_are_signals(box, bash):
    await box.put("/workspace/nap", b"#!/bin/sh\necho asleep\nexec sleep 1000\n", mode=0o755)
    await bash.type(b"./nap\r")
    await bash.until("\r\nasleep\r\n")
    await bash.type(b"\x1a")
    await bash.until("Stopped")
    await bash.type(b"bg\r")
    await bash.until("[1]+ ./nap &")
    await bash.type(b"fg\r")
    await bash.until("fg\r\n./nap\r\n")
    await bash.press(b"\x03", "^C\r\nready> ")
    await bash.type(b"jobs; echo list ends\r")
    await bash.until("\r\nlist ends\r\n")
    assert "Running" not in bash.screen
    await bash.type(b"./nap\r")
    await bash.until("./nap\r\nasleep\r\n", times=2)
    prompts = bash.screen.count("ready> ")
    await bash.type(b"\x03")
    await bash.until("ready> ", times=prompts + 1)  # The kernel may show ^C after it.
    await bash.type(b"echo code $?\r")
    await bash.until("\r\ncode 130\r\n")
    await bash.type(b"exit\r")
    result = await bash.end()
    assert "no job control" not in result.stdout and "cannot set terminal" not in result.stdout
    assert (result.returncode, result.exit["signal"]) == (0, None)


async def test_what_the_command_finds(box, terminal):
    script = """
        tty; stty size; echo $TERM; for fd in 0 1 2; do test -t $fd && echo is $fd; done; echo more > /dev/tty
        ps -o tty=,pgid=,sid=,tpgid= -p $$; echo $$; stty -a | tr ';' '\\n' | grep -o 'iutf8'
        ls /proc/self/fd; cut -d' ' -f5-8 /proc/1/stat
        grep -E 'Sig(Blk|Ign)|CapEff' /proc/self/status
    """
    result = await terminal("sh", "-c", script, size=(101, 37)).end()
    lines = result.stdout.split("\r\n")
    assert lines[:7] == ["/dev/pts/0", "37 101", "xterm-256color", "is 0", "is 1", "is 2", "more"]
    tty, pgid, sid, foreground = lines[7].split()
    assert tty == "pts/0" and {pgid, sid, foreground} == {lines[8]}
    assert lines[9] == "iutf8"
    assert lines[10].split() == ["0", "1", "2", "3"]
    assert lines[11].split()[2] == "0", "process 1 has a terminal"
    *masks, rights = [int(line.split()[1], 16) for line in lines[12:15]]
    assert [mask & ~0x180000000 for mask in masks] == [0, 0]  # the C library keeps two signals for itself
    assert rights == sum(1 << number for number in plan.RIGHTS.values())
    assert (result.returncode, result.streams[2]) == (0, b"")
    assert (await terminal("sh", "-c", "echo $TERM", env={"TERM": "vt100"}).end()).stdout == "vt100\r\n"


async def test_resizing_tells_the_programs(box, terminal):
    shell = terminal("sh", "-c", "trap 'stty size; exit 4' WINCH; echo up; while :; do sleep 0.05; done")
    await shell.until("up")
    await box.link.resize(shell.exec_id, 132, 50)
    result = await shell.end()
    assert "50 132" in result.stdout and result.returncode == 4
    exec_id, subscription = box.start("sleep", "0.3")
    with pytest.raises(AviatoValidationError, match="has no terminal"):
        await box.link.resize(exec_id, 80, 24)
    await box.finish(exec_id, subscription)


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["no-such-program"], 127, "no-such-program: command not found\r\n"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied\r\n"),
        (["/workspace/no-shebang"], 126, "Exec format error\r\n"),
        (["/workspace/bad-interpreter"], 127, "/no/interpreter\r\n"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
    ],
)
async def test_codes(box, terminal, argv, code, text):
    await box.put("/workspace/bad-interpreter", b"#!/no/interpreter\n", mode=0o755)
    await box.put("/workspace/no-shebang", b"true\n", mode=0o755)
    result = await terminal(*argv).end()
    assert result.returncode == code
    assert result.stdout.endswith(text)
    assert result.exit["signal"] == (9 if code == 137 else None)


async def test_the_end_of_input_is_a_key(box, terminal):
    shell = terminal("cat")
    await box.link.write_stdin(shell.exec_id, b"whole\nunfinished", 0, True)
    result = await shell.end()
    assert result.returncode == 0
    assert "whole\r\nunfinished" in result.stdout
    shell = terminal("cat")
    await box.link.write_stdin(shell.exec_id, b"", 0, True)
    with pytest.raises(SandboxExecutionError, match="stdin is closed"):
        await box.link.write_stdin(shell.exec_id, b"late", 0, False)
    assert (await shell.end()).returncode == 0


async def test_all_output_arrives_and_nothing_twice(terminal):
    size = 3_000_000
    result = await terminal("sh", "-c", f"stty raw; head -c {size} /dev/zero; printf last").end(30)
    assert len(result.streams[1]) == result.exit["stdout_bytes_total"] == size + 4
    assert result.stdout.endswith("last")


async def test_a_terminal_that_is_closed_and_opened_again(terminal):
    source = """
import os, time
me = os.ttyname(0)
for fd in range(3): os.close(fd)
time.sleep(0.1)
for n in range(3): os.open("/dev/tty", os.O_RDWR)
os.write(1, b"back on " + me.encode() + b"\\n")
os.write(1, b"read " + os.read(0, 100))
"""
    shell = terminal("python3", "-I", "-c", source)
    await asyncio.sleep(0.1)
    await shell.type(b"typed\n")
    result = await shell.end()
    assert "back on /dev/pts/0" in result.stdout and "read typed" in result.stdout
    assert result.returncode == 0


async def test_a_background_process_that_holds_the_terminal_delays_nothing_and_lives(box, terminal):
    began = time.monotonic()
    shell = terminal("bash", "-c", "trap '' HUP; (trap '' HUP; while echo flood; do :; done) & echo $! > /tmp/pid; exit 5")
    result = await shell.end()
    assert result.returncode == 5
    assert time.monotonic() - began < 3
    assert (await box.sh("kill -0 $(cat /tmp/pid) && echo lives")).stdout == "lives\n"
    await box.link.cancel(shell.exec_id)
    assert (await box.sh("kill -0 $(cat /tmp/pid) || echo gone")).stdout == "gone\n"
    assert (await box.sh("ls /dev/pts")).stdout == "ptmx\n", "its terminal was not let go"


async def test_terminals_are_let_go(box, terminal):
    for _ in range(70):
        assert (await terminal("true").end()).returncode == 0
    assert (await box.sh("ls /dev/pts")).stdout == "ptmx\n"


async def test_a_program_that_never_reads_holds_the_writer_and_no_one_else(box, terminal):
    shell = terminal("sh", "-c", "stty raw -echo; echo up; sleep 1000")
    await shell.until("up")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            for _ in range(20):
                await shell.type(b"x" * 50_000)
    assert (await box.sh("echo free")).stdout == "free\n"
    await box.link.cancel(shell.exec_id)
    assert (await shell.end()).returncode == 137


async def test_stopping_hangs_a_shell_up(box, bash):
    await bash.type(b"sleep 1000\r")
    await bash.until("sleep 1000\r\n")
    # At any moment: while it starts the job, too.
    began = time.monotonic()
    assert (await box.link.stop(8)).reason == "stopped"
    assert time.monotonic() - began < 4


async def test_all_terminals_in_use_is_a_result(box, terminal):
    source = "import os, time\ntry:\n while True: os.openpty()\nexcept OSError: print('full', flush=True); time.sleep(1000)"
    exec_id, subscription = box.start("python3", "-I", "-c", source)
    async with asyncio.timeout(10):
        while "full" not in (await anext(subscription)).payload.decode(errors="replace"):
            pass
    result = await terminal("true").end()
    assert (result.returncode, result.stdout) == (126, "true: not started: all terminals of the sandbox are in use\r\n")
    await box.link.cancel(exec_id)
    assert (await terminal("true").end()).returncode == 0
