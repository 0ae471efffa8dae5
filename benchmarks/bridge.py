"""Blocking calls beside plain coroutines: `aviato bench bridge`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("bridge")
