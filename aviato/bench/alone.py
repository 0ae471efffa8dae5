"""`python -m aviato.bench.alone DIRECTORY MODE COMMAND…`: sandboxes that `aviato-init` makes, without a server and a client.

Requests of `DIRECTORY/plans` (see `plans.py`) go to a zygote of its own. Their process 1 is configured and asked for the
command in one message, as soon as the request has left; its EXIT is the end of what is measured. Each line of input asks for
one measurement, answered by its seconds, its processor time, and the machine's user and system time meanwhile:

* `once`: one sandbox, until its command has ended; that it is ended and removed then is in the processor time alone.
* `stay`: one more sandbox, which stays until the end of input.
* `again`: one more command in a sandbox that stays.
* `256x4`: so many, so many at once, each ended and removed.
"""

from __future__ import annotations

import array
import json
import os
import re
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import requests, subordinate, zygote
from aviato.server.backends.local.directories import Directories
from aviato.wire.frames import FrameDecoder, FrameType, encode
from aviato.wire.ids import new_exec_id

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

CONFIGURATION = {
    "op": "configure",
    "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
    "working_dir": "/workspace",
    "nice": 0,
    "limits": {},
    "orphan_timeout_seconds": 300.0,
    "max_lifetime_seconds": None,
    "idle_timeout_seconds": None,
}
PATIENCE_SECONDS = 30.0
LARGEST_ANSWER = 16 << 10
CHANNEL = 1
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass
class Sandbox:
    """One that lives.

    Attributes:
        request: it was made by.
        link: to its process 1.
        pidfd: of that.
    """

    request: dict[str, Any]
    link: socket.socket
    pidfd: int

    @property
    def id(self) -> str:
        """Its id."""
        return os.path.basename(str(self.request["place"]))


class Alone:
    """A zygote, and what it makes."""

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        self._directories = Directories(directory)
        self._directories.ranges = subordinate.find() if os.geteuid() != 0 else None
        self._process: subprocess.Popen[bytes]
        self._process, self._control, ids = zygote.spawn(self._directories.ranges)
        self._control.setblocking(True)
        self._control.settimeout(PATIENCE_SECONDS)
        if ids == 1:
            self._directories.ranges = None
        self._command = list(command)
        self._number = 0

    def make(self, request: dict[str, Any]) -> Sandbox:
        """One, whose command is on its way."""
        ours, theirs = socket.socketpair()
        self._number += 1
        with theirs:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))
            self._control.sendmsg([requests.message(request, self._number, content=False)], [rights])
        with suppress(BrokenPipeError):  # What it could not do is read all the same.
            ours.sendall(encode(FrameType.REQUEST, json.dumps(CONFIGURATION).encode()) + self._asked())
        data, fds, _, _ = socket.recv_fds(self._control, LARGEST_ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
        if not fds:
            raise OSError(json.loads(data or b"{}").get("error", "the zygote has ended"))
        ours.settimeout(PATIENCE_SECONDS)
        return Sandbox(request, ours, fds[0])

    def again(self, sandbox: Sandbox) -> None:
        """Ask for one more command, and wait for its end."""
        sandbox.link.sendall(self._asked())
        self.wait(sandbox)

    def wait(self, sandbox: Sandbox) -> None:
        """Until the command has ended.

        Raises:
            OSError: it, or its sandbox, failed.
        """
        decoder, said = FrameDecoder(), b""
        while data := sandbox.link.recv(1 << 16):
            for frame in decoder.feed(data):
                if frame.type == FrameType.DATA:
                    said += frame.payload
                elif frame.type == FrameType.EXIT and json.loads(frame.payload)["returncode"] == 0:
                    return
                elif frame.type in (FrameType.EXIT, FrameType.ERROR, FrameType.ENDED):
                    raise OSError(f"its command, failed: {frame.payload.decode()} {said.decode(errors='replace')}")
        raise OSError("its process 1 has ended")

    def end(self, sandbox: Sandbox) -> None:
        """Kill it, and take its place away once it is dead."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(sandbox.pidfd, signal.SIGKILL)
        death = select.poll()
        death.register(sandbox.pidfd, select.POLLIN)
        death.poll(PATIENCE_SECONDS * 1000)
        os.close(sandbox.pidfd)
        sandbox.link.close()
        self._directories.remove(sandbox.id, grouped=False)

    def many(self, wanted: Sequence[dict[str, Any]], items: int, at_once: int) -> None:
        """So many, so many at once."""
        poll, living = select.poll(), dict[int, Sandbox]()

        def begin(request: dict[str, Any]) -> None:
            sandbox = self.make(request)
            living[sandbox.link.fileno()] = sandbox
            poll.register(sandbox.link, select.POLLIN)

        for request in wanted[: min(items, at_once)]:
            begin(request)
        left = items - len(living)
        while living:
            for fd, _ in poll.poll(PATIENCE_SECONDS * 1000):
                sandbox = living.pop(fd)
                poll.unregister(fd)
                self.wait(sandbox)
                self.end(sandbox)
                if left:
                    left -= 1
                    begin(sandbox.request)

    def close(self) -> None:
        """Let the zygote end."""
        self._control.close()
        self._process.wait()

    def processor_seconds(self) -> float:
        """Of this process, the zygote and all that is over of its sandboxes."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            ticks = sum(map(int, file.read().rpartition(") ")[2].split()[11:15]))
        return time.process_time() + ticks * TICK_SECONDS

    def _asked(self) -> bytes:
        spec: dict[str, Any] = {"exec_id": new_exec_id(), "command": self._command, "environment": {}, "working_dir": None}
        spec |= {"stdin": False, "timeout_seconds": None, "main": False}
        asked = {"op": "exec", "exec_id": spec["exec_id"], "stdout": 0, "stderr": 0, "together": True, "spec": spec}
        return encode(FrameType.REQUEST, json.dumps(asked).encode(), channel=CHANNEL)


def machine_seconds() -> tuple[float, float]:
    """In user mode and in the kernel, by ticks, of the whole machine."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice) * TICK_SECONDS, (system + irq + softirq) * TICK_SECONDS


def main(directory: Path, mode: str, command: Sequence[str]) -> None:
    """Answer until the end of input."""
    wanted = [
        {name: value for part in line.split(b"\0") for name, value in json.loads(part).items()}
        for line in (directory / "plans").read_bytes().splitlines()
    ]
    alone = Alone(directory, command)
    try:
        answer(alone, wanted, mode)
    finally:
        alone.close()


def answer(alone: Alone, wanted: list[dict[str, Any]], mode: str) -> None:
    """A line for each line."""
    unused, staying = iter(wanted), list[Sandbox]()
    batch = re.fullmatch(r"(\d+)x(\d+)", mode)
    try:
        if mode == "again":
            staying.append(alone.make(wanted[-1]))  # Others that stay beside it have the first.
            alone.wait(staying[0])
        for _ in sys.stdin:
            spent, before = alone.processor_seconds(), machine_seconds()
            begin = time.perf_counter()
            if batch:
                alone.many(wanted, *map(int, batch.groups()))
                seconds = time.perf_counter() - begin
            elif mode == "again":
                alone.again(staying[0])
                seconds = time.perf_counter() - begin
            else:
                request = next(unused, None) if mode == "stay" else wanted[0]
                if request is None:
                    raise OSError("has no more plans")
                staying.append(alone.make(request))
                alone.wait(staying[-1])
                seconds = time.perf_counter() - begin
                if mode == "once":
                    alone.end(staying.pop())
            after = machine_seconds()
            each = (alone.processor_seconds() - spent, after[0] - before[0], after[1] - before[1])
            print(f"{seconds:.9f}", *(f"{value:.6f}" for value in each), flush=True)
    finally:
        for sandbox in staying:
            alone.end(sandbox)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except OSError as error:
        sys.exit(str(error))
