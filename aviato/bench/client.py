"""`python -m aviato.bench.client`: a client process. It makes sandboxes as each line of its input asks, and holds them.

A line is JSON: `count`, `arrival`, `style`, `every_seconds`. The answer is a line with the seconds to each sandbox's first
result, its errors, and what this process used. The next line, whatever it is, has all of them stopped, and the answer is how
long that took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import aviato
from aviato.bench.use import watch_lag
from aviato.exceptions import AviatoError

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = ["/bin/echo", "here"]
SEQUENTIAL, STAGGERED, BURST = "sequential", "staggered", "burst"
THREADS, ASYNC = "threads", "async"


class Level:
    """Some sandboxes that are made in one way and then live at once."""

    def __init__(self, count: int, arrival: str, every_seconds: float) -> None:
        self.count = count
        self.arrival = arrival
        self.every_seconds = every_seconds
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self.begin = time.perf_counter()

    def due(self, index: int) -> float:
        """In how many seconds a sandbox has to be asked for; the n-th of those that are staggered has its own time."""
        if self.arrival != STAGGERED:
            return 0.0
        return max(0.0, self.begin + index * self.every_seconds - time.perf_counter())

    def note(self, begin: float, result: aviato.ProcessResult) -> None:
        """A first result came."""
        if result.stdout == "here\n":
            self.seconds.append(time.perf_counter() - begin)
        else:
            self.errors.append(f"printed {result.stdout!r}, returncode {result.returncode}")

    def failed(self, error: AviatoError) -> None:
        """One did not come to it."""
        self.errors.append(f"{type(error).__name__}: {error}")


def by_threads(level: Level) -> Callable[[], None]:
    """A thread a sandbox, blocking calls; stops them when it is called."""
    made = [aviato.Sandbox() for _ in range(level.count)]

    def one(index: int) -> None:
        time.sleep(level.due(index))
        begin = time.perf_counter()
        try:
            level.note(begin, made[index].exec(COMMAND).result())
        except AviatoError as error:
            level.failed(error)

    if level.arrival == SEQUENTIAL:
        for index in range(level.count):
            one(index)
    else:
        each(level.count, one)

    def stop() -> None:
        each(level.count, lambda index: made[index].stop(0, missing_ok=True).result())

    return stop


def each(count: int, action: Callable[[int], None]) -> None:
    """In a thread each, all at once."""
    threads = [threading.Thread(target=action, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def by_coroutines(level: Level, client: aviato.AsyncClient) -> list[Any]:
    """Coroutines on one loop; the sandboxes that came to be."""
    made: list[Any] = []

    async def one(index: int) -> None:
        await asyncio.sleep(level.due(index))
        begin = time.perf_counter()
        try:
            sandbox = await client.sandbox()
            made.append(sandbox)
            level.note(begin, await sandbox.exec(COMMAND))
        except AviatoError as error:
            level.failed(error)

    if level.arrival == SEQUENTIAL:
        for index in range(level.count):
            await one(index)
    else:
        await asyncio.gather(*(one(index) for index in range(level.count)))
    return made


def serve() -> None:
    """Answer the lines of standard input."""
    from aviato.bridge.loop import loop_thread

    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        client = aviato.AsyncClient()
        runner.run(client.__aenter__())
        stack.callback(lambda: runner.run(client.__aexit__(None, None, None)))
        print("ready", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            level, lag, cpu = (
                Level(asked["count"], asked["arrival"], asked["every_seconds"]),
                list[float](),
                time.process_time(),
            )
            if asked["style"] == THREADS:
                watching = asyncio.run_coroutine_threadsafe(watch_lag(lag), loop_thread().loop)
                stop = by_threads(level)
                watching.cancel()
            else:
                stop = runner.run(_on_loop(level, client, lag, runner))
            tell(level, lag, time.process_time() - cpu)
            if not sys.stdin.readline():
                return
            begin = time.perf_counter()
            stop()
            print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


async def _on_loop(level: Level, client: aviato.AsyncClient, lag: list[float], runner: asyncio.Runner) -> Callable[[], None]:
    watching = asyncio.create_task(watch_lag(lag))
    made = await by_coroutines(level, client)
    watching.cancel()

    async def stop_all() -> None:
        await asyncio.gather(*(sandbox.stop(0, missing_ok=True) for sandbox in made))

    return lambda: runner.run(stop_all())


def tell(level: Level, lag: list[float], cpu_seconds: float) -> None:
    """Answer what became of it."""
    wall = time.perf_counter() - level.begin
    answer = {"seconds": level.seconds, "errors": level.errors, "wall": wall, "cpu": cpu_seconds, "lag": lag}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
