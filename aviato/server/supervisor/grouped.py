"""Commands that are born in a control group of version 2. Standard library only.

A process that is moved waits for every processor of the machine, so they start where they belong (CLONE_INTO_CGROUP). The call
for that hides its flags from filters, and everyone inside is refused it. So this process lives without that one rule, and each
child takes it before it becomes the command.
"""

from __future__ import annotations

import ctypes
import signal
import struct
from typing import Any

from aviato.server.supervisor.births import Births, held
from aviato.server.supervisor.keeper import load

CLONE3 = 435
CLONE_INTO_CGROUP = 1 << 33

held.syscall.restype = ctypes.c_long


class Grouped(Births):
    """Starts programs in a group.

    Args:
        proc: descriptor of /proc.
        directory: descriptor of the group's.
        compiled: the rest of the filter.
    """

    def __init__(self, proc: int, directory: int, compiled: bytes) -> None:
        super().__init__(proc)
        self._arguments = struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, *[0] * 5, directory)
        self._compiled = compiled

    def start(self, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
        """See `spawn.Start`."""
        return self.fork(program, argv, environment, moves)

    def _clone(self) -> int:
        arguments = (ctypes.c_long(CLONE3), ctypes.c_char_p(self._arguments), ctypes.c_size_t(len(self._arguments)))
        return int(held.syscall(*arguments))

    def _settle(self) -> None:
        load(self._compiled)
