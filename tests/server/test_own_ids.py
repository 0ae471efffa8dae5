"""An ordinary user's server with a range of ids: its sandboxes have counts of their own. And what is said to who has none."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from aviato import NetworkOptions, Sandbox
from aviato.server.backends.local import own_ids
from tests.attacks.pairs.limits import SENT
from tests.conftest import make_state_dir, remove, start_server

BEFORE = shlex.split(own_ids.START)[: shlex.split(own_ids.START).index("aviato")]
"""What is said to be written in front of the server."""
SEND = (
    "import array, socket\nends = socket.socketpair()\nends[0].sendmsg([b'x'], [(1, 1, array.array('i', [0]))])\nprint('sent')"
)


def has_ids() -> bool:
    if os.geteuid() == 0 or not all(map(shutil.which, own_ids.subordinate.PROGRAMS)):
        return False
    return subprocess.run([*BEFORE, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The two files with ranges, and which programs there are."""

    def arrange(uids, gids, programs=own_ids.subordinate.PROGRAMS):
        paths = [tmp_path / name for name in ("subuid", "subgid")]
        for path, content in zip(paths, (uids, gids), strict=True):
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(content)
        monkeypatch.setattr(own_ids.subordinate, "FILES", tuple(map(str, paths)))
        monkeypatch.setattr(own_ids.shutil, "which", lambda name: name if name in programs else None)
        return own_ids.repair()

    return arrange


def test_what_is_lacking_is_said(files):
    me = own_ids.subordinate.pwd.getpwuid(os.getuid()).pw_name
    usermod = f"sudo usermod --add-subuids {{0}} --add-subgids {{0}} {me} && {own_ids.START}"
    assert files(f"{me}:100000:65536\n", f"{me}:100000:65536\n") == own_ids.START
    assert files(f"{os.getuid()}:100000:65536\n", f"{me}:100000:65536\n") == own_ids.START
    assert files(f"{me}:100000:65536\n", f"{me}:100000:65536\n", ()) == f"{own_ids.PACKAGE} && {own_ids.START}"
    assert files(None, None) == usermod.format("100000-165535")
    assert files("other:100000:65536\n", "") == usermod.format("165536-231071")
    assert files(f"{me}:100000:65536\n", "other:200000:1000\nbroken\n\n#x:y:z\n") == usermod.format("201000-266535")
    assert files(f"{me}:100000:1\n", f"{me}:100000:65536\n") == usermod.format("165536-231071")


def test_who_is_unknown_has_a_number(files, monkeypatch):
    monkeypatch.setattr(own_ids.subordinate.os, "getuid", lambda: 54321)
    assert "--add-subgids 100000-165535 54321 &&" in files(None, None)


@pytest.mark.skipif(not has_ids(), reason="no range of ids can be had here")
def test_what_one_sandbox_uses_up_the_others_have():
    state = make_state_dir()
    server = start_server(state, before=BEFORE)
    try:
        network = NetworkOptions(egress_mode="internet")
        with Sandbox(base_url=server.url) as greedy, Sandbox(base_url=server.url, network=network) as other:
            sending = greedy.exec(["python3", "-I", "-c", SENT])
            assert next(iter(sending.stdout)) == "ETOOMANYREFS\n"
            assert other.exec(["python3", "-I", "-c", SEND]).result().stdout == "sent\n"
            assert "Too many references" in greedy.exec(["python3", "-I", "-c", SEND]).result().stderr
            fetch = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.2/"
            assert other.exec(["sh", "-c", fetch]).result().stdout == "403"
            with Sandbox(base_url=server.url, packages=sys.prefix) as equipped:
                assert equipped.exec(["python3", "-c", "import pytest; print(pytest.__name__)"]).result().stdout == "pytest\n"
            other.write_file("f", b"content").result()
            assert other.exec(["cat", "f"]).result().stdout == "content"
        assert os.listdir(f"{server.state_dir}/serve/sandboxes") == []
    finally:
        server.stop()
        subprocess.run([*BEFORE, "rm", "-rf", str(state)], check=False)
        remove(state)
