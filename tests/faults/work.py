"""Many commands with known results, begun from coroutines and from threads, while somebody breaks what is below them."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aviato

COUNT = "/workspace/ran"
"""Each command appends its number to it."""
LARGEST_BYTES = 4 << 20
LARGEST_INPUT_BYTES = 1 << 20
LONGEST_SECONDS = 3.0
PIECES = 8
MORE = 16
COMMAND = f"""
import hashlib, os, random, sys, time
number, seed, size, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with open({COUNT!r}, "a") as file:
    file.write(f"{{number}}\\n")
data = random.Random(seed).randbytes(size)
for piece in range({PIECES}):
    view = memoryview(data)[piece * size // {PIECES} : (piece + 1) * size // {PIECES}]
    while view:
        view = view[os.write(1, view) :]
    time.sleep(seconds / {PIECES})
sys.stderr.write(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())
sys.exit(number % 3)
"""


@dataclass(frozen=True)
class Command:
    """One command and what it must come to."""

    number: int
    seed: str
    size_bytes: int
    seconds: float
    stdin_bytes: int

    @property
    def options(self) -> dict[str, Any]:
        """Every third has input, and every third outlives its caller's patience."""
        return {"stdin": self.stdin} if self.stdin_bytes else {"detach": self.number % 3 == 2}

    @property
    def stdin(self) -> bytes:
        return random.Random(f"{self.seed} in").randbytes(self.stdin_bytes)

    @property
    def argv(self) -> list[str]:
        return ["python3", "-I", "-c", COMMAND, str(self.number), self.seed, str(self.size_bytes), str(self.seconds)]

    def check(self, result: aviato.ProcessResult) -> str | None:
        """What is wrong with a result."""
        expected = random.Random(self.seed).randbytes(self.size_bytes)
        if result.returncode != self.number % 3:
            return f"command {self.number}: returncode {result.returncode}, stderr {result.stderr[-300:]!r}"
        if hashlib.sha256(result.stdout_bytes).digest() != hashlib.sha256(expected).digest():
            return f"command {self.number}: {len(result.stdout_bytes)} bytes of output are not the {self.size_bytes} expected"
        if result.stderr != hashlib.sha256(self.stdin).hexdigest():
            return f"command {self.number} has not got its {self.stdin_bytes} bytes of input: {result.stderr[-300:]!r}"
        return None


def commands(seed: int, count: int, *, first: int = 0) -> list[Command]:
    """As many, all different; many are short and print little, some are long and print much."""
    draw = random.Random(seed + first)
    return [
        Command(
            number,
            f"{seed}/{number}",
            draw.choice([0, draw.randrange(100), draw.randrange(1 << 16), draw.randrange(LARGEST_BYTES + 1)]),
            draw.choice([0.0, draw.uniform(0, LONGEST_SECONDS), draw.uniform(0, LONGEST_SECONDS)]),
            draw.randrange(1, LARGEST_INPUT_BYTES) if number % 3 == 1 else 0,
        )
        for number in range(first, first + count)
    ]


class Work:
    """Runs commands in a few sandboxes that stay, and makes others beside that come and go.

    Attributes:
        done: how many commands have ended.
        wrong: what was wrong, in words.
        made: how many sandboxes came and went.
        needed: somebody is not done yet with what he breaks: there are more commands than were asked for.
    """

    def __init__(self, url: str, seed: int, count: int, *, at_once: int, makers: int, sandboxes: int = 8) -> None:
        self.done = 0
        self.made = 0
        self.wrong: list[str] = []
        self.needed = False
        self._url = url
        self._seed = seed
        self._left = commands(seed, count)[::-1]
        self._all = {command.number for command in self._left}
        self._at_once = at_once
        self._makers = makers
        self._sandboxes = sandboxes
        self._threads = ThreadPoolExecutor(at_once)

    @property
    def over(self) -> bool:
        """Whether all commands have ended."""
        return not self.needed and self.done == len(self._all)

    async def run(self) -> None:
        """Run all, and count what each did inside."""
        boxes = [aviato.Sandbox(base_url=self._url, tags=["stays"]) for _ in range(self._sandboxes)]
        await asyncio.gather(*boxes)
        makers = [asyncio.create_task(self._make()) for _ in range(self._makers)]
        await asyncio.gather(*(self._work(boxes[n % len(boxes)], in_thread=n % 2 == 1) for n in range(self._at_once)))
        await asyncio.gather(*makers)
        ran = Counter[int]()
        for box in boxes:
            ran.update(_numbers(await box.read_file(COUNT)))
            await box.stop()
        for number in self._all:
            if ran[number] != 1:
                self.wrong.append(f"command {number} ran {ran[number]} times")
        self.wrong += [f"there was no command {number}" for number in ran.keys() - self._all]

    async def _work(self, box: aviato.Sandbox, *, in_thread: bool) -> None:
        while (command := self._next()) is not None:
            try:
                if in_thread:
                    loop = asyncio.get_running_loop()
                    result = await loop.run_in_executor(
                        self._threads, lambda command=command: box.exec(command.argv, **command.options).result()
                    )
                else:
                    result = await box.exec(command.argv, **command.options)
                problem = command.check(result)
            except aviato.AviatoError as error:
                problem = f"command {command.number}: {error!r} {vars(error)}"
            if problem is not None:
                self.wrong.append(problem)
            self.done += 1

    def _next(self) -> Command | None:
        if not self._left and self.needed:
            self._left = commands(self._seed, MORE, first=len(self._all))
            self._all.update(command.number for command in self._left)
        return self._left.pop() if self._left else None

    async def _make(self) -> None:
        number = 0
        while not self.over:
            try:
                async with aviato.Sandbox(base_url=self._url, tags=["goes"]) as box:
                    content = random.Random(f"{self._seed}/{number}").randbytes(300_000)
                    await box.write_file("data", content)
                    result = await box.exec(["sh", "-c", f"echo 1 >> {COUNT}; cat {COUNT}; ls"])
                    if result.stdout != "1\ndata\nran\n":
                        self.wrong.append(f"in a sandbox of its own: {result}")
                    if await box.read_file("data") != content:
                        self.wrong.append("a file of a sandbox of its own is not what was written")
            except aviato.AviatoError as error:
                self.wrong.append(f"a sandbox of its own, {number}: {error!r} {_causes(error)} {vars(error)}")
            number += 1
            self.made += 1


def _numbers(content: bytes) -> list[int]:
    return [int(line) for line in content.split()]


def _causes(error: BaseException) -> list[Any]:
    return [repr(error.__cause__), repr(error.__context__)]
