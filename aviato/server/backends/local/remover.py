"""Takes trees away as root of an ordinary user's sandboxes. Standard library only; started by path, see `subordinate.remove`.

Arguments: the number of a socket to the server, a directory, and names in it. It prints those that are gone, each with a zero
byte behind it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import bare  # type: ignore[import-not-found]

    del sys.path[0]
    bare.enter_profile()
    bare.packages(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4)))

import contextlib
import socket

from aviato.server.backends.local import subordinate
from aviato.trees.removal import remove_tree


def main(asked: int, directory: str, names: list[str]) -> None:
    """All of them."""
    subordinate.take(socket.socket(fileno=asked))
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                for _ in remove_tree(parent, name):
                    pass
            os.write(1, os.fsencode(name) + b"\0")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != bare.ENTERED]
    main(int(words[0]), words[1], words[2:])
