"""Pools of sandboxes that are ready: who gets one finds what a new one has, and what a pool was warmed up with."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AviatoValidationError, Sandbox, SandboxFailedError, SandboxTerminatedError, Session
from aviato.server.backends.local.directories import Directories
from aviato.transport.http import HttpTransport
from tests.images.programs import one_program

SEEN = r"""
exec 2>&1
find / -xdev \( -path /proc -o -path /sys -o -path /usr \) -prune -o -printf '%p %y %m %U:%G %s %l\n' | sort
env | sort; ulimit -a; id; umask; pwd; wc -l </proc/self/cgroup
cut -d' ' -f4- /proc/self/mountinfo | sed 's,self/fd/[0-9]*,self/fd/N,g; s,[ug]id=[0-9]*,id=N,g' | sort -u
grep -Ev '^(Tgid|Ngid|Pid|PPid|NS|Vm|Rss|.*ctxt)' /proc/self/status
set -- /proc/[0-9]*; echo $#; ls -l /proc/self/fd | wc -l; cat /proc/net/dev /proc/net/tcp /proc/net/unix | cut -d: -f1
ls -lA /dev /dev/shm | tr -s ' ' | cut -d' ' -f1,3-5,9-; cat /proc/sysvipc/shm /etc/hosts /etc/hostname
hostname; uname -n; cat /proc/sys/kernel/hostname; bash -c 'echo $HOSTNAME'; python3 -c "$NAMES"
ls -l /proc/1/fd 2>&1 | head -1; tr '\0' ' ' </proc/1/cmdline; cat /proc/1/oom_score_adj /proc/self/oom_score_adj
"""
"""All that can be seen, but for times and numbers of processes."""
NAMES = """
import os, platform, socket
name = socket.gethostname()
print(name, platform.node(), os.uname().nodename, socket.gethostbyname(name), socket.getfqdn())
"""


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as made:
        yield made


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def places(server: Any) -> list[str]:
    """The directories of sandboxes, and of what is to be one."""
    return [path.name for path in Path(server.state_dir, "serve", "sandboxes").iterdir()]


def was_ready(server: Any, sandbox: Any) -> bool:
    """Whether it is in a place that was made for nobody."""
    return sandbox.sandbox_id not in places(server)


def run(sandbox: Any, command: str) -> str:
    return str(sandbox.exec(["sh", "-c", command], check=True).result().stdout)


def full(pool: aviato.Pool) -> None:
    """Wait until all of a pool are ready."""
    eventually(lambda: pool.ready().result() == pool.size)


def seen(sandbox: Any) -> str:
    """What a sandbox shows, but for the name that it has to have.

    The directories on the machine that mounts are of are called after its place; there is no other name anywhere.
    """
    shown = str(sandbox.exec(["sh", "-c", f"NAMES='{NAMES}'\n{SEEN}"], check=True).result().stdout)
    shown = re.sub(r"(?m)^(/\S*sb-)[0-9a-z]{26}(?=.* - )", r"\1PLACE", shown)
    return shown.replace(sandbox.sandbox_id, "ID")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"ports": [8000], "working_dir": "/srv/app", "environment_variables": {"A": "1"}},
    {"resources": {"limits": {"memory": "256Mi", "processes": 40}}, "max_lifetime_seconds": 100},
    {"mounted_files": [{"mount_path": "/data/given", "file_content": b"given"}]},
    {"container_image": aviato.Image.from_("host").run("echo x >/srv/x")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "ports", "resources", "files", "image"])
def test_one_that_was_ready_is_like_a_new_one(server: Any, session: Session, options: dict[str, Any]) -> None:
    with session.pool(1, **options) as pool:
        full(pool)
        claimed, new = pool.sandbox(environment_variables={"B": "2"}), None
        run(claimed, "true")
        assert was_ready(server, claimed)
        more = {**options, "environment_variables": {**options.get("environment_variables", {}), "B": "2"}}
        new = session.sandbox(**more)
        shown = seen(claimed)
        assert shown == seen(new) and shown.count("ID") >= 8
        assert not re.search("sb-[0-9a-z]{26}", shown)
        assert "B=2" in run(claimed, "env")


def test_what_it_is_made_of_is_built_anew_once_it_was_removed(server: Any, session: Session, tmp_path: Path) -> None:
    image = aviato.Image.from_("host").run(f"echo {tmp_path} >/srv/which")

    async def remove(reference: str) -> None:
        async with aviato.AsyncClient() as client:
            await client.remove_image(reference, force=True)

    run(session.sandbox(container_image=image), "true")  # From here on this process knows what is called so.
    asyncio.run(remove(image.build().result().reference))
    with session.pool(1, container_image=image) as pool:
        full(pool)
        claimed = pool.sandbox()
        assert run(claimed, "cat /srv/which") == f"{tmp_path}\n" and was_ready(server, claimed)


def test_who_waits_for_it_asks_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    request = HttpTransport.request

    async def counted(self: Any, method: str, path: str, *others: Any, **more: Any) -> Any:
        if path.startswith("/v1/sandboxes"):  # A lease is renewed, and what has arrived is told, whenever it is time for that.
            asked.append(f"{method} {path}")
        return await request(self, method, path, *others, **more)

    with session.pool(2) as pool:
        full(pool)
        monkeypatch.setattr(HttpTransport, "request", counted)
        for variables in (None, {"A": "1"}):
            box = pool.sandbox() if variables is None else pool.sandbox(environment_variables=variables)
            box.wait()
            assert box.status == "running" and box.started_at is not None
        assert asked == ["POST /v1/sandboxes"] * 2


def test_its_name_stays_its_own(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a later server, a snapshot, a fork and a reset, and of what the server made for it."""
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    shown = "hostname; tail -n 1 /etc/hosts; cat /root/warm"
    with Session() as session, session.pool(1, warmup=["hostname >/root/warm; hostname >/run/warm"]) as pool:
        full(pool)
        box = pool.sandbox()
        name, hosts, warm = run(box, shown).splitlines()
        assert (name, hosts) == (box.sandbox_id, f"127.0.1.1 {name}") and warm != name
        server.stop(signal.SIGKILL)
        server.restart()
        assert run(box, shown).splitlines() == [name, hosts, warm]
        snapshot = box.snapshot().result()
        [child] = box.fork(1)
        assert run(box, shown).splitlines() == [name, hosts, warm] and run(box, "cat /run/warm") == f"{warm}\n"
        for one in (child, session.sandbox(container_image=snapshot.snapshot_id)):
            assert run(one, shown).splitlines() == [one.sandbox_id, f"127.0.1.1 {one.sandbox_id}", warm]
        box.reset().result()
        assert run(box, shown).splitlines() == [name, hosts, name]


def test_one_that_an_earlier_server_had_ready_moves_and_keeps_its_name(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of one at rest leaves it in another place, which is not told what an earlier server knew."""
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    age = "read -r line </proc/1/stat; set -- ${line##*)}; echo ${20}"
    with Session() as session, session.pool(1, warmup=["echo x >>/root/warm"]) as pool:
        full(pool)
        boxes = [pool.sandbox(), session.sandbox()]
        run(boxes[0], "true")
        boxes[1].reset().result()
        before = [run(box, f"hostname; cat /etc/hosts /root/warm 2>&1; {age}").splitlines() for box in boxes]
        assert was_ready(server, boxes[0])
        server.stop(signal.SIGKILL)
        server.restart()
        for box, seen in zip(boxes, before, strict=True):
            box.snapshot().result()
            now = run(box, f"hostname; cat /etc/hosts /root/warm 2>&1; {age}").splitlines()
            assert now[:-1] == seen[:-1] and now[0] == box.sandbox_id and now[-1] != seen[-1]


def test_each_has_what_it_was_given(session: Session) -> None:
    warmup = ["echo warm >/root/warm", ["sh", "-c", "sleep 1000 & echo $A >>/root/warm"]]
    with session.pool(2, warmup=warmup, environment_variables={"A": "1"}, tags=["of-pool"]) as pool:
        full(pool)
        boxes = [pool.sandbox(environment_variables={"B": str(n)}, tags=[f"n{n}"], annotations={"n": str(n)}) for n in range(5)]
        for n, box in enumerate(boxes):
            # Those that were ready, and those that had to be made.
            assert run(box, "cat /root/warm; echo $A $B; cat /proc/[0-9]*/comm | grep -c sleep") == f"warm\n1\n1 {n}\n1\n"
            assert set(box.tags) == {"of-pool", f"n{n}"}
        assert {box.sandbox_id for box in Sandbox.list(tags=["of-pool", "n3"]).result()} == {boxes[3].sandbox_id}
        run(boxes[0], "echo mine >/root/mine")
        assert run(boxes[1], "ls /root") == "warm\n"
        full(pool)


def test_idleness_and_lifetime_begin_with_the_claim(session: Session) -> None:
    with session.pool(1) as pool:
        full(pool)
        time.sleep(1.2)  # It has been ready for longer than the one who gets it may be idle.
        box = pool.sandbox(idle_timeout_seconds=1.0, max_lifetime_seconds=100)
        assert run(box, "echo here") == "here\n"
        eventually(lambda: box.get_status().is_terminal)


def test_a_warm_up_that_fails_is_nobody_s_reward(session: Session) -> None:
    with session.pool(1, warmup=["echo no such thing >&2; exit 3"]) as pool:
        with pytest.raises(SandboxFailedError, match="no such thing") as caught:
            run(pool.sandbox(), "true")
        assert caught.value.is_infrastructure
        assert pool.ready().result() == 0


def test_other_kinds_start_as_any(session: Session) -> None:
    with session.pool(1, warmup=["touch /root/warm"]) as pool:
        full(pool)
        other = pool.sandbox(resources={"limits": {"processes": 77}})
        assert run(other, "hostname; ls /root").split() == [other.sandbox_id, "warm"]
        plain = session.sandbox()
        assert run(plain, "hostname; ls /root").split() == [plain.sandbox_id]


def test_one_that_died_is_not_handed_out(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session, session.pool(2, warmup=["touch /root/warm"]) as pool:
        full(pool)
        names = places(server)
        for name in names:
            pidfd = Directories(Path(server.state_dir, "serve")).find(name)
            assert pidfd is not None
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        eventually(lambda: not {*names} & {*places(server)})
        assert run(pool.sandbox(), "ls /root") == "warm\n"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_another_server_makes_it_anew(make_server: Any, monkeypatch: pytest.MonkeyPatch, sig: signal.Signals) -> None:
    monkeypatch.setattr("aviato.core.pools.AGAIN_SECONDS", 0.5)
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session, session.pool(2, warmup=["touch /root/warm"]) as pool:
        full(pool)
        kept = pool.sandbox()
        run(kept, "echo mine >/root/mine")
        server.stop(sig)
        server.restart()
        assert run(kept, "cat /root/mine; ls /root") == "mine\nmine\nwarm\n"
        assert run(pool.sandbox(), "ls /root") == "warm\n"
        full(pool)
        assert run(pool.sandbox(), "ls /root") == "warm\n"


def test_a_forked_child_that_leaves_the_block_closes_nothing(server: Any, script: Any) -> None:
    done = script(
        """
        import os, sys, aviato
        with aviato.Session() as session, session.pool(1) as pool:
            while pool.ready().result(60) < 1:
                pass
            pid = os.fork()
            if pid == 0:
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert pool.ready().result(60) == 1
        print("ok")
        """,
        AVIATO_BASE_URL=server.url,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_closing_leaves_what_was_handed_out(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        with session.pool(4) as pool:
            full(pool)
            box = pool.sandbox()
            run(box, "true")
        eventually(lambda: len(places(server)) == 1)
        assert run(box, "echo on") == "on\n"
        run(pool.sandbox(), "true")  # As any other.
        forgotten = session.pool(2)
        full(forgotten)
    eventually(lambda: not places(server))


def test_closing_takes_what_is_on_its_way(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        with session.pool(2, warmup=[["sleep", "1"]]):
            eventually(lambda: len(places(server)) == 2)
        eventually(lambda: not places(server), 10)


def test_what_waits_for_a_place_goes_before(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(max_sandboxes=4)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session, session.pool(4) as pool:
        full(pool)
        boxes = [session.sandbox() for _ in range(4)]
        assert [run(box, "echo on") for box in boxes] == ["on\n"] * 4
        eventually(lambda: pool.ready().result() == 0)
        for box in boxes:
            box.stop().result()
        full(pool)


def test_the_first_pool_of_an_image(session: Session, server: Any, tmp_path: Path) -> None:
    """What is made while the image gets its starting layer is ready for those that come once it has one."""
    layout = one_program(tmp_path / "layout", {"own": os.urandom(20)}, {"Entrypoint": ["/program"]})
    with session.pool(2, container_image=layout) as pool:
        full(pool)
        boxes = [pool.sandbox() for _ in range(2)]
        for box in boxes:
            box.wait()
            assert was_ready(server, box)
            box.stop().result()


def test_images_of_the_command_line(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server(warm="host=2")
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        box = session.sandbox()
        while run(box, "true") or not was_ready(server, box):
            box.stop().result()
            box = session.sandbox()
        eventually(lambda: len(places(server)) == 3)
        assert run(box, "hostname").strip() == box.sandbox_id
        box.reset().result()
        assert run(box, "hostname").strip() == box.sandbox_id
    server.stop(signal.SIGTERM)
    assert not places(server)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0,), {}),
        ((1001,), {}),
        (("2",), {}),
        ((1,), {"warmup": "true"}),
        ((1,), {"warmup": [[]]}),
        ((1,), {"command": "true"}),
    ],
)
def test_what_cannot_be_meant(session: Session, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, AviatoValidationError)):
        session.pool(*arguments, **options)


def test_with_await(session: Session) -> None:
    asyncio.run(_with_await(session))


async def _with_await(session: Session) -> None:
    async with session.pool(1, warmup=["touch /root/warm"]) as pool:
        box = pool.sandbox()
        assert (await box.exec(["ls", "/root"])).stdout == "warm\n"


def test_a_lifetime_ends_it(session: Session) -> None:
    with session.pool(1) as pool:
        full(pool)
        box = pool.sandbox(max_lifetime_seconds=1.0)
        with pytest.raises(SandboxTerminatedError):
            box.exec(["sleep", "100"]).result()
