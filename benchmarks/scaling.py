"""What one more sandbox costs as there are more: `aviato bench scaling`."""

from aviato.bench.script import main

if __name__ == "__main__":
    main("scaling")
