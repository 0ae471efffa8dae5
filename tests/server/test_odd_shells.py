"""`aviato serve` from shells that left something behind."""

from __future__ import annotations

import sys

import pytest

from aviato import Sandbox
from tests.conftest import make_state_dir, remove, start_server

DEAF = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "SIGCHLD blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])",
    "as by nohup": "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
}


@pytest.mark.parametrize("kind", DEAF)
def test_it_hears_of_its_children(kind):
    state = make_state_dir()
    source = f"import os, signal, sys; {DEAF[kind]}; os.execv(sys.argv[1], sys.argv[1:])"
    server = start_server(state, before=[sys.executable, "-c", source])
    try:
        with open(f"/proc/{server.pid}/status") as file:
            ignored = next(int(line.split()[1], 16) for line in file if line.startswith("SigIgn:"))
        assert bool(ignored & 1) == (kind == "as by nohup")
        for _ in range(2):
            with Sandbox(base_url=server.url) as sandbox:
                assert sandbox.exec(["sh", "-c", "true & wait; exit 3"]).result().returncode == 3
    finally:
        server.stop()
        remove(state)
