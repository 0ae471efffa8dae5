"""Executes the steps of a plan without namespaces, in the child that becomes a supervisor. Standard library only."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from aviato.server.backends.landlock import calls
from aviato.server.backends.local import syscalls as sys
from aviato.server.backends.local.confine import Confinement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.backends.local.kernel import Kernel

NOTHING_CAPABLE = 0


class Restriction(Confinement):
    """One child on its way to being confined where it is. What is not here is as in the local backend.

    Args:
        kernel: asked for all else.
        compiled: the filter of system calls.
    """

    def __init__(self, kernel: Kernel, compiled: bytes) -> None:
        super().__init__(kernel)
        self._compiled = compiled
        self._ruleset = -1

    def _do_session(self) -> None:
        os.setsid()

    def _do_rules(self, version: int, access: Iterable[tuple[str, int]]) -> None:
        self._ruleset = calls.make_ruleset(version)
        for path, rights in access:
            try:
                directory = stat.S_ISDIR(os.stat(path).st_mode)
            except OSError:
                continue
            # A right that a path cannot have is an error; one that is left with none, too.
            fitting = rights if directory else rights & calls.OF_A_FILE
            if fitting:
                calls.allow(self._ruleset, path, fitting)

    def _do_rule_of_directory(self, path: str, device: int, inode: int, rights: int) -> None:
        calls.allow_opened(self._ruleset, os.open(self._kernel.path_of_directory(path, device, inode), os.O_PATH), rights)

    def _do_offer(self, badness: int) -> None:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, str(min(1000, int(os.pread(fd, 32, 0)) + badness)).encode(), 0)
        finally:
            os.close(fd)

    def _do_ids(self, uid: int, gid: int) -> None:
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    def _do_keep_layer(self, path: str) -> None:
        os.chmod(path, 0o700)
        self._kernel.keep("layer", self._kernel.open(path, os.O_PATH | os.O_DIRECTORY))
        # What could be asked of sockets would be all of the machine's.
        self._kernel.keep("sockets", self._kernel.open("/dev/null", os.O_RDONLY))

    def _do_settle(self, umask: int) -> None:
        sys.prctl(sys.PR_SET_CHILD_SUBREAPER, 1)
        if os.geteuid() == 0:
            sys.set_capabilities(NOTHING_CAPABLE, NOTHING_CAPABLE)
        super()._do_settle(umask)

    def _do_asking_filter(self, families: Iterable[str]) -> None:
        self._kernel.keep("asked", sys.load_filter(self._compiled, listening=True))

    def _do_restrict(self) -> None:
        calls.restrict(self._ruleset)
        os.close(self._ruleset)
        os.chdir("/")
