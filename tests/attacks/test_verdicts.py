"""Whatever code does to its sandbox is its own doing: never a failure of the machine, and no other sandbox notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from tests.attacks.programs import ATTACKS, PRELUDE

pytestmark = pytest.mark.attack

AT_PROCESS_1 = """
import resource
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        try: resource.prlimit(1, getattr(resource, name), (0, 0))
        except (OSError, ValueError): pass
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
os.system("head -c 200000000 /dev/zero | tail -c 1")
"""

DEADLY = {
    "hobbling and killing process 1": PRELUDE + AT_PROCESS_1,
    "kill everyone": "import os; os.kill(-1, 9)",
    "stop everyone": "import os; os.kill(-1, 19); os.kill(os.getpid(), 19)",
    "groups outside": f"""
import os
for pid in [0, *range(2, 70), {os.getpid()}, {os.getppid()}, {os.getpgid(0)}]:
    for send in (os.killpg, os.kill):
        if pid not in (0, os.getpid()):
            try: send(pid, 9)
            except OSError: pass
""",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "bomb of sessions": "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
    "orphans": """
import os
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: os.system("true")
""",
    "bomb of descriptors": """
import os, socket
held = []
while True:
    try: held += [os.open("/", 0), *os.pipe(), *socket.socketpair()]
    except OSError: break
if os.fork() == 0: held.append(os.fork())
while True: pass
""",
    "descriptors on their way": """
import os, socket
ends = []
try:
    while True:
        ends.append(socket.socketpair())
        try:
            while True: socket.send_fds(ends[-1][0], [b"x"], [0] * 250, 0x40)
        except OSError: pass
except OSError: pass
""",
    "10 GiB of output": "import os\nfor _ in range(10 << 10): os.write(1, bytes(1 << 20))",
    "output for nobody": "import os\nif os.fork(): os._exit(3)\nwhile True: os.write(2, bytes(1 << 16))",
    "the wrong end": "import os\nfor fd in (0, 1, 2): os.close(fd)\nos.abort()",
    "core dump": "import os\nopen('big', 'wb').write(bytes(1 << 20)); os.abort()",
    "remove everything": "import os; os.system('rm -rf --no-preserve-root / 2>/dev/null')",
    "lock everything": "import os; os.system('chmod 000 / /workspace /tmp /dev/shm 2>/dev/null')",
    "fill shared memory": "open('/dev/shm/f', 'wb').write(bytes(80 << 20))",
    "forge the end": """
import os
for fd in range(256):
    try: os.write(fd, bytes([7, 0, 0, 0]) * 100)
    except OSError: pass
""",
}


@pytest.fixture(scope="module")
def neighbour(server: Any) -> Iterator[aviato.Sandbox]:
    """Another sandbox, whose program must not notice anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AVIATO_BASE_URL", server.url)
        with aviato.Sandbox() as sandbox:
            counting = sandbox.exec(["sh", "-c", "cat"], stdin=True)
            yield sandbox
            counting.stdin.close().result()
            assert counting.result(60).returncode == 0


def by_itself(error: aviato.AviatoError) -> bool:
    """Whether it says that the code brought it about."""
    while error is not None:
        if getattr(error, "is_infrastructure", False):
            return False
        error = error.__cause__
    return True


@pytest.mark.parametrize("name", DEADLY)
def test_it_is_the_code_s_own_doing(served: Any, neighbour: aviato.Sandbox, name: str) -> None:
    with aviato.Sandbox() as sandbox:
        try:
            result = sandbox.exec(["python3", "-c", DEADLY[name]], timeout_seconds=1.0, max_output_bytes=1 << 20).result()
            assert result.returncode != 126
        except aviato.AviatoError as error:
            assert isinstance(error, aviato.SandboxCommandTimeoutError) and by_itself(error), error
            assert len(error.exec_result.stdout_bytes) <= (1 << 20) + 200
        # It may have spoilt its own sandbox, but that answers, and nothing runs on in it.
        try:
            assert sandbox.exec(["/usr/bin/true"]).result(60).returncode in (0, 126, 127)
        except aviato.AviatoError as error:
            assert by_itself(error), error
        assert sandbox.get_status() == "running"
    assert neighbour.exec(["true"]).result(60).returncode == 0


def test_every_forbidden_call(served: Any, neighbour: aviato.Sandbox) -> None:
    """As a program's users see it, many at a time."""

    async def one(sandbox: aviato.Sandbox, name: str) -> None:
        attack = ATTACKS[name]
        result = await sandbox.exec(["python3", "-I", "-c", PRELUDE + attack.source])
        assert (result.stdout.strip(), result.stderr, result.returncode) == (attack.refused, "", 0), name

    async def main() -> None:
        async with aviato.Sandbox() as sandbox:
            names = list(ATTACKS)
            for begin in range(0, len(names), 8):
                await asyncio.gather(*(one(sandbox, name) for name in names[begin : begin + 8]))

    asyncio.run(main())
    assert neighbour.exec(["true"]).result(60).returncode == 0


INSIDE = """
mkdir d; cp /usr/bin/id .; chmod 6755 id; ./id -u
for pair in c:1:1 b:8:0 c:5:1; do mknod d/$pair ${pair%%:*} 8 0 2>/dev/null && echo "a device: $pair"; done
find / -xdev -perm /6000 -type f -newer /proc/1 2>/dev/null | grep -v workspace
ls d; sh -c 'kill -SEGV $$' 2>/dev/null
find / -xdev -path /sys -prune -o -name 'core*' -type f -newer d -size +0 -print 2>/dev/null
su root -c 'id -u' < /dev/null 2>/dev/null; exit 0
"""


def test_set_uid_programs_devices_and_cores(served: Any) -> None:
    with aviato.Sandbox() as sandbox:
        result = sandbox.exec(["sh", "-c", INSIDE]).result()
        assert result.stdout.replace("0\n", "") == "", result.stdout
