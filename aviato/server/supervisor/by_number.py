"""Who may change the limits, priority and processors of whom, where there are no namespaces. Standard library only.

The kernel looks at uids alone, and all processes of the server's user have the sandbox's. Programs name themselves and their
threads by number, too (`pthread_setaffinity_np`, OpenMP, `renice $$`), and no filter can know those. So the filter has the
kernel ask the supervisor, which lets a call go on whose number is in the sandbox. The caller waits meanwhile, so that his own
number means him. The supervisor must not make such a call itself: nobody would answer it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from aviato.grading.inside.loop import READ

if TYPE_CHECKING:
    from collections.abc import Container

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.lineage import Lineage

QUESTION = struct.Struct("=QIIiIQ6Q")
"""An id, a thread, flags; of the call its number, the architecture, where it was made, and its arguments."""
ANSWER = struct.Struct("=QqiI")
RECEIVE, SEND = 0xC0502100, 0xC0182101
GO_ON = 1
LOW = 0xFFFFFFFF
GONE = (errno.ENOENT, errno.EINTR)
"""Who asked was killed, or has a signal to handle first."""


class ByNumber:
    """Answers for one sandbox.

    Args:
        loop: of the supervisor.
        proc: descriptor of /proc.
        asked: descriptor that the filter came with.
        second: the calls whose second argument is the number of a process; of all others it is the first.
        lineage: who is in the sandbox.
    """

    def __init__(self, loop: Loop, proc: int, asked: int, second: Container[int], lineage: Lineage) -> None:
        self._proc = proc
        self._asked = asked
        self._lineage = lineage
        self._second = second
        loop.watch(asked, READ, self._answer)

    def _answer(self, events: int) -> None:
        question = bytearray(QUESTION.size)
        try:
            fcntl.ioctl(self._asked, RECEIVE, question)
            identity, caller, _, call, _, _, first, second, *_ = QUESTION.unpack(question)
            number = self._decide(caller, (second if call in self._second else first) & LOW)
            answer = ANSWER.pack(identity, 0, -number, 0 if number else GO_ON)
            fcntl.ioctl(self._asked, SEND, answer)
        except OSError as error:
            if error.errno not in GONE:
                raise

    def _decide(self, caller: int, number: int) -> int:
        """The error that it gets, or 0."""
        if number in (0, caller) or self._is_there(f"{caller}/task/{number}"):
            return 0
        try:
            if self._lineage.has(self._proc, number):
                return 0
        except OSError:
            return errno.EPERM
        return errno.EPERM if self._is_there(str(number)) else errno.ESRCH

    def _is_there(self, path: str) -> bool:
        return os.access(path, os.F_OK, dir_fd=self._proc)
