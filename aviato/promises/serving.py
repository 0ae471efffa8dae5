"""Servers that carry sandboxes by the backend that is looked at: started, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
STOP_SECONDS = 30.0
SECRET = ("PROMISES", "a value that nobody guesses")
"""Name and value of what every server of the suite has for sandboxes."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a server is come by.

    Attributes:
        backend: NAME or MODULE:CLASS.
        base_url: of a server that runs; then none is started.
        variables: for servers, beside this process's own, such as `AVIATO_DEFAULT_IMAGE`.
        command: what `aviato` is called by.
        prepare: does something to a server's state directory before it is started.
    """

    backend: str | None = None
    base_url: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = (sys.executable, "-m", "aviato")
    prepare: Callable[[Path], None] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Of a server's process."""
        own = {"AVIATO_BACKEND": self.backend or "local", f"AVIATO_SECRET_{SECRET[0]}": SECRET[1]}
        return {**os.environ, **self.variables, **own}


class Server:
    """One server: of the suite's own, or one that ran before it.

    Attributes:
        url: by which clients ask it.
        is_own: whether it can be killed and started again.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.is_own = serving.base_url is None
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path("/nowhere")
        self.url = serving.base_url or ""
        if self.is_own:
            # Short, since sockets lie in it, and open for ids of sandboxes to pass through.
            self._directory = Path(tempfile.mkdtemp(prefix="aviato-promises-", dir="/tmp"))
            self._directory.chmod(0o711)
            self.url = f"unix://{self._directory}/sock"
            (self._directory / "state").mkdir(mode=0o711)
            if serving.prepare is not None:
                serving.prepare(self._directory / "state")
            self.start()

    def start(self) -> None:
        """Start it, on what an earlier one has left."""
        places = ["--state-dir", f"{self._directory}/state", "--socket", f"{self._directory}/sock"]
        command = [*self._serving.command, "serve", *places]
        with open(self._directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._serving.environment
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"the server did not start:\n{self.log()}")
            time.sleep(0.02)

    def stop(self, sig: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT takes its sandboxes along, SIGTERM hands them over to the next one, SIGKILL says nothing."""
        if self._process is None:
            return
        self._process.send_signal(sig)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def log(self) -> str:
        """What it has said."""
        return (self._directory / "log").read_text(errors="replace")

    def places(self) -> list[str]:
        """What its backend says of the places there are, by a backend of another process. Only once it has ended."""
        assert self._process is None
        variables = {**self._serving.environment, "AVIATO_STATE_DIR": f"{self._directory}/state"}
        program = [sys.executable, "-m", f"{__package__}.places"]
        done = subprocess.run(program, env=variables, capture_output=True, text=True, check=False, timeout=START_SECONDS)
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout.splitlines()[-1])
        return found

    def health(self) -> dict[str, Any]:
        """What it says of itself."""
        return asyncio.run(_health(self.url))

    def close(self) -> None:
        """End it, and remove what it had, if it is the suite's own."""
        self.stop()
        if self.is_own:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(f"{self._directory}/sock")
            return True
        return False


async def _health(base_url: str) -> dict[str, Any]:
    from aviato.transport.http import HttpTransport
    from aviato.transport.resolution import choose

    transport = HttpTransport(choose(base_url, None), request_timeout_seconds=START_SECONDS)
    answer: dict[str, Any] = json.loads(await transport.request("GET", "/v1/health"))
    return answer
