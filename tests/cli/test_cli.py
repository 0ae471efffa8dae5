"""The command line against a real server, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

import aviato
from tests.matrices import deep

AVIATO = [sys.executable, "-m", "aviato"]
ID = re.compile(r"sb-[0-9a-z]{26}")


@pytest.fixture
def cli(server: Any) -> Any:
    """Run `aviato …` to its end."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "AVIATO_BASE_URL": server.url}
        return subprocess.run(
            [*AVIATO, *arguments], env=environment, input=stdin, capture_output=True, timeout=250, check=False
        )

    return run


def test_run_passes_streams_and_status_through(cli: Any) -> None:
    done = cli("run", "-e", "NAME=value", "-w", "/tmp", "--", "sh", "-c", "echo $NAME $PWD; echo error >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"value /tmp\n", b"error\n")


def test_run_without_the_two_dashes(cli: Any) -> None:
    assert cli("run", "echo", "-n", "--flag").stdout == b"--flag"


def test_bytes_come_through_unchanged_both_ways(cli: Any) -> None:
    content = os.urandom(300_000)
    assert cli("run", "-i", "cat", stdin=content).stdout == content


def test_standard_input_is_passed_on_only_if_asked(cli: Any) -> None:
    assert cli("run", "cat", stdin=b"not meant for it").stdout == b""


def test_a_detached_sandbox_lives_until_it_is_stopped(cli: Any) -> None:
    made = cli("run", "-d", "--tag", "cli-test").stdout.decode().strip()
    assert ID.fullmatch(made)
    assert cli("exec", made, "sh", "-c", "echo kept > /tmp/file").returncode == 0
    assert cli("exec", made, "--", "cat", "/tmp/file").stdout == b"kept\n"
    assert cli("ls", "-q", "--tag", "cli-test").stdout.decode().split() == [made]
    assert cli("stop", made).stdout.decode().strip() == made
    assert cli("ls", "-q", "--tag", "cli-test").stdout == b""
    [record] = [json.loads(line) for line in cli("ls", "-a", "--json", "--tag", "cli-test").stdout.splitlines()]
    assert (record["sandbox_id"], record["status"], record["status_reason"]) == (made, "terminated", "stopped")


def test_a_detached_command_is_the_main_command(server: Any, cli: Any) -> None:
    made = cli("run", "-d", "--", "sh", "-c", "exit 3").stdout.decode().strip()
    sandbox = aviato.Sandbox.from_id(made, base_url=server.url).result()
    sandbox.wait_until_complete(20).result()
    assert (sandbox.status, sandbox.returncode) == ("failed", 3)


def test_a_timeout_has_a_status_of_its_own(cli: Any) -> None:
    done = cli("run", "--timeout", "0.3", "sleep", "60")
    assert done.returncode == 124
    assert b"ran longer than 0.3 s" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exec", "sb-00000000000000000000000000", "true"), "not known"),
        (("exec", "nonsense", "true"), "not the id of a sandbox"),
        (("stop", "sb-00000000000000000000000000"), "not known"),
        (("run", "--image", "dir:nowhere", "true"), "nowhere"),
        (("run", "-w", "relative", "pwd"), "absolute"),
        (("run", "-w", "here", "true"), "--workdir"),
        (("ls", "--status", "sleeping"), "running"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_125(cli: Any, arguments: tuple[str, ...], message: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 125
    assert message in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_an_unreachable_server_says_what_was_tried() -> None:
    command = [*AVIATO, "ls", "--base-url", "unix:///nowhere/aviato.sock"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 125
    said = done.stderr.splitlines()
    assert len(said) == 2 and all("/nowhere/aviato.sock: No such file" in line for line in said), said
    assert said[0].startswith("aviato: list sandboxes failed, trying again in "), "nobody waits for five seconds without a word"


def test_who_waits_for_a_place_is_told(make_server: Any) -> None:
    server = make_server(max_sandboxes=1)
    with aviato.Sandbox(base_url=server.url) as first:
        first.wait()
        command = [*AVIATO, "run", "--base-url", server.url, "echo", "here"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None and process.stdout is not None
            assert process.stderr.readline() == "aviato: waiting for a sandbox: place 1 in the server's queue\n"
            first.stop().result()
            assert (process.stdout.read(), process.wait(30)) == ("here\n", 0)


def test_it_says_its_version(cli: Any) -> None:
    assert cli("--version").stdout.decode() == f"aviato, version {aviato.__version__}\n"


def test_interrupting_a_run_ends_its_command(server: Any, cli: Any) -> None:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    command = [*AVIATO, "run", "--tag", "interrupted", "--", "sh", "-c", "echo up; exec sleep 1000"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert cli("ls", "-q", "--tag", "interrupted").stdout == b""


def test_control_characters_do_not_reach_the_terminal(cli: Any) -> None:
    done = cli("run", "-w", "/proc/no\x1b[31m", "pwd")
    assert done.returncode == 125
    assert b"\x1b" not in done.stderr


def test_doctor_says_what_holds_and_exits_by_it(cli: Any) -> None:
    done = cli("doctor", "--plan")
    assert done.returncode == 0, done.stdout.decode()
    text = done.stdout.decode()
    assert "Sandboxes can run here." in text
    assert "limits: hard" in text and "limits: watched" in text
    assert re.search(r"^ +\d+\. enter_root \S+$", text, re.MULTILINE) and re.search(r"^ +\d+\. pivot$", text, re.MULTILINE)
    report = json.loads(cli("doctor", "--json").stdout)
    assert report["ok"] and all(check["ok"] for check in report["checks"] if check["required"])


def test_help_imports_no_server_and_no_client() -> None:
    code = "import sys; sys.argv = ['aviato', '--help']\ntry:\n from aviato.cli.main import main; main()\n"
    code += "except SystemExit: pass\nprint([m for m in ('aiohttp', 'pydantic', 'uvloop') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_is_left_running_and_read_later(cli: Any) -> None:
    made = cli("run", "-d").stdout.decode().strip()
    done = cli("exec", "-d", made, "--", "sh", "-c", "echo begun; sleep 0.5; echo done; echo bad >&2; exit 5")
    exec_id = done.stdout.decode().strip()
    assert done.returncode == 0 and re.fullmatch(r"ex-[0-9a-z]{26}", exec_id)
    whole = cli("attach", made, exec_id)
    assert (whole.returncode, whole.stdout, whole.stderr) == (5, b"begun\ndone\n", b"bad\n")
    rest = cli("attach", "--stdout-offset", "6", "--stderr-offset", "4", made, exec_id)
    assert (rest.returncode, rest.stdout, rest.stderr) == (5, b"done\n", b"")
    unknown = cli("attach", made, "ex-" + "0" * 26)
    assert unknown.returncode == 125 and b"no command" in unknown.stderr
    refused = cli("exec", "-d", "-w", "/no/such", made, "--", "true")
    assert (refused.returncode, refused.stdout) == (125, b"") and b"/no/such" in refused.stderr
    cli("stop", made)


def test_interrupting_an_attach_leaves_the_command_running(server: Any, cli: Any) -> None:
    made = cli("run", "-d").stdout.decode().strip()
    exec_id = cli("exec", "-d", made, "--", "sh", "-c", "echo up; until [ -e go ]; do sleep 0.1; done; echo lived")
    exec_id = exec_id.stdout.decode().strip()
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    with subprocess.Popen([*AVIATO, "attach", made, exec_id], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    cli("exec", made, "--", "touch", "go")
    assert cli("attach", made, exec_id).stdout == b"up\nlived\n"
    cli("stop", made)


@pytest.mark.parametrize("words", ["--help", *deep(["ls", "doctor", "bench --list", "run echo here"])])
def test_what_cannot_be_printed_is_said(server: Any, words: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "aviato", *words.split()],
            env={**os.environ, "AVIATO_BASE_URL": server.url},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=250,
            check=False,
        )
    assert (done.returncode, done.stderr) == (125, "aviato: standard output cannot be written: No space left on device\n")
