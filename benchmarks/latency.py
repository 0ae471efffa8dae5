"""How long a sandbox and a command take: `aviato bench latency`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("latency")
