"""The store, the disk and the backend fail and recover; the server is killed at each point, and at it alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato.rl import Task, evaluate
from aviato.server.fault_injection import OF_MOVES, POINTS
from aviato.server.operations.exec_stream import RUN_HOLD_BACK_SECONDS
from tests.endings.conftest import until
from tests.faults.conftest import FaultyServer, faulty_server


@pytest.fixture(scope="module")
def faulty(_private_environment: None) -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _disarmed(faulty: FaultyServer) -> Iterator[None]:
    yield
    if faulty.died:
        faulty.start()
    faulty.disarm()


def hits(server: FaultyServer, point: str) -> int:
    return sum(hit[1] == point for hit in server.hits)


def hurried(server: FaultyServer, **fields: Any) -> aviato.Sandbox:
    """One that gives up soon."""
    return aviato.Sandbox(defaults=aviato.SandboxDefaults(base_url=server.url, reconnect_timeout_seconds=0.5), **fields)


def test_a_store_that_cannot_be_written_refuses_creates_and_holds_up_nothing_else(faulty: FaultyServer) -> None:
    with aviato.Sandbox(base_url=faulty.url) as old, aviato.Sandbox(base_url=faulty.url) as stopped:
        old.wait()
        stopped.wait()
        before = hits(faulty, "store.before")
        faulty.arm("fail", "store.before")
        with pytest.raises(aviato.SandboxUnavailableError, match="store cannot be written") as caught:
            hurried(faulty).start().result()
        assert (caught.value.reason, caught.value.is_infrastructure, caught.value.retryable) == ("store", True, True)
        assert old.exec(["echo", "still"]).result().stdout == "still\n"
        waiting = aviato.Sandbox(base_url=faulty.url)
        starting = waiting.start()
        stopped.stop().result()
        assert stopped.get_status() == "terminated" and hits(faulty, "store.before") > before + 2
        faulty.disarm()
        starting.result(20)
        assert waiting.exec(["echo", "new"]).result().stdout == "new\n"
        waiting.stop().result()
        time.sleep(1.5)  # a round of the reaper
        faulty.kill()
        faulty.start()
        assert stopped.get_status() == "terminated" and old.exec(["echo", "on"]).result().stdout == "on\n"


def test_files_stay_though_a_full_disk_kept_their_sandbox_off_the_record(make_faulty: Callable[..., FaultyServer]) -> None:
    """What the next server finds on record is a sandbox that nobody was told of."""
    server = make_faulty(max_sandboxes=1)
    with aviato.Sandbox(base_url=server.url) as first:
        first.wait()
        box = aviato.Sandbox(base_url=server.url)
        starting = box.start()
        until(lambda: box.get_status() == "pending", 10)
        server.arm("fail", "store.before")
        first.stop().result()
        starting.result(20)
        box.write_file("a/data", b"kept").result()
        server.kill()
        server.start()
        assert box.exec(["cat", "a/data"]).result().stdout == "kept"
        box.stop().result()


def test_a_lease_ends_while_the_store_cannot_be_written(faulty: FaultyServer) -> None:
    """Its sandboxes are gone all the same, and stay gone."""
    from tests.faults.test_trainers import Trainer

    one = Trainer(faulty.url, batch=1)
    one.says("busy")
    faulty.arm("fail", "store.before")
    one.kill()
    until(lambda: not one.commands() and not faulty.places(), 15)
    faulty.disarm()
    until(lambda: not one.sandboxes(), 5)


@pytest.mark.anyio
async def test_a_lease_that_cannot_be_put_on_record_is_tried_again(faulty: FaultyServer) -> None:
    """The first sandbox of a process, or of a loop, brings a lease along."""
    faulty.arm("fail", "store.before")
    soon = aviato.SandboxDefaults(base_url=faulty.url, reconnect_timeout_seconds=0.5)
    async with aviato.AsyncClient(defaults=soon) as client:
        with pytest.raises(aviato.SandboxUnavailableError, match="store cannot be used") as caught:
            await client.sandbox()
    assert (caught.value.reason, caught.value.is_infrastructure, caught.value.retryable) == ("store", True, True)
    async with aviato.AsyncClient(defaults=aviato.SandboxDefaults(base_url=faulty.url)) as client:
        before = hits(faulty, "store.before")
        starting = asyncio.create_task(client.sandbox())
        while hits(faulty, "store.before") == before:
            await asyncio.sleep(0.01)
        faulty.disarm()
        box = await starting
        assert (await box.exec(["echo", "new"])).stdout == "new\n"
        await box.stop()


@pytest.mark.anyio
async def test_a_client_that_leaves_while_its_server_is_away_leaves_nothing(faulty: FaultyServer) -> None:
    """Its process lives on, and that is its lease."""
    async with aviato.AsyncClient(base_url=faulty.url) as client:
        box = await client.sandbox(tags=["leaves"])
        assert (await box.exec(["echo", "here"])).stdout == "here\n"
        faulty.kill()
        starting = asyncio.create_task(asyncio.to_thread(faulty.start))
    await starting
    deadline = time.monotonic() + 10
    while await aviato.Sandbox.list(tags=["leaves"], base_url=faulty.url):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_a_sandbox_for_one_command_ends_with_it_whichever_server_sees_the_end(faulty: FaultyServer) -> None:
    with aviato.Session(aviato.SandboxDefaults(base_url=faulty.url)) as session:
        evaluation = evaluate([Task(command=["sleep", "3"])], session=session)
        until(lambda: any(box.started_at for box in aviato.Sandbox.list(base_url=faulty.url).result()), 10)
        time.sleep(3 * RUN_HOLD_BACK_SECONDS)  # From here on its caller has a part, and comes back for the rest.
        faulty.kill()
        faulty.start()
        assert evaluation.result(30)[0].passed
        until(lambda: not aviato.Sandbox.list(base_url=faulty.url).result(), 5)


@pytest.mark.parametrize("point", ["fork.before", "hello.before"])
def test_a_backend_that_makes_no_sandbox_fails_the_start_alone(faulty: FaultyServer, point: str) -> None:
    with aviato.Sandbox(base_url=faulty.url) as old:
        old.wait()
        faulty.arm("fail", point)
        for make in (
            lambda box: box.wait(),
            lambda box: box.exec(["true"]).result(),
            lambda box: asyncio.run(_awaited(box.exec(["true"]))),
        ):
            with pytest.raises(aviato.SandboxFailedError, match="armed by a test") as caught:
                make(aviato.Sandbox(base_url=faulty.url))
            assert (caught.value.reason, caught.value.is_infrastructure) == ("start_failed", True)
        faulty.disarm()
        assert old.exec(["echo", "still"]).result().stdout == "still\n"
        with aviato.Sandbox(base_url=faulty.url) as new:
            assert new.exec(["echo", "new"]).result().stdout == "new\n"
    until(lambda: not faulty.places(), 10)


async def _awaited(process: aviato.Process) -> aviato.ProcessResult:
    return await process


def test_a_supervisor_that_cannot_be_reached_at_first_is_not_given_up(faulty: FaultyServer) -> None:
    with aviato.Sandbox(base_url=faulty.url) as box:
        box.write_file("kept", b"here").result()
        faulty.kill()
        before = hits(faulty, "hello.before")
        faulty.start(armed="fail hello.before")
        until(lambda: hits(faulty, "hello.before") > before + 1, 5)
        faulty.disarm()
        assert box.exec(["cat", "kept"]).result().stdout == "here"


def test_a_full_disk_is_a_gap_in_what_is_kept_and_stalls_nothing(faulty: FaultyServer) -> None:
    with aviato.Sandbox(base_url=faulty.url) as box:
        faulty.arm("fail", "disk.before")
        process = box.exec(["sh", "-c", "head -c 3000000 /dev/zero; echo over >> ended; exit 3"], detach=True)
        until(lambda: any(one.path.endswith("ended") for one in box.list_files(".").result()), 20)
        with pytest.raises(aviato.SandboxExecutionError, match="could not keep") as caught:
            process.result()
        assert (caught.value.reason, caught.value.is_infrastructure) == ("output_gap", True)
        faulty.disarm()
        assert box.exec(["echo", "kept"], detach=True).result().stdout == "kept\n"


LOSES_ITS_END = "touch begun; while [ ! -e go ]; do sleep 0.01; done; seq 50000; exit 5"


def lost_end(faulty: FaultyServer, box: aviato.Sandbox) -> str:
    """A detached command of whose output the disk took nothing, found again by another server."""
    process = box.exec(["sh", "-c", LOSES_ITS_END], detach=True)
    until(lambda: any(one.path.endswith("begun") for one in box.list_files(".").result()), 20)
    faulty.arm("fail", "disk.before")
    box.write_file("go", b"").result()
    with pytest.raises(aviato.SandboxExecutionError, match="could not keep"):
        process.result()
    until(lambda: any((faulty.state / "state" / "serve").rglob(f"{process.exec_id}/exit")), 20)
    faulty.disarm()
    faulty.kill()
    faulty.start()
    return process.exec_id


def test_the_end_of_output_that_a_full_disk_lost_is_a_gap_after_a_restart_too(faulty: FaultyServer) -> None:
    with aviato.Sandbox(base_url=faulty.url) as box:
        exec_id = lost_end(faulty, box)
        for _ in range(2):
            with pytest.raises(aviato.SandboxExecutionError, match="could not keep") as caught:
                box.attach(exec_id).result(30)
            assert caught.value.reason == "output_gap"
        again = box.attach(exec_id, stdout_offset=288_894).result(30)
        assert (again.returncode, again.stdout) == (5, "")


FORGETS_WHERE_IT_ENDS = "from aviato.server.service.output.ring import Ring; Ring.ends_at = lambda *_: None\n"


def test_a_server_that_contradicts_itself_again_and_again_is_given_up(_private_environment: None) -> None:
    with faulty_server(first=FORGETS_WHERE_IT_ENDS) as faulty, hurried(faulty) as box:
        exec_id = lost_end(faulty, box)
        with pytest.raises(aviato.SandboxUnavailableError, match="the exit came before all output") as caught:
            box.attach(exec_id).result(30)
        assert (caught.value.reason, caught.value.is_infrastructure) == ("stream_cut", True)


@pytest.mark.parametrize("left", [b"", b'{"returncode": 0', bytes(64)], ids=["empty", "cut", "zeros"])
def test_a_result_that_a_crash_of_the_machine_cut_off_is_none_and_harms_nothing_else(faulty: FaultyServer, left: bytes) -> None:
    with aviato.Sandbox(base_url=faulty.url) as box:
        lost, kept = (box.exec(["echo", word], detach=True) for word in ("lost", "kept"))
        assert [lost.result().stdout, kept.result().stdout] == ["lost\n", "kept\n"]
        faulty.kill()
        (found,) = (faulty.state / "state" / "serve").rglob(f"{lost.exec_id}/exit")
        found.write_bytes(left)
        (found.parents[1] / kept.exec_id.replace("ex-", "ex-z")).write_bytes(b"no command")
        faulty.start()
        try:
            assert box.attach(lost.exec_id).result(30).stdout == "lost\n"  # Its process 1 was not told that it was kept.
        except aviato.SandboxExecutionError as error:
            assert error.reason == "exec_not_found"
        assert box.attach(kept.exec_id).result(30).stdout == "kept\n"
        assert box.exec(["echo", "new"]).result().stdout == "new\n"
        with aviato.Sandbox(base_url=faulty.url) as other:
            assert other.exec(["echo", "new"]).result().stdout == "new\n"


KILLED = [name for name in POINTS if name not in ("disk.before", *OF_MOVES)]


@pytest.mark.long
@pytest.mark.parametrize("point", KILLED)
def test_killed_at(faulty: FaultyServer, point: str) -> None:
    """Whatever the client was about: it comes back, and its call gives what it would have given."""
    with aviato.Sandbox(base_url=faulty.url) as old:
        old.wait()
        faulty.arm("kill", point)

        async def life() -> str:
            async with aviato.Sandbox(base_url=faulty.url) as box:
                await old.exec(["sh", "-c", "echo 1 >> ran; sleep 0.1; seq 100000; exit 4"])
                result = await box.exec(["sh", "-c", "echo 1 >> ran; sleep 0.1; seq 100000; cat ran; exit 4"])
                assert (result.returncode, result.stdout_bytes_total) == (4, 588_897)
            return box.sandbox_id

        async def both() -> str:
            living = asyncio.create_task(life())
            while not faulty.died and not living.done():
                await asyncio.sleep(0.005)
            if faulty.died:
                await asyncio.to_thread(faulty.start)
            return await living

        sandbox_id = asyncio.run(both())
        until(lambda: faulty.died or hits(faulty, point), 10)
        if faulty.died:
            faulty.start()
        assert old.read_file("ran").result() == b"1\n"
        assert aviato.Sandbox.from_id(sandbox_id, base_url=faulty.url).result().get_status() == "terminated"
    assert faulty.hits[-1][:2] == ("kill", point)


@pytest.mark.parametrize("point", OF_MOVES)
def test_killed_while_a_sandbox_moves(faulty: FaultyServer, point: str) -> None:
    """The next server finishes it: the snapshot is taken once, and nothing of the sandbox is lost."""
    with aviato.Sandbox(base_url=faulty.url, detached=True) as box:
        box.exec(["sh", "-c", "seq 1000 >numbers; mkdir -p d/e; cp numbers d/e; rm /etc/group"], check=True).result()
        faulty.arm("kill", point)
        taking = box.snapshot()
        until(lambda: faulty.died, 20)
        faulty.start()
        taken = taking.result()
        check = ["sh", "-c", "seq 1000 | cmp - numbers && cmp numbers d/e/numbers && test ! -e /etc/group && echo same"]
        assert box.exec(check).result().stdout == "same\n"
        [child] = box.fork()
        with aviato.Sandbox(base_url=faulty.url, container_image=taken.snapshot_id) as other, child:
            assert [one.exec(check).result().stdout for one in (other, child)] == ["same\n"] * 2
        with aviato.Session(aviato.SandboxDefaults(base_url=faulty.url)):
            known = aviato.Sandbox.list_snapshots(base_url=faulty.url).result()
            assert [one.snapshot_id for one in known] == [taken.snapshot_id]
            aviato.Sandbox.delete_snapshot(taken.snapshot_id, base_url=faulty.url).result()
    assert faulty.hits[-1][:2] == ("kill", point)


def test_a_disk_that_fails_while_a_sandbox_moves_is_the_machines_failure(faulty: FaultyServer) -> None:
    with aviato.Sandbox(base_url=faulty.url) as box:
        box.exec(["touch", "file"], check=True).result()
        faulty.arm("fail", "move.before")
        with pytest.raises(aviato.SandboxError) as caught:
            box.snapshot().result()
        assert caught.value.is_infrastructure
        faulty.disarm()
        with pytest.raises(aviato.SandboxError) as caught:
            box.exec(["true"]).result()
        assert caught.value.is_infrastructure
        assert aviato.Sandbox.list_snapshots(base_url=faulty.url).result() == []
