"""`python -m aviato` is `aviato`."""

from aviato.cli.main import main

if __name__ == "__main__":
    main()
