"""Snapshots of sandboxes at rest: the layer stays where it lies, the sandbox goes on over it, and nobody can tell."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, NetworkOptions, Sandbox, Session
from aviato.server.service import moves
from tests.endings.conftest import until

pytestmark = pytest.mark.usefixtures("served")
AGE = "read -r line </proc/1/stat; set -- ${line##*)}; echo ${20}"
"""When process 1 began."""
ASLEEP = "(setsid sleep 1000 &) >/dev/null 2>&1; until cat /proc/[0-9]*/comm | grep -q sleep; do :; done"
"""What runs on behind a command, once it is there."""


def run(sandbox: Any, command: str, **options: Any) -> str:
    return str(sandbox.exec(["sh", "-c", command], check=True, **options).result().stdout)


def _told(sandbox: Sandbox) -> list[Any]:
    """What everybody is told of it."""
    seen = Sandbox.from_id(sandbox.sandbox_id).result()
    return [seen.status, seen.created_at, seen.started_at, seen.tags, seen.limits]


@pytest.fixture
def take(session: Session) -> Iterator[Any]:
    """Takes a snapshot that goes with the test; says whether the sandbox has moved."""
    made: list[str] = []

    def taken(sandbox: Sandbox) -> tuple[aviato.Snapshot, bool]:
        before = run(sandbox, AGE)
        snapshot = sandbox.snapshot().result()
        made.append(snapshot.snapshot_id)
        return snapshot, run(sandbox, AGE) != before

    yield taken
    for snapshot_id in made:
        Sandbox.delete_snapshot(snapshot_id, missing_ok=True).result()


def size(snapshot: aviato.Snapshot) -> int:
    """As the list of snapshots says, which has counted it."""
    [found] = [one for one in Sandbox.list_snapshots().result() if one.snapshot_id == snapshot.snapshot_id]
    assert found.size_bytes is not None
    return found.size_bytes


@pytest.mark.parametrize("left", ["", ASLEEP], ids=["moved", "copied"])
def test_a_file_of_holes_is_as_large_as_what_it_takes(session: Session, take: Any, left: str) -> None:
    """A program inside makes it as long as it likes, and the operator's `--image-cache-bytes` would have no image stay."""
    sandbox = session.sandbox(resources={"disk": "1Gi"})
    run(sandbox, "echo whole >whole; for i in 1 2 3; do echo x | dd of=hollow$i bs=1 seek=4000000000; done 2>/dev/null")
    if left:
        run(sandbox, left)
    taken, has_moved = take(sandbox)
    assert has_moved is not bool(left)
    assert 0 < size(taken) < 1 << 20
    seen = run(session.sandbox(container_image=taken.snapshot_id), "stat -c %s hollow1; tail -c 2 hollow3")
    assert seen == "4000000002\nx\n"


MADE = """
mkdir -p d/deep; echo one >text; ln text hard; ln -s text soft; mkfifo pipe; rm /etc/group; rm -r /var/log; mkdir /var/log
cp /bin/true suid; chmod 6755 suid; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
touch -d @1000000000.5 old; truncate -s 1M sparse; chmod 700 d; chown 7:8 text hard 2>/dev/null
"""
LISTING = "cd / && find workspace etc/group var/log -printf '%P %y %m %U:%G %n %T@ %l\\n' 2>&1 | sort; cat workspace/text"


def test_nobody_can_tell(session: Session, take: Any) -> None:
    sandbox = session.sandbox(tags=["t"], environment_variables={"A": "1"}, resources={"memory": "200Mi"})
    run(sandbox, MADE)
    before, told, name = run(sandbox, LISTING), _told(sandbox), run(sandbox, "hostname; echo $A; pwd; nproc")
    snapshot, moved = take(sandbox)
    assert moved
    after = run(sandbox, LISTING)
    assert after == before and "\nsocket s " in before
    assert run(sandbox, "hostname; echo $A; pwd; nproc") == name
    assert _told(sandbox) == told
    child = session.sandbox(container_image=snapshot.snapshot_id)
    assert run(child, LISTING) == after
    run(sandbox, "echo two >text")
    assert run(child, "cat text hard") == "one\none\n"
    assert (
        run(sandbox, "cat text hard") == "two\none\n"
    )  # As in an image: names of one file in a layer below are parted by writing.
    program = int(run(sandbox, "stat -c %s suid"))
    assert snapshot.size_bytes is None and program <= size(snapshot) < 1 << 20, "the file of holes takes nothing"


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (
            "(setsid sleep 1000 &) >/dev/null 2>&1; until cat /proc/[0-9]*/comm | grep -q sleep; do :; done 2>/dev/null",
            "cat /proc/[0-9]*/comm | grep -c sleep",
        ),
        ("echo x >/dev/shm/x", "cat /dev/shm/x"),
        ("mkdir -p /dev/shm/a/b; echo x >/dev/shm/a/b/x", "cat /dev/shm/a/b/x"),
        (
            "python3 -c 'import ctypes; c = ctypes.CDLL(None); c.shmget(7, 4096, 0o1600)'",
            "tail -n +2 /proc/sysvipc/shm | wc -l",
        ),
        ("python3 -c 'import ctypes; c = ctypes.CDLL(None); c.msgget(7, 0o1600)'", "tail -n +2 /proc/sysvipc/msg | wc -l"),
    ],
    ids=["process", "shared memory", "below a directory", "system v memory", "system v messages"],
)
def test_what_is_in_no_layer_keeps_it_in_its_place(session: Session, take: Any, made: str, left: str) -> None:
    sandbox = session.sandbox()
    run(sandbox, f"echo kept >text; {made}")
    before = run(sandbox, left)
    assert before.strip() not in ("", "0")
    snapshot, moved = take(sandbox)
    assert not moved and run(sandbox, left) == before
    assert run(session.sandbox(container_image=snapshot.snapshot_id), "cat text") == "kept\n"


def test_of_one_that_has_changed_its_root_itself(session: Session, take: Any) -> None:
    for change in ("chmod 700 /", 'python3 -c \'import os; os.setxattr("/", "user.mine", b"1")\''):
        sandbox = session.sandbox()
        run(sandbox, f"echo x >text; {change}")
        look = "stat -c %a:%U /; python3 -c 'import os; print(os.listxattr(\"/\"))'"
        before = run(sandbox, look)
        assert take(sandbox)[1] is False and run(sandbox, look) == before


def test_of_a_main_command_and_of_results_that_nobody_has_fetched(session: Session, take: Any) -> None:
    sandbox = session.sandbox(command="sleep", args=["1000"])
    assert not take(sandbox)[1]
    sandbox = session.sandbox()
    process = sandbox.exec(["sh", "-c", "echo begun; read line; echo got $line"], stdin=True)
    assert next(iter(process.stdout.lines())).strip() == "begun"
    assert not take(sandbox)[1]
    process.stdin.write(b"it\n").result()
    process.stdin.close().result()
    assert "got it" in process.result().stdout


def test_one_after_another_and_what_becomes_of_each(session: Session, take: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = session.sandbox()
    taken = []
    for turn in range(5):
        run(sandbox, f"echo {turn} >>text; touch f{turn}; rm -f f{turn - 1}")
        snapshot, moved = take(sandbox)
        assert moved
        taken.append(snapshot)
    Sandbox.delete_snapshot(taken[2].snapshot_id).result()
    assert run(sandbox, "ls; cat text").split() == ["f4", "text", *"01234"]
    for turn in (0, 1, 3, 4):
        child = session.sandbox(container_image=taken[turn].snapshot_id)
        assert run(child, "ls; cat text").split() == [f"f{turn}", "text", *map(str, range(turn + 1))]
    sandbox.reset(to=taken[1].snapshot_id).result()
    assert run(sandbox, "ls; cat text").split() == ["f1", "text", "0", "1"]
    same, moved = take(sandbox)
    assert not moved and run(session.sandbox(container_image=same.snapshot_id), "ls; cat text").split() == [
        "f1",
        "text",
        "0",
        "1",
    ]
    run(sandbox, "echo more >>text")
    assert take(sandbox)[1]
    sandbox.reset().result()
    assert run(sandbox, "ls") == ""
    with pytest.raises(aviato.SandboxError):
        session.sandbox(container_image=taken[2].snapshot_id).wait()


@pytest.mark.parametrize(
    ("done", "is_written"),
    [
        ("true", False),
        ("cat text >/dev/null; ls -R / >/dev/null 2>&1; (setsid sleep 1000 &) >/dev/null 2>&1", False),
        ("echo x >/dev/shm/x", False),
        ("touch /new; rm /new", False),
        ("echo more >>text", True),
        ("echo y >/run/y", True),
        ("rm text", True),
        ("chmod 600 text", True),
        ("touch text", True),
        ("mkdir d", True),
        ("touch /etc/passwd", True),
    ],
)
def test_of_what_has_written_nothing_since(session: Session, take: Any, done: str, is_written: bool) -> None:
    """It is the image that the sandbox lies on, and costs nothing."""
    sandbox = session.sandbox()
    run(sandbox, "echo one >text")
    first = take(sandbox)[0]
    run(sandbox, done)
    before = run(sandbox, "stat -c %a:%U:%G text; cat text 2>&1; ls /")
    second, _ = take(sandbox)
    assert (size(second) == size(first) and second.image_id != first.image_id) or is_written
    child = session.sandbox(container_image=second.snapshot_id)
    assert run(child, "stat -c %a:%U:%G text; cat text 2>&1; ls /") == before
    Sandbox.delete_snapshot(first.snapshot_id).result()
    assert run(child, "stat -c %a:%U:%G text; cat text 2>&1; ls /") == before
    assert run(session.sandbox(container_image=second.snapshot_id), "ls /") == run(child, "ls /")


def test_what_is_over_many_layers_moves_no_more(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server().url)
    with Session() as session:
        sandbox = session.sandbox()
        ages = []
        for turn in range(moves.MOST_LAYERS + 3):
            run(sandbox, f"echo {turn} >>text")
            last = sandbox.snapshot().result()
            ages.append(run(sandbox, AGE))
            if turn % 2:
                Sandbox.delete_snapshot(last.snapshot_id).result()
        assert len(set(ages)) <= moves.MOST_LAYERS and ages[-1] == ages[-2]
        assert len(run(session.sandbox(container_image=last.snapshot_id), "cat text").split()) == len(ages)


def test_ports_the_way_out_and_the_lifetime_go_on(session: Session, take: Any) -> None:
    sandbox = session.sandbox(network=NetworkOptions(exposed_ports=[8000], egress_mode=["127.0.0.2"]), max_lifetime_seconds=600)
    proxy = run(sandbox, "echo $HTTP_PROXY")
    urls = sandbox.service_urls
    assert take(sandbox)[1] and run(sandbox, "echo $HTTP_PROXY") == proxy
    sandbox.exec(["python3", "-m", "http.server", "8000"])
    assert sandbox.wait_for_port(8000).result()
    assert urls and Sandbox.from_id(sandbox.sandbox_id).result().service_urls == urls


def test_results_of_detached_commands_stay(session: Session, take: Any) -> None:
    sandbox = session.sandbox(detached=True)
    exec_id = sandbox.exec(["sh", "-c", "echo kept"], detach=True).exec_id
    assert sandbox.attach(exec_id).result().stdout == "kept\n"
    assert take(sandbox)[1]
    assert sandbox.attach(exec_id).result().stdout == "kept\n"
    sandbox.stop().result()


def test_commands_that_come_meanwhile_run_once(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox()
            await sandbox.exec(["sh", "-c", "touch log"], check=True)
            for turn in range(8):
                snapshot = asyncio.ensure_future(_snapshot(sandbox))
                for part in range(4):
                    await asyncio.sleep(0.002 * turn)  # another point of the move each time, not a wait
                    await sandbox.exec(["sh", "-c", f"echo {turn}.{part} >>log"], check=True)
                taken = await snapshot
                child = await client.sandbox(container_image=taken.snapshot_id)
                seen = (await child.exec(["cat", "log"], check=True)).stdout.split()
                everything = [f"{one}.{part}" for one in range(turn + 1) for part in range(4)]
                assert seen == everything[: len(seen)] and len(seen) >= 4 * turn
                await child.stop()
                await client.delete_snapshot(taken.snapshot_id)
            assert (await sandbox.exec(["cat", "log"], check=True)).stdout.split() == everything

    asyncio.run(main())


async def _snapshot(sandbox: Any) -> Any:
    return await sandbox.snapshot()


def test_one_of_a_pool_keeps_its_name(session: Session, take: Any) -> None:
    with session.pool(1, warmup=["echo warm >text"]) as pool:
        until(lambda: pool.ready().result() == 1, 20)
        sandbox = pool.sandbox()
        name = run(sandbox, "hostname; cat text")
        assert take(sandbox)[1] and run(sandbox, "hostname; cat text") == name
        sandbox.stop().result()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("after_seconds", [0.0, 0.003, 0.01, 0.03])
def test_a_server_that_ends_in_the_middle_loses_nothing(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, after_seconds: float, sig: signal.Signals
) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        sandboxes = [session.sandbox(detached=True) for _ in range(4)]
        for number, one in enumerate(sandboxes):
            run(one, f"for n in $(seq 300); do echo {number} >f$n; done; sync; true")
        going = [one.snapshot() for one in sandboxes]
        time.sleep(after_seconds)  # the point of the kill, not a wait
        server.stop(sig)
        server.restart()
        for number, (one, taking) in enumerate(zip(sandboxes, going, strict=True)):
            taken = taking.result()
            assert run(one, "cat f* | sort | uniq -c").split() == ["300", str(number)]
            child = session.sandbox(container_image=taken.snapshot_id)
            assert run(child, "cat f* | sort | uniq -c").split() == ["300", str(number)]
            assert size(one.snapshot().result()) == size(taken)  # Of one that an earlier server has moved.
            child.stop().result()
            one.stop().result()
        assert not [*Path(server.state_dir).glob("sandboxes/*")]
        for snapshot in Sandbox.list_snapshots().result():
            Sandbox.delete_snapshot(snapshot.snapshot_id).result()


def test_told_to_end_in_the_middle(session: Session) -> None:
    for turn in range(6):
        sandbox = session.sandbox()
        run(sandbox, "echo x >text")
        taking = sandbox.snapshot()
        time.sleep(0.004 * turn)  # the point of the stop, not a wait
        sandbox.stop().result()
        try:
            taken = taking.result()
        except aviato.SandboxError as error:
            assert not isinstance(error, aviato.SandboxNotFoundError)
            continue
        assert run(session.sandbox(container_image=taken.snapshot_id), "cat text") == "x\n"
        Sandbox.delete_snapshot(taken.snapshot_id).result()


class Player:
    """Does at random what can be done with one sandbox, and knows what has to be in it."""

    def __init__(self, client: AsyncClient, draw: random.Random) -> None:
        self.client = client
        self.draw = draw
        self.files: dict[str, str] = {}
        self.taken: list[tuple[str, dict[str, str]]] = []

    async def play(self, turns: int) -> None:
        box = await self.client.sandbox()
        for _ in range(turns):
            await getattr(self, self.draw.choice(["write", "write", "snapshot", "beside", "fork", "reset", "back", "leave"]))(
                box
            )
            await self.compare(box, self.files)
        await box.stop()
        for snapshot_id, _ in self.taken:
            await self.client.delete_snapshot(snapshot_id)

    async def compare(self, box: Any, files: dict[str, str]) -> None:
        shown = await box.exec(["sh", "-c", "for f in f*; do test -e $f && echo $f $(cat $f); done; true"], check=True)
        assert dict(line.split() for line in shown.stdout.splitlines()) == files

    async def write(self, box: Any) -> str:
        name, text = f"f{self.draw.randrange(6)}", str(self.draw.random())
        await box.exec(["sh", "-c", f"echo {text} >.new && mv .new {name}"], check=True)
        self.files[name] = text
        return name

    async def snapshot(self, box: Any) -> None:
        self.taken.append(((await box.snapshot()).snapshot_id, dict(self.files)))
        if len(self.taken) > 3:
            await self.client.delete_snapshot(self.taken.pop(0)[0])

    async def beside(self, box: Any) -> None:
        before, taking = dict(self.files), asyncio.ensure_future(_snapshot(box))
        name = await self.write(box)
        taken = await taking
        child = await self.client.sandbox(container_image=taken.snapshot_id)
        seen = (await child.exec(["sh", "-c", f"cat {name} 2>/dev/null; true"])).stdout.strip()
        assert seen in (before.get(name, ""), self.files[name])
        await child.stop()
        await self.client.delete_snapshot(taken.snapshot_id)

    async def fork(self, box: Any) -> None:
        for child in await box.fork(2):
            await self.compare(child, self.files)
            await child.stop()

    async def reset(self, box: Any) -> None:
        await box.reset()
        self.files = {}

    async def back(self, box: Any) -> None:
        if self.taken:
            snapshot_id, files = self.draw.choice(self.taken)
            await box.reset(to=snapshot_id)
            self.files = dict(files)

    async def leave(self, box: Any) -> None:
        await box.exec(["sh", "-c", "(setsid sleep 0.3 &) >/dev/null 2>&1"])


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_done_with_many_each_has_its_files(served: Any, seed: int) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            await asyncio.gather(*(Player(client, random.Random(10 * seed + number)).play(100) for number in range(6)))

    asyncio.run(main())
