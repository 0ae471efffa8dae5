"""Other users of the machine, below the state directory of a root server: they pass where sandboxes pass, and no further."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviato import Sandbox
from tests.attacks.others import reached

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's server has nothing that others pass through")

OPEN_TO_ALL = """
umask 000
mkdir -p dir/deep; echo secret > dir/file; echo secret > dir/deep/file; cp /bin/true dir/program
chmod -R 777 dir; chmod 6777 dir/program; chmod 777 . .. 2>/dev/null
mkfifo dir/pipe; chmod 666 dir/pipe
echo from a command
"""


@pytest.fixture(params=["local", "landlock"])
def state(request, make_server, monkeypatch):
    try:
        made = make_server(backend=request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("AVIATO_BASE_URL", made.url)
    return Path(made.state_dir)


def test_while_sandboxes_live_and_after(state):
    sandboxes = state / "serve" / "sandboxes"
    through = {str(state), str(state / "serve"), str(sandboxes)}
    places = set()

    def check():
        places.update(os.listdir(sandboxes))
        found = reached(str(state))
        for path in through:
            assert found.pop(path) == ["see", "enter"]
        # Of a name that is known he learns whether something has it.
        more = {path: done for path, done in found.items() if done != ["see"] or os.path.dirname(path) not in through}
        assert not more

    with Sandbox.run("sh", "-c", "echo of the main command; sleep 600") as sandbox:
        assert sandbox.exec(["bash", "-c", OPEN_TO_ALL]).result().stdout == "from a command\n"
        check()
        with Sandbox.run() as untouched:
            untouched.exec(["true"]).result()
            check()
        check()
    check()
    left = Sandbox.run("sh", "-c", "echo kept", detached=True)
    left.wait()
    check()
    left.stop()
    assert len(places) >= 2
