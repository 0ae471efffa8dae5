"""What episodes do: `aviato bench episodes`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("episodes")
