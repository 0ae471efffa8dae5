"""What the machine does to sandboxes: the process 1s of one server, and their deaths."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aviato.server.backends.local.directories import Directories
from aviato.server.state_dir import default_state_directory


def supervisors(server_pid: int) -> set[int]:
    """The process 1s of that server's sandboxes: grandchildren of the server, by its zygote process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if (entry / "cmdline").read_bytes().startswith(b"aviato-supervisor") and _parent(
                _parent(int(entry.name))
            ) == server_pid:
                found.add(int(entry.name))
        except OSError:
            pass
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def kill_the_new_supervisor(server_pid: int, before: set[int], *, works: bool = True) -> None:
    """Wait for one that was not there before, and works if it is to, and kill it: one that only begins is begun once more."""
    deadline = time.monotonic() + 60
    while not (new := {pid for pid in supervisors(server_pid) - before if not works or _has_children(pid)}):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for pid in new:
        os.kill(pid, signal.SIGKILL)


def _has_children(pid: int) -> bool:
    """Whether it has started a command: while it begins, a process of its own code maps its ids."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return any(not Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"aviato-supervisor") for child in children)
    except OSError:
        return False


def kill_process_1(places: Directories, sandbox_id: str) -> bool:
    """Kill a sandbox's process 1, if it has one."""
    pidfd = places.find(sandbox_id)
    if pidfd is None:
        return False
    with suppress(ProcessLookupError):  # Its own server has noticed that connection, and was faster.
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    return True


def kill_supervisor(sandbox_id: str) -> None:
    """Wait until that sandbox has its place, give it a moment more, and end its process 1, which nobody may look into."""
    where = [os.environ.get("AVIATO_STATE_DIR"), os.path.dirname(os.environ.get("AVIATO_BASE_URL", "").removeprefix("unix://"))]
    states = [Path(state) for state in where if state] or [Path(default_state_directory())]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.2)
        walks = (entry for state in states for entry in os.walk(state))
        for place in (Path(at, sandbox_id) for at, names, _ in walks if at.endswith("/sandboxes") and sandbox_id in names):
            # Asking who listens is a connection, by which it takes another server to have come: so there is no time between.
            # Its own server may have noticed, ended it and taken its place away before it has been asked.
            if kill_process_1(Directories(place.parent.parent), sandbox_id) or not place.exists():
                return
    raise AssertionError(f"{sandbox_id} has no supervisor")


@contextmanager
def killer(server_pid: int, every: int) -> Iterator[list[int]]:
    """Kills every so-many-th process 1 that has lived for 0.3 s: short programs that pass are spared."""
    ended = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        spared = supervisors(server_pid)
        born: dict[int, float] = {}
        seen = 0
        while not ended.wait(0.02):
            now = time.monotonic()
            for pid in supervisors(server_pid) - spared:
                if now - born.setdefault(pid, now) < 0.3:
                    continue
                spared.add(pid)
                seen += 1
                if seen % every == 0:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()
