"""Whom attacks from a sandbox without namespaces would hit."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager


def subreaper_of(inside, name):
    """The subreaper of a command, which is its parent."""
    deadline = time.monotonic() + 60
    while not (found := inside.named(name)):
        assert time.monotonic() < deadline
    with open(f"/proc/{found[0]}/stat") as file:
        return int(file.read().rpartition(") ")[2].split()[1])


@contextmanager
def neighbour(backend, box, *command):
    """A process of the machine that has the uid of a sandbox: by uid it could be looked into and signalled."""
    uid = backend._held[box.id].uid
    ids = {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}
    process = subprocess.Popen(command or ["/bin/cat"], stdin=subprocess.PIPE, env={"SECRET": "x"}, cwd="/", **ids)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
