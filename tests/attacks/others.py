"""What another user of the machine can do below a directory of a server's, tried in a process of his for every path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

NOBODY = 65534
REACH = r"""
import json, os, socket, stat, sys
paths = json.load(sys.stdin)
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
def succeeds(attempt, *arguments):
    try: found = attempt(*arguments)
    except OSError: return False
    if isinstance(found, int) and found >= 0 and not isinstance(found, bool): os.close(found)
    return found is not False
def connect(path):
    directory, name = os.path.split(path)
    os.chdir(directory)  # A path may be too long for a socket.
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            try: return sock.connect(name)
            except OSError as error: last = error
    raise last
def make(path):
    made = os.path.join(path, "made-by-another")
    os.close(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    os.unlink(made)
def attempts(path, kind):
    yield "see", lambda: os.lstat(path) and None
    if kind == "directory":
        yield "list", lambda: os.listdir(path) and None
        yield "make", lambda: make(path)
        yield "enter", lambda: os.chdir(path)
    elif kind == "socket":
        yield "connect", lambda: connect(path)
    elif kind == "file":
        yield "read", lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        yield "write", lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        yield "run", lambda: os.access(path, os.X_OK)
print(json.dumps({path: done for path, kind in paths.items() if (done := [n for n, a in attempts(path, kind) if succeeds(a)])}))
"""


def all_paths(top: str) -> dict[str, str]:
    """Every path below a directory and itself, with what it is."""
    found = {top: "directory"}
    for directory, folders, files in os.walk(top):
        found |= {os.path.join(directory, name): "directory" for name in folders}
        for name in files:
            path = Path(directory, name)
            found[str(path)] = "link" if path.is_symlink() else "socket" if path.is_socket() else "file"
    return {path: "link" if os.path.islink(path) else kind for path, kind in found.items()}


def reached(top: str, uid: int = NOBODY) -> dict[str, list[str]]:
    """What a user can do below a directory, by path; those are left out of which he can see nothing."""
    argv = [sys.executable, "-I", "-c", REACH, str(uid)]
    done = subprocess.run(argv, input=json.dumps(all_paths(top)), capture_output=True, text=True, check=True, timeout=250)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found
