"""Batches of fresh sandboxes: `aviato bench throughput`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("throughput")
