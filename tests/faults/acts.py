"""What users do, with what must come of it. An act is written once, for coroutines and for threads.

An act is a generator of steps: handles, pieces of streams, pauses. A coroutine awaits each, a thread waits for it, and the
act goes on with what it gave.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import aviato
from aviato.rl import Task, evaluate
from tests.faults.conftest import FaultyServer
from tests.faults.test_trainers import Trainer
from tests.faults.work import COUNT, commands

STEP_SECONDS = 100.0
"""No step takes longer, whatever happens meanwhile."""
SHARED = 3
LEFT_TRIES = 10
Act = Generator[Any, Any, None]


@dataclass(frozen=True)
class Piece:
    """The next piece of a stream."""

    stream: Any


@dataclass(frozen=True)
class Pause:
    """A while."""

    seconds: float


@dataclass(frozen=True)
class Aside:
    """Something that blocks."""

    call: Callable[[], Any]


def in_thread(act: Act) -> None:
    """Do an act from a thread."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = act.send(answer) if error is None else act.throw(error)
        except StopIteration:
            return
        answer = error = None
        try:
            match step:
                case Piece(stream):
                    answer = next(iter(stream))
                case Pause(seconds):
                    time.sleep(seconds)
                case Aside(call):
                    answer = call()
                case aviato.Sandbox():
                    step.wait(STEP_SECONDS)
                case _:
                    answer = step.result(STEP_SECONDS)
        except Exception as raised:
            error = raised


async def in_loop(act: Act) -> None:
    """Do an act from a coroutine."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = act.send(answer) if error is None else act.throw(error)
        except StopIteration:
            return
        answer = error = None
        try:
            async with asyncio.timeout(STEP_SECONDS):
                match step:
                    case Piece(stream):
                        answer = await anext(aiter(stream))
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Aside(call):
                        answer = await asyncio.to_thread(call)
                    case _:
                        answer = await step
        except Exception as raised:
            error = raised


@dataclass
class Site:
    """A server and the way to it, and the sandboxes there that many acts share."""

    name: str
    server: FaultyServer
    url: str
    seed: str
    shared: list[aviato.Sandbox] = field(default_factory=list)
    session: Any = None
    ran: int = 0

    def open(self) -> None:
        """A round begins."""
        self.session = aviato.Session(aviato.SandboxDefaults(base_url=self.url, tags=["session"]))
        self.shared = [aviato.Sandbox(base_url=self.url, tags=["shared"]) for _ in range(SHARED)]
        self.ran = 0

    async def close(self) -> None:
        """A round ends: each command ran once."""
        lines: list[bytes] = []
        try:
            for box in self.shared:
                lines += (await box.exec(["sh", "-c", f"cat {COUNT} || true"])).stdout_bytes.split()
        finally:
            for box in self.shared:
                await box.stop()
            await self.session.close()
        expected = sorted(str(number).encode() for number in range(self.ran))
        assert sorted(lines) == expected, f"{self.name}: {len(lines)} commands ran in place of {len(expected)}"

    def box(self, draw: random.Random) -> aviato.Sandbox:
        """One of those that are shared."""
        return draw.choice(self.shared)


def command(site: Site, draw: random.Random) -> Act:
    """Up to 4 MiB of output, some with input."""
    number, site.ran = site.ran, site.ran + 1
    (one,) = commands(draw.randrange(1 << 30), 1)
    one = type(one)(number, one.seed, one.size_bytes, one.seconds / 3, draw.choice([0, 0, draw.randrange(1, 1 << 20)]))
    problem = one.check((yield site.box(draw).exec(one.argv, **one.options)))
    assert problem is None, problem


def short(site: Site, draw: random.Random) -> Act:
    """Many short ones."""
    box = site.box(draw)
    for number in range(5):
        result = yield box.exec(["sh", "-c", f"echo {number}; exit {number}"])
        assert (result.stdout, result.returncode) == (f"{number}\n", number), result


def files(site: Site, draw: random.Random) -> Act:
    """In a sandbox of its own, some with limits of memory and processor."""
    more: dict[str, Any] = {"resources": {"memory": "256Mi", "cpu": "500m"}} if draw.random() < 0.5 else {}
    box = aviato.Sandbox(base_url=site.url, tags=["files"], **more)
    try:
        content = draw.randbytes(draw.randrange(1 << 21))
        yield box.write_file("a/data", content)
        assert (yield box.exec(["wc", "-c", "a/data"])).stdout.split()[0] == str(len(content))
        assert (yield box.read_file("a/data")) == content, "a file is not what was written"
        for patience in range(LEFT_TRIES, -1, -1):
            # A write whose connection was cut, or that came twice, may have its own file there for a moment.
            names = [one.path for one in (yield box.list_files("a"))]
            if len(names) == 1:
                break
            assert patience, names
            yield Pause(0.5)
        try:
            yield box.read_file("missing")
            raise AssertionError("a file that is missing was read")
        except aviato.SandboxFileError as error:
            assert error.reason == "no_such_file"
    finally:
        yield box.stop()


def timeout(site: Site, draw: random.Random) -> Act:
    """A command that runs too long."""
    try:
        yield site.box(draw).exec(["sh", "-c", "echo on; sleep 60"], timeout_seconds=1.0)
        raise AssertionError("a command outlived its time")
    except aviato.SandboxCommandTimeoutError as error:
        assert error.exec_result is not None and error.exec_result.stdout == "on\n", error.exec_result


def cancel(site: Site, draw: random.Random) -> Act:
    """A command that is cancelled before it runs, while it runs, and while it prints."""
    process = site.box(draw).exec(["sh", "-c", "seq 100000; sleep 60"])
    yield Pause(draw.choice([0.0, draw.uniform(0, 0.5)]))
    process.cancel()
    try:
        yield process
        raise AssertionError("a command that was cancelled has a result")
    except aviato.OperationCancelledError:
        pass


def half_read(site: Site, draw: random.Random) -> Act:
    """A stream whose reader leaves after the first piece."""
    process = site.box(draw).exec(["sh", "-c", "yes | head -c 5000000"])
    assert (yield Piece(process.stdout)).startswith("y\n")
    yield Pause(0.05)
    process.cancel()
    try:
        yield process
    except aviato.OperationCancelledError:
        pass


def stop(site: Site, draw: random.Random) -> Act:
    """A sandbox that is stopped in the middle of a command, or of its start."""
    box = aviato.Sandbox(base_url=site.url, tags=["stop"])
    process = box.exec(["sh", "-c", "echo on; sleep 60"])
    try:
        if draw.random() < 0.7:
            assert (yield Piece(process.stdout)) == "on\n"
    finally:
        yield box.stop(0)
    try:
        yield process
        raise AssertionError("a command outlived its sandbox")
    except (aviato.SandboxNotRunningError, aviato.OperationCancelledError):
        pass


def let_go(site: Site, draw: random.Random) -> Act:
    """A sandbox that nobody stops."""
    assert (yield site.session.sandbox().exec(["echo", "gone"])).stdout == "gone\n"


def detached(site: Site, draw: random.Random) -> Act:
    """A command that is read by somebody else."""
    box = site.box(draw)
    process = box.exec(["sh", "-c", "seq 50000; exit 5"], detach=True)
    first = yield process
    second = yield box.attach(process.exec_id)
    assert first.returncode == second.returncode == 5 and first.stdout == second.stdout and first.stdout.endswith("50000\n")


def terminal(site: Site, draw: random.Random) -> Act:
    """Somebody types."""
    shell = site.box(draw).shell(["/bin/sh"])
    try:
        yield shell.stdin.write(b"exit 3\n")
    except aviato.SandboxExecutionError as error:
        assert error.reason == "stdin_closed"  # It arrived, but its answer did not: the shell has ended.
    assert (yield shell).returncode == 3


def verdicts(site: Site, draw: random.Random) -> Act:
    """Rewards."""
    code = ["def f(): return 1", "def f(): return 2", "def f(): raise OSError"]
    tasks = [Task(code=text, tests=["assert f() == 1"]) for text in code]
    rewards = [one.reward() for one in (yield evaluate(tasks, session=site.session))]
    assert rewards == [1.0, 0.0, 0.0], rewards


def own_loop(site: Site, draw: random.Random) -> Act:
    """A loop that comes and goes, with a client of its own."""

    async def life() -> str:
        async with aviato.AsyncClient(base_url=site.url) as client:
            box = await client.sandbox(tags=["own loop"])
            text = (await box.exec(["echo", "loop"])).stdout
            if draw.random() < 0.5:
                await box.stop()
            return text

    assert (yield Aside(lambda: asyncio.run(life()))) == "loop\n"


def killed_trainer(site: Site, draw: random.Random) -> Act:
    """A program with sandboxes that is killed."""
    one: Trainer = yield Aside(lambda: Trainer(site.server.url, batch=2, stderr=subprocess.DEVNULL))
    yield Pause(draw.uniform(0, 2))
    yield Aside(one.kill)


ACTS = {
    command: 8,
    short: 6,
    files: 4,
    timeout: 2,
    cancel: 3,
    half_read: 2,
    stop: 3,
    let_go: 4,
    detached: 2,
    terminal: 2,
    verdicts: 2,
    own_loop: 2,
    killed_trainer: 1,
}
"""With how often each is drawn."""
