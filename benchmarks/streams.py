"""Streams and waiting: `aviato bench streams`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("streams")
