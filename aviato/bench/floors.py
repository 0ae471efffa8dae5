"""The floors: what the kernel charges for the same work, timed in a bare interpreter of its own.

Run by the benchmarks as `python -I -S floors.py`. It reads one JSON object a line and answers with the seconds that it took:
`argv` is run by `subprocess.run(argv, stdin=DEVNULL)`; with `count` and `at_once` so many times, so many at once, in threads
that collect what each printed; with `stays` until its first line, and it lives on until this program's input ends. `hop` is a
coroutine that does nothing, run on the loop of another thread. Nothing of aviato is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time


def once(argv: list[str]) -> float:
    """One run."""
    begin = time.perf_counter()
    completed = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
    elapsed = time.perf_counter() - begin
    if completed.returncode:
        sys.exit(f"{argv} exited with {completed.returncode}")
    return elapsed


def many(argv: list[str], count: int, at_once: int) -> float:
    """So many runs, so many at once."""
    failed: list[subprocess.CompletedProcess[bytes]] = []
    turns = iter(range(count))
    lock = threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                if next(turns, None) is None:
                    return
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode or not done.stdout:
                failed.append(done)

    threads = [threading.Thread(target=worker) for _ in range(at_once)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    if failed:
        sys.exit(f"{argv} exited with {failed[0].returncode}: {failed[0].stderr!r}")
    return elapsed


class Staying:
    """Programs that live until the end. All have one pipe as their input: this process holds no more for each further one."""

    def __init__(self) -> None:
        self._input, self._end = os.pipe()
        self._live: list[subprocess.Popen[bytes]] = []

    def __call__(self, argv: list[str]) -> float:
        """One more, to its first line."""
        begin = time.perf_counter()
        process = subprocess.Popen(argv, stdin=self._input, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if not process.stdout.readline():
            sys.exit(f"{argv} exited with {process.wait()}")
        elapsed = time.perf_counter() - begin
        process.stdout.close()
        self._live.append(process)
        return elapsed

    def end(self) -> None:
        """Let them end."""
        os.close(self._end)
        for process in self._live:
            process.wait()


class Hop:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        import asyncio

        self._asyncio = asyncio
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _nothing(self) -> None:
        pass

    def __call__(self) -> float:
        """There and back."""
        begin = time.perf_counter()
        self._asyncio.run_coroutine_threadsafe(self._nothing(), self._loop).result()
        return time.perf_counter() - begin


def main() -> None:
    """Time what each line of standard input asks for."""
    hop: Hop | None = None
    staying = Staying()
    for line in sys.stdin:
        asked = json.loads(line)
        if "hop" in asked:
            hop = hop or Hop()
            seconds = hop()
        elif "stays" in asked:
            seconds = staying(asked["argv"])
        else:
            seconds = many(**asked) if "count" in asked else once(**asked)
        print(seconds, flush=True)
    staying.end()


if __name__ == "__main__":
    main()
