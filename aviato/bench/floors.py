"""The floors: what the kernel charges for the same work, timed in a bare interpreter of its own.

Run by the benchmarks as `python -I -S floors.py`. It reads one JSON object a line and answers with the seconds that it took:
`argv` is run by `subprocess.run(argv, stdin=DEVNULL)`; with `count` and `at_once` so many times, so many at once, in threads
that collect what each printed. Nothing of aviato is imported here.
"""

from __future__ import annotations

import json
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


def main() -> None:
    """Time what each line of standard input asks for."""
    for line in sys.stdin:
        asked = json.loads(line)
        print(many(**asked) if "count" in asked else once(**asked), flush=True)


if __name__ == "__main__":
    main()
