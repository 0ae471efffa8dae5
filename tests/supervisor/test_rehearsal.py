"""The rehearsal that the template holds before there is any sandbox. Here in a process of its own, since it reaps children."""

import json
import subprocess
import sys

from aviato.server.supervisor import rehearsal
from aviato.wire.frames import FrameType

LOOKED = """
import json, os, signal, sys
from aviato.server.supervisor import program, rehearsal, tree

def state():
    return [
        sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
        os.readlink("/proc/self/ns/uts"), os.getcwd(), tree._population is population, signal.getsignal(signal.SIGTERM),
    ]

population = tree._population
children = program.child_signals()
before = state()
seen = []
start = rehearsal._start
rehearsal._start = lambda *arguments: seen.append(start(*arguments)) or seen[-1]
ended = []
received = rehearsal._received
def heard(*arguments):
    for frame in received(*arguments):
        ended.append((frame.type, frame.payload.decode()))
        yield frame
rehearsal._received = heard
rehearsal.rehearse(children)
try:
    left = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    left = None
print(json.dumps({"same": before == state(), "left": left, "started": len(seen), "frames": ended, "rounds": rehearsal.ROUNDS}))
"""


def test_it_runs_commands_to_their_end_and_leaves_nothing_behind():
    done = subprocess.run([sys.executable, "-c", LOOKED], capture_output=True, text=True, timeout=60, check=True, cwd="/")
    found = json.loads(done.stdout)
    assert (found["same"], found["left"], found["started"]) == (True, None, 2 * found["rounds"])
    frames = [(FrameType(kind), payload) for kind, payload in found["frames"]]
    returncodes = [json.loads(payload)["returncode"] for kind, payload in frames if kind == FrameType.EXIT]
    assert returncodes == [0] * 2 * found["rounds"]
    output = "".join(payload for kind, payload in frames if kind == FrameType.DATA)
    assert output.count('"passed":true') == rehearsal.CASES * found["rounds"]
    assert FrameType.ERROR not in dict(frames)


def test_what_goes_wrong_stays_here():
    broken = "import os; from aviato.server.supervisor import program, rehearsal\n"
    broken += "def fails(*_): raise OSError(24, 'no room')\n"
    broken += "rehearsal._round = fails; rehearsal.rehearse(program.child_signals()); print('fine')"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, timeout=60, check=True, cwd="/")
    assert done.stdout == "fine\n"
