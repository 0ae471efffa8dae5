"""The embedded server: one for all who ask, born free, and gone when idle. In interpreters of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import embedded_pids, in_interpreter

HELLO = 'import aviato; print(aviato.Sandbox().exec(["echo", "hi"]).result().stdout, end="")'


def run(source: str, state: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return in_interpreter(source, timeout=250, **{"AVIATO_STATE_DIR": str(state), **environment})


def test_nothing_is_needed_and_nobody_waits_for_it(state: Path) -> None:
    begin = time.monotonic()
    done = run(HELLO, state)
    assert (done.stdout, done.stderr) == ("hi\n", "")
    assert time.monotonic() - begin < 6
    [pid] = embedded_pids(state)
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert run(HELLO, state).stdout == "hi\n"
    assert embedded_pids(state) == [pid]


def test_eight_at_once_give_one_server(state: Path) -> None:
    environment = {**os.environ, "AVIATO_STATE_DIR": str(state)}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", HELLO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(8)
    ]
    answers = [client.communicate(timeout=250) for client in clients]
    assert answers == [("hi\n", "")] * 8
    assert len(embedded_pids(state)) == 1


def test_it_gets_no_key_and_only_what_it_needs(state: Path) -> None:
    assert run(HELLO, state, AVIATO_API_KEY="a-key", SECRET_OF_MINE="x", WANDB_API_KEY="y").stdout == "hi\n"
    [pid] = embedded_pids(state)
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"a-key" not in environment
    assert b"SECRET_OF_MINE" not in environment
    assert b"WANDB" not in environment


def test_other_settings_mean_another_server(state: Path) -> None:
    assert run(HELLO, state).stdout == "hi\n"
    assert run(HELLO, state, AVIATO_MAX_SANDBOXES="3").stdout == "hi\n"
    assert len(embedded_pids(state)) == 2


def test_it_leaves_when_idle_and_comes_again(state: Path) -> None:
    assert run(HELLO, state, AVIATO_IDLE_EXIT="0.5").stdout == "hi\n"
    [pid] = embedded_pids(state)
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert embedded_pids(state) == []
    assert run(HELLO, state, AVIATO_IDLE_EXIT="0.5").stdout == "hi\n"


def test_it_waits_for_a_starter_that_is_slow(state: Path) -> None:
    early = "import time; from aviato.transport import embedded; embedded.start_early(embedded.socket_path()); time.sleep(4)\n"
    done = run(early + HELLO, state, AVIATO_IDLE_EXIT="0.5")
    assert (done.stdout, done.stderr) == ("hi\n", "")


def test_a_killed_server_is_replaced_under_a_living_client(state: Path) -> None:
    source = """
import aviato, os, signal, sys
sandbox = aviato.Sandbox()
print(sandbox.exec(["echo", "before"]).result().stdout, end="")
running = sandbox.exec(["sh", "-c", "sleep 3; echo during"])
sandbox.exec(["true"]).result()
[pid] = [int(open(f"{d}/lock").read()) for d in __import__("glob").glob(sys.argv[1] + "/embedded/*")]
os.kill(pid, signal.SIGKILL)
print(sandbox.exec(["echo", "after"]).result(25).stdout, end="")
print(running.result(25).stdout, end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(state)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "AVIATO_STATE_DIR": str(state)},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("before\nafter\nduring\n", "")


def test_ctrl_c_in_a_script_leaves_the_server_to_others(state: Path) -> None:
    source = HELLO + "; import time; print('up', flush=True); time.sleep(100)"
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AVIATO_STATE_DIR": str(state)},
        start_new_session=True,
    ) as client:
        assert client.stdout is not None
        assert [client.stdout.readline(), client.stdout.readline()] == [b"hi\n", b"up\n"]
        os.killpg(client.pid, signal.SIGINT)
        client.wait(10)
    assert len(embedded_pids(state)) == 1


def test_a_server_that_cannot_start_says_why(state: Path) -> None:
    begin = time.monotonic()
    done = run(HELLO, state, AVIATO_MAX_SANDBOXES="many")
    assert done.returncode == 1
    assert "SandboxUnavailableError" in done.stderr
    assert "the embedded server cannot start: AVIATO_MAX_SANDBOXES is 'many': " in done.stderr
    assert time.monotonic() - begin < 10


def test_a_state_directory_of_somebody_else_is_refused(state: Path, tmp_path: Path) -> None:
    (state / "link").symlink_to(tmp_path)
    done = run(HELLO, state / "link")
    assert "SandboxUnavailableError" in done.stderr
    assert "symlink" in done.stderr
