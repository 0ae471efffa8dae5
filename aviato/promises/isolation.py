"""What code inside cannot do or see."""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress

import pytest

import aviato
from aviato.promises.declared import keeps
from aviato.promises.serving import SECRET, Server

SEES = """
import os, sys
found = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            found += sys.argv[1].encode() in file.read() and int(pid) != os.getpid()
    except OSError:
        pass
print(found)
"""
READS = """
import os, sys
found = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found += sys.argv[1].encode() in file.read() and int(pid) != os.getpid()
    except OSError:
        pass
print(found)
"""
CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
    print("connected")
except OSError as error:
    print("refused")
"""


@keeps("processes")
def test_processes_of_others(session: aviato.Session, server: Server) -> None:
    """Nothing of another sandbox's processes is seen, and nothing of the machine's."""
    word = uuid.uuid4().hex
    other, own = session.sandbox(), session.sandbox()
    running = other.exec(["sh", "-c", f"echo began; exec sleep 60 # {word}"])
    assert next(iter(running.stdout)) == "began\n"
    line = "python3 -c 'import time; time.sleep(60)' $0 >/dev/null 2>&1 &"
    other.exec(["sh", "-c", line, word], check=True).result()
    assert int(other.exec(["python3", "-c", SEES, word]).result().stdout) >= 1
    assert own.exec(["python3", "-c", SEES, word]).result().stdout == "0\n"
    if server.is_own:  # Its command line has the path of its socket.
        assert own.exec(["python3", "-c", SEES, server.url.removeprefix("unix://")]).result().stdout == "0\n"


def test_variables_of_others(session: aviato.Session) -> None:
    """No variable of another sandbox's processes can be read, wherever /proc is seen from."""
    word = uuid.uuid4().hex
    other, own = session.sandbox(environment_variables={"WORD": word}), session.sandbox()
    running = other.exec(["sh", "-c", "echo began; exec sleep 60"])
    assert next(iter(running.stdout)) == "began\n"
    assert own.exec(["python3", "-c", READS, word]).result().stdout == "0\n"


def test_files_of_others(session: aviato.Session) -> None:
    """No file of another sandbox can be read, by none of its names; each has a directory of its own to begin with."""
    word = uuid.uuid4().hex
    other, own = session.sandbox(), session.sandbox()
    other.write_file(f"file-{word}", word.encode()).result()
    path = other.exec(["pwd"]).result().stdout.strip()
    assert own.list_files(".").result() == []
    assert own.exec(["cat", f"{path}/file-{word}"]).result().returncode != 0
    with pytest.raises(aviato.SandboxFileError):
        own.read_file(f"{path}/file-{word}").result()


def test_files_of_the_server(sandbox: aviato.Sandbox, server: Server) -> None:
    """Nothing of the server's own files and variables can be read inside."""
    if not server.is_own:
        pytest.skip("the files of the server that is asked are not known")
    directory = server.url.removeprefix("unix://").rpartition("/")[0]
    look = f"cat {directory}/log {directory}/state/*/* 2>/dev/null | head -c 1"
    assert sandbox.exec(["sh", "-c", look]).result().stdout == ""
    assert sandbox.exec(["python3", "-c", READS, SECRET[1]]).result().stdout == "0\n"


def test_the_machine_s_files(sandbox: aviato.Sandbox) -> None:
    """What is written to directories of the system stays in the sandbox, or is refused."""
    name = f"aviato-promises-{uuid.uuid4().hex}"
    for directory in ("/", "/etc", "/usr", "/tmp", "/var/tmp", "/dev/shm", "/root", "/home"):
        sandbox.exec(["sh", "-c", f"touch {directory}/{name}"]).result()
        if os.path.exists(f"{directory}/{name}"):
            os.unlink(f"{directory}/{name}")
            pytest.fail(f"{directory} is the machine's own")


@keeps("network")
def test_no_network(session: aviato.Session) -> None:
    """Without `network=` there is none: what listens on the server's machine cannot be reached."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = str(listener.getsockname()[1])
        sandbox = session.sandbox()
        addresses = {"127.0.0.1"}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):  # Of a machine without a network.
            probe.connect(("192.0.2.1", 9))  # Sends nothing; says which address this machine has.
            addresses.add(probe.getsockname()[0])
        for address in addresses:
            assert sandbox.exec(["python3", "-c", CONNECTS, address, port]).result().stdout == "refused\n"
        assert sandbox.exec(["python3", "-c", CONNECTS, "192.0.2.1", "80"]).result().stdout == "refused\n"


@pytest.mark.parametrize(
    "attempt",
    [
        "kill -9 1; kill -TERM 1",
        "kill -9 $PPID",
        "kill -9 -1",
        "for i in $(seq 200); do sleep 20 & done; kill -9 $$",
        "python3 -c 'import os; [os.kill(int(p), 9) for p in os.listdir(\"/proc\") if p.isdigit() and int(p) > 1]'",
        "rm -rf . ./* ./.[!.]*",
    ],
    ids=["process 1", "parent", "everyone", "many", "each", "own files"],
)
@keeps("signals")
def test_no_program_makes_it_infrastructure(session: aviato.Session, attempt: str) -> None:
    """No program inside can have an error say `is_infrastructure`: it would let a policy drop the episodes that it loses."""
    sandbox = session.sandbox(max_lifetime_seconds=60)
    for outside in {os.getpid(), os.getppid()} - {1}:  # Which is there inside, too.
        # A backend without walls would have everyone on this machine killed: that is asked for first.
        assert sandbox.exec(["kill", "-0", str(outside)]).result().returncode != 0, "processes outside can be signalled"
    try:
        sandbox.exec(["sh", "-c", attempt], timeout_seconds=10).result()
    except aviato.AviatoError as error:
        assert not error.is_infrastructure, error
    try:
        sandbox.list_files(".").result()
    except aviato.AviatoError as error:
        assert not error.is_infrastructure, error
