"""`aviato sh` inside a real terminal program."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato

AVIATO = [sys.executable, "-m", "aviato"]

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """One window with a shell of the machine's; keys go in, the screen comes out."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._socket = str(directory / "tmux")
        self._environment = environment
        shell = "env PS1='local> ' sh"
        self("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", shell)
        self("set-option", "-g", "window-size", "manual")
        self.until("local>")

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True, timeout=250).stdout

    def screen(self) -> str:
        return self("capture-pane", "-p")

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    def line(self, text: str) -> None:
        self("send-keys", "-l", text)
        self("send-keys", "Enter")

    def until(self, text: str, seconds: float = 15) -> str:
        return self.wait_for(lambda screen: text in screen, text, seconds)

    def wait_for(self, found: Any, what: str, seconds: float = 15) -> str:
        deadline = time.monotonic() + seconds
        while not found(screen := self.screen()):
            assert time.monotonic() < deadline, f"no {what!r} on the screen:\n{screen}"
            time.sleep(0.03)
        return screen

    def press(self, key: str, found: Any) -> None:
        """Press a key until the screen is as it should be, as people do: a shell may miss one."""
        for _ in range(20):
            self.type(key)
            deadline = time.monotonic() + 0.7
            while time.monotonic() < deadline:
                if found(self.screen()):
                    return
                time.sleep(0.03)
        raise AssertionError(self.screen())

    def settings(self) -> str:
        """Of the local terminal."""
        tty = self("display-message", "-p", "#{pane_tty}").strip()
        return subprocess.run(["stty", "-a", "-F", tty], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tmux(server: Any, tmp_path: Path) -> Iterator[Tmux]:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    environment.pop("TMUX", None)
    window = Tmux(tmp_path, environment)
    yield window
    window("kill-server")


def start(tmux: Tmux, *arguments: str) -> None:
    """`aviato sh`, up to the prompt of its shell."""
    tmux.line(shlex.join([*AVIATO, "sh", "-e", "PS1=inside> ", *arguments]) + "; echo status $?")
    tmux.wait_for(lambda screen: screen.rstrip().endswith("inside>"), "the prompt")


NORC = ("--", "bash", "--norc")


def test_a_shell_as_one_uses_it(tmux: Tmux, server: Any) -> None:
    before = tmux.settings()
    start(tmux, "--tag", "sh-test", *NORC)
    tmux.line("stty size")
    tmux.until("30 100")
    tmux("resize-window", "-x", "90", "-y", "25")
    tmux.line("clear; stty size")
    tmux.until("25 90")
    tmux.line("sh -c 'echo asleep; exec sleep 1000'")
    tmux.until("\nasleep\n")
    tmux.type("C-c")
    tmux.until("^C")
    tmux.line("echo code $?")
    tmux.until("code 130")
    tmux.line("clear; sh -c 'echo again; exec sleep 500'")
    tmux.wait_for(lambda screen: screen.startswith("again\n"), "the second sleep")
    tmux.type("C-z")
    tmux.until("Stopped")
    tmux.line("fg")
    tmux.wait_for(lambda screen: screen.count("exec sleep 500") == 2, "the job's command, which fg shows")
    tmux.press("C-c", lambda screen: screen.rstrip().endswith("^C\ninside>"))
    tmux.line("clear; seq 1000 | less")
    full = tmux.wait_for(lambda screen: screen.startswith("1\n2\n3\n") and screen.rstrip().endswith(":"), "less")
    assert len(full.rstrip("\n").split("\n")) == 25
    tmux.type("Space")
    tmux.until("\n48\n")
    tmux.type("q")
    tmux.line("clear; echo ünï; exit 3")
    tmux.until("ünï")
    tmux.until("status 3")
    assert tmux.settings().replace("rows 25; columns 90", "rows 30; columns 100") == before
    tmux.line("echo sane")
    tmux.until("\nsane\n")
    assert aviato.Sandbox.list(tags=["sh-test"], base_url=server.url).result() == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(tmux: Tmux, server: Any, sent: signal.Signals) -> None:
    before = tmux.settings()
    start(tmux, "--tag", "sh-signal", *NORC)
    assert tmux.settings() != before
    tty = tmux("display-message", "-p", "#{pane_tty}").strip().removeprefix("/dev/")
    listed = subprocess.run(["ps", "-t", tty, "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    [pid] = [int(line.split()[0]) for line in listed.splitlines() if "-m aviato" in line]
    os.kill(pid, sent)
    tmux.until(f"status {128 + sent}")
    assert tmux.settings() == before
    assert aviato.Sandbox.list(tags=["sh-signal"], base_url=server.url).result() == []


def test_a_sandbox_that_exists_lives_on_and_there_is_a_way_out(tmux: Tmux, server: Any) -> None:
    with aviato.Sandbox(base_url=server.url) as sandbox:
        start(tmux, sandbox.sandbox_id, *NORC)
        tmux.line("touch /tmp/left; trap '' INT; while :; do sleep 1; done")
        deadline = time.monotonic() + 60
        while sandbox.exec(["test", "-e", "/tmp/left"]).result().returncode and time.monotonic() < deadline:
            pass
        tmux.type("Enter")
        tmux("send-keys", "-l", "~.")
        tmux.until("status 130")
        assert sandbox.exec(["pgrep", "bash"]).result().returncode == 1


def test_the_end_of_the_sandbox_is_said(tmux: Tmux, server: Any) -> None:
    before = tmux.settings()
    with aviato.Sandbox(base_url=server.url) as sandbox:
        start(tmux, sandbox.sandbox_id, *NORC)
    tmux.until("status 125")
    assert "stopped" in tmux.screen()
    assert tmux.settings() == before


def test_it_needs_a_terminal(server: Any) -> None:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    done = subprocess.run([*AVIATO, "sh"], env=environment, input=b"exit\n", capture_output=True, timeout=250, check=False)
    assert done.returncode == 125
    assert b"needs a terminal" in done.stderr and b"exec -i" in done.stderr
