"""Files and trees in and out: `aviato bench files`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("files")
