"""The floors: what the kernel charges for the same work, timed in a bare interpreter of its own.

Run by the other benchmarks as `python -I -S floors.py`: it reads one JSON argv a line and answers with the seconds that
`subprocess.run(argv, stdin=DEVNULL)` took. Nothing of aviato is imported here.
"""

import json
import subprocess
import sys
import time


def main() -> None:
    """Time each argv read from standard input."""
    for line in sys.stdin:
        argv = json.loads(line)
        begin = time.perf_counter()
        completed = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
        elapsed = time.perf_counter() - begin
        if completed.returncode:
            sys.exit(f"{argv} exited with {completed.returncode}")
        print(elapsed, flush=True)


if __name__ == "__main__":
    main()
