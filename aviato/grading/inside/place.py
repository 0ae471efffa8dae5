"""Runs in a grader's sandbox, as a part of `broker.py`: where the tests of one task at a time run."""

from __future__ import annotations

import os
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from aviato.grading.inside.broker import Broker, Task
    from aviato.grading.inside.connections import listen

LINK = "aviato_solution.py"


class Place:
    """Where one task at a time runs.

    Args:
        broker: whose it is.
        path: of it.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, broker: Broker, path: str) -> None:
        self.broker = broker
        self.path = path
        self.work, self.temporary = path + "/work", path + "/tmp"
        self.socket, self.inseparable = path + "/socket", path + "/inseparable"
        self.link = broker.link_source + b"\nenter(%a, %a)\n" % (self.socket, self.inseparable)
        self.task: Task | None = None
        os.mkdir(path)
        listen(broker.loop, self.socket, self.accept)
        os.mkdir(self.work)
        os.mkdir(self.temporary)
        with open(os.path.join(self.work, LINK), "wb") as file:
            file.write(self.link)
        self.made = self.looks()

    def looks(self) -> list[tuple[int, ...]]:
        """What tells whether a test has changed what is there for all."""
        folders = [os.lstat(path) for path in (self.work, self.temporary)]
        files = [os.lstat(path) for path in (self.socket, os.path.join(self.work, LINK))]
        return [
            *((found.st_ino, found.st_mode, found.st_uid) for found in folders),
            *((found.st_ino, found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns) for found in files),
        ]

    def accept(self, sock: socket.socket) -> None:
        if self.task is None:
            sock.close()
        else:
            self.task.connections.accept(sock)

    def clean(self) -> None:
        """Remove what a task has left, and have it for another; one that is not as it was is not used again."""
        self.task = None
        try:
            for folder in (self.work, self.temporary):
                for name in os.listdir(folder):
                    if name != LINK or folder != self.work:
                        remove(os.path.join(folder, name))
            if os.path.lexists(self.inseparable):
                remove(self.inseparable)
            if self.looks() == self.made:
                self.broker.places.append(self)
        except OSError:
            pass


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        shutil.rmtree(path)
