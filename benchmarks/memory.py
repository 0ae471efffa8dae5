"""What many live sandboxes hold: `aviato bench memory`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("memory")
