"""Many sandboxes at once: `aviato bench concurrency`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("concurrency")
