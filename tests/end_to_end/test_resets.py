"""Resets of real sandboxes: what is there afterwards is what a new one has, and what was under way is told so."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import re
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import (
    AsyncClient,
    AviatoValidationError,
    NetworkOptions,
    Sandbox,
    SandboxExecutionError,
    SandboxImageError,
    Secret,
    Session,
)
from aviato.wire.ids import derived_place_id, new_exec_id, new_reset_id, new_sandbox_id, new_snapshot_id
from tests.end_to_end.test_nothing_left import memory_bytes, snapshot
from tests.images.programs import tools
from tests.images.whole_images import make_layout, tar_of

pytestmark = pytest.mark.usefixtures("served")
SEEN = Path(__file__).with_name("seen_inside.sh").read_text()
CALLED = (
    *("sh", "env", "sort", "find", "stat", "cut", "grep", "cat", "tr", "readlink", "sed", "wc", "ls", "hostname", "id"),
    *("mkdir", "rm", "ln", "echo", "chmod", "mkfifo", "sleep", "setsid", "kill", "true"),
)
"""What `seen_inside.sh` and the tests call in an image."""
NUMBERS = re.compile(r"uid=\d+,gid=\d+|/proc/self/fd/\d+|(?<=^/proc )\S+ \S+ \d+")
MESS = """
for place in etc srv var/log home root opt tmp workspace run dev/shm usr/local bin; do
    mkdir -p "/$place/mess"; echo mess >"/$place/mess/file"; chmod 4755 "/$place/mess/file"
done
rm -rf /etc/group /etc/hosts /var/log /srv; mkdir -p /srv; mkfifo /srv/pipe; ln -s /etc/passwd /srv/link
echo mess >>/etc/passwd; chmod 700 /workspace /tmp; hostname mess 2>/dev/null; umask 000; chmod 711 /
trap '' TERM INT HUP
(trap '' TERM INT HUP QUIT; while :; do sleep 1000; done) >/dev/null 2>&1 </dev/null &
setsid sh -c '(sleep 1000 &) >/dev/null 2>&1 </dev/null' >/dev/null 2>&1 </dev/null
sleep 1000 >/dev/null 2>&1 & kill -STOP $!
true
"""
LISTENS = """
import os, socket, time, ctypes
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
held = [socket.socket() for _ in range(3)]
for number, one in enumerate(held):
    one.bind(("127.0.0.1", 7000 + number)); one.listen()
local = socket.socket(socket.AF_UNIX); local.bind("\\0mess"); local.listen()
libc = ctypes.CDLL(None)
libc.shmget(1234, 4096, 0o1666); libc.semget(1234, 1, 0o1666); libc.msgget(1234, 0o1666)
open("/workspace/listens", "w").close()
os.close(1); os.close(2)
time.sleep(1000)
"""


def seen(sandbox: Any, **options: Any) -> list[str]:
    """All that a program in it can see, but ids and times."""
    result = sandbox.exec(["sh", "-c", SEEN], **options).result()
    assert result.returncode == 0 and "== users" in result.stdout, result.stderr
    text = re.sub(r"sb-[0-9a-z]{26}", "ID", result.stdout)
    return [NUMBERS.sub("N", line) for line in text.splitlines()]


def same(first: list[str], second: list[str]) -> None:
    assert first == second, "\n".join(difflib.unified_diff(first, second, lineterm="", n=0))


def run(sandbox: Any, command: str, **options: Any) -> str:
    return str(sandbox.exec(["sh", "-c", command], check=True, **options).result().stdout)


@pytest.fixture
def image(tmp_path: Path) -> str:
    below = {**tools(*CALLED), "tmp/": b"", "etc/passwd": b"root:x:0:0::/:/bin/sh\n", "gone": b"gone"}
    above = {"own": (0o640, 7, 8, b"own"), "var/log/x": b"x"}
    return f"oci:{make_layout(tmp_path / 'image', [tar_of(below), tar_of(above)], {'Env': ['PATH=/bin', 'OF=image']})}"


@pytest.fixture
def begun(session: Session) -> Iterator[list[str]]:
    """Snapshots that the test has made, to be removed."""
    made: list[str] = []
    yield made
    for snapshot_id in made:
        Sandbox.delete_snapshot(snapshot_id, missing_ok=True).result()


def test_of_the_machine_s_files_it_shows_what_a_new_one_shows(session: Session) -> None:
    options: dict[str, Any] = {
        "environment_variables": {"OF": "user"},
        "resources": {"processes": 60, "memory": "300Mi", "disk": "60Mi"},
        "mounted_files": [{"mount_path": "/data/mounted", "file_content": b"mounted"}],
        "secrets": [Secret(store="env", name="HF_TOKEN", env_var="TOKEN")],
    }
    sandbox = session.sandbox(**options)
    new = seen(session.sandbox(**options))
    same(seen(sandbox), new)
    run(sandbox, MESS)
    sandbox.exec(["python3", "-c", LISTENS], check=True).result()
    sandbox.exec(["sh", "-c", "rm -f /data/mounted; echo x >/data/mounted"]).result()
    assert seen(sandbox) != new
    sandbox.exec(["sh", "-c", "cat /dev/zero >/srv/full"], timeout_seconds=2)
    sandbox.exec(["sh", "-c", "b() { b | b & }; b"], timeout_seconds=1)
    time.sleep(0.5)  # the fork bomb goes off, and the disk is full
    before = sandbox.started_at
    assert sandbox.reset().result() is None
    assert sandbox.get_status() == "running" and sandbox.started_at is not None and before is not None
    same(seen(sandbox), new)
    assert run(sandbox, "cat /data/mounted; echo $TOKEN $OF").startswith("mountedhf-token-of-the-tests user")


def test_its_image_is_the_one_that_it_began_with(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the name means another one since, after a reset to a snapshot, and after a restart, while it is here."""
    running = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    layout = tmp_path / "moves"

    def make(which: bytes) -> str:
        shutil.rmtree(layout, ignore_errors=True)
        return f"oci:{make_layout(layout, [tar_of({**tools('cat', 'sh'), 'which': which})], {'Env': ['PATH=/bin']})}"

    async def which(sandbox: Any) -> str:
        return str((await sandbox.exec(["cat", "/which"])).stdout)

    async def main() -> None:
        async with AsyncClient() as client:
            image = make(b"first")
            sandbox = await client.sandbox(container_image=image, detached=True)
            assert await which(sandbox) == "first"
            make(b"second")
            await client.pull_image(image, refresh=True)
            async with await client.sandbox(container_image=image) as other:
                assert await which(other) == "second"
            graded = await sandbox.grade({}, ["cat", "/which"])
            assert (graded.passed, graded.exec_result.stdout) == (True, "first")
            await sandbox.reset()
            assert await which(sandbox) == "first"
            prepared = await sandbox.snapshot()
            await sandbox.reset(to=prepared)
            await asyncio.to_thread(running.stop, signal.SIGTERM)
            await asyncio.to_thread(running.restart)
            await sandbox.reset()
            assert await which(sandbox) == "first"
            await sandbox.reset(to=prepared)
            await client.delete_snapshot(prepared.snapshot_id)
            await client.prune_images()
            with pytest.raises(SandboxImageError, match="another one by now") as caught:
                await sandbox.reset()
            assert caught.value.reason == "image_gone" and await which(sandbox) == "first"
            await sandbox.stop()

    asyncio.run(main())


def test_its_image_is_the_one_that_it_got_in_the_end(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tag moved and the image before was removed while it waited for a place: a snapshot lies over what it runs on."""
    server = make_server(max_sandboxes=1)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    def make(which: bytes) -> str:
        files: dict[str, Any] = {**tools("cat", "sh", "echo"), "which": which}
        return f"oci:{make_layout(tmp_path / which.decode(), [tar_of(files)], {'Env': ['PATH=/bin']})}"

    async def which(sandbox: Any) -> str:
        return str((await sandbox.exec(["sh", "-c", "cat /which /written"])).stdout)

    async def main() -> None:
        async with AsyncClient() as client:
            name = "moving:1"
            before = make(b"first")
            first = await client.pull_image(before, name=name)
            holder = await client.sandbox()
            await holder.exec(["true"])
            sandbox = await client.sandbox(container_image=name)
            second = await client.pull_image(make(b"second"), name=name)
            await client.remove_image(str(first.image_id))
            await holder.stop()
            assert (await sandbox.exec(["sh", "-c", "echo x >/written; cat /which"])).stdout == "second"
            async with _http(server) as call:
                told = json.loads((await call("GET", f"/v1/sandboxes/{sandbox.sandbox_id}"))[1])
            assert told["image_id"] == second.image_id
            # By now the first is here again, by another name.
            await client.pull_image(before, name="another:1")
            taken = await sandbox.snapshot()
            assert await which(sandbox) == "secondx\n"
            await sandbox.reset()
            assert await which(sandbox) == "second"
            await sandbox.stop()
            async with await client.sandbox(container_image=taken.snapshot_id) as later:
                assert await which(later) == "secondx\n"
            await client.delete_snapshot(taken.snapshot_id)

    asyncio.run(main())


def test_of_the_machine_s_python_it_stays_so(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its name means an image of the store since, and after a restart."""
    running = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    image = f"python:3.{sys.version_info.minor}"
    files: dict[str, Any] = {**tools("cat", "sh"), "etc/os-release": b"of the store"}
    layout = make_layout(tmp_path / "pulled", [tar_of(files)], {"Env": ["PATH=/bin"]})

    async def release(sandbox: Any) -> str:
        return str((await sandbox.exec(["cat", "/etc/os-release"])).stdout)

    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox(container_image=image, detached=True) as sandbox:
            before = await release(sandbox)
            prepared = await sandbox.snapshot()
            try:
                await client.pull_image(f"oci:{layout}", name=image)
                async with await client.sandbox(container_image=image) as other:
                    assert await release(other) == "of the store"
                assert (await sandbox.grade({}, ["cat", "/etc/os-release"])).exec_result.stdout == before
                await sandbox.reset()
                assert await release(sandbox) == before
                await asyncio.to_thread(running.stop, signal.SIGTERM)
                await asyncio.to_thread(running.restart)
                await sandbox.reset(to=prepared)
                assert await release(sandbox) == before, "a snapshot lies over what it was taken of"
                await sandbox.reset()
                assert await release(sandbox) == before
            finally:
                await client.delete_snapshot(prepared.snapshot_id)

    asyncio.run(main())


def test_its_snapshot_is_the_one_that_its_name_meant_then(session: Session, tmp_path: Path) -> None:
    name = f"moves-{tmp_path.name.lower()}"
    parent = session.sandbox()
    parent.write_file("which", b"first").result()
    parent.snapshot(name=name).result()
    sandbox = session.sandbox(container_image=name)
    assert sandbox.read_file("which").result() == b"first"
    parent.write_file("which", b"second").result()
    parent.snapshot(name=name).result()
    assert session.sandbox(container_image=name).read_file("which").result() == b"second"
    assert sandbox.grade({}, ["cat", "which"]).result().exec_result.stdout == "first"
    sandbox.reset().result()
    assert sandbox.read_file("which").result() == b"first"


def test_of_an_image_it_shows_what_a_new_one_shows(session: Session, image: str) -> None:
    sandbox = session.sandbox(container_image=image)
    new = seen(session.sandbox(container_image=image), cwd="/")
    same(seen(sandbox, cwd="/"), new)
    run(sandbox, MESS + "rm gone own; echo x >x; rm -r /bin/stat", cwd="/")
    sandbox.reset().result()
    same(seen(sandbox, cwd="/"), new)


def test_of_a_directory_it_shows_what_a_new_one_shows(
    make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for path, content in tools(*CALLED).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (root / path).symlink_to(content)
        else:
            (root / path).write_bytes(content[3])
            (root / path).chmod(0o755)
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(image=f"bare={root}").url)
    with Session() as session:
        sandbox = session.sandbox(container_image="dir:bare")
        new = seen(session.sandbox(container_image="dir:bare"), cwd="/")
        run(sandbox, MESS, cwd="/")
        sandbox.reset().result()
        same(seen(sandbox, cwd="/"), new)
    assert not (root / "srv").exists()


def ends_by_a_reset(call: Callable[[], Any]) -> SandboxExecutionError:
    with pytest.raises(SandboxExecutionError, match="was reset") as caught:
        call()
    assert caught.value.reason == "reset" and not caught.value.is_infrastructure
    return caught.value


def test_what_is_under_way_is_told_so(session: Session) -> None:
    sandbox = session.sandbox(resources={"disk": "2Gi"})
    process = sandbox.exec(["sh", "-c", "echo begun; sleep 1000"])
    assert next(iter(process.stdout.lines())) == "begun"
    fed = sandbox.exec(["sh", "-c", "echo begun; cat >/dev/null"], stdin=True)
    next(iter(fed.stdout.lines()))
    terminal = sandbox.shell(["sh", "-c", "echo begun; sleep 1000"])
    next(iter(terminal.output))
    detached = sandbox.exec(["sh", "-c", "echo kept; sleep 1000"], detach=True)
    next(iter(detached.stdout.lines()))
    assert fed.stdin is not None
    run(sandbox, "mkfifo pipe")
    reading = sandbox.read_file("/workspace/pipe")
    sandbox.reset().result()
    for one in (process, fed, terminal, detached):
        ends_by_a_reset(one.result)
    with pytest.raises(aviato.AviatoError) as caught:
        fed.stdin.write(b"x").result()
    assert not caught.value.is_infrastructure
    with contextlib.suppress(aviato.SandboxFileError):  # A pipe is refused at once.
        ends_by_a_reset(reading.result)
    ends_by_a_reset(sandbox.attach(detached.exec_id).result)
    ends_by_a_reset(sandbox.attach(process.exec_id).result)
    process.cancel()
    assert run(sandbox, "echo x") == "x\n"


def test_a_file_on_its_way_is_told_so(session: Session) -> None:
    sandbox = session.sandbox()
    sandbox.wait()

    def content() -> Iterator[bytes]:
        yield from [b"x" * (1 << 20)] * 16
        sandbox.reset().result()
        yield from [b"x" * (1 << 20)] * 16

    ends_by_a_reset(sandbox.write_file_streaming("/workspace/large", content()).result)
    assert run(sandbox, "ls -A /workspace") == ""


def test_results_of_before_that_nobody_has_fetched(session: Session) -> None:
    sandbox = session.sandbox(detached=True)
    detached = sandbox.exec(["sh", "-c", "echo detached; exit 3"], detach=True)
    kept = detached.exec_id
    deadline = time.monotonic() + 20
    while not run(sandbox, "ls done 2>/dev/null; touch done"):
        assert time.monotonic() < deadline
    assert detached.result().returncode == 3
    other = sandbox.exec(["sh", "-c", "echo other; echo $$ >pid; mv pid other"], detach=True)
    while not run(sandbox, "[ -e other ] && ! kill -0 $(cat other) 2>/dev/null && echo over || true"):
        assert time.monotonic() < deadline
    for _ in range(2):
        sandbox.reset().result()
    assert sandbox.attach(kept).result().stdout == "detached\n"
    assert other.result().stdout == "other\n"
    sandbox.stop().result()


def test_a_result_of_before_that_was_cut_off(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader comes back after the reset: what process 1 left is there, and the command does not run again."""
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox(detached=True)
            exec_id = new_exec_id()
            path = f"/v1/sandboxes/{sandbox.sandbox_id}"
            async with _http(server) as call:
                body = {"exec_id": exec_id, "command": ["sh", "-c", "echo ran >>ran; echo out; exit 5"]}
                await call("POST", f"{path}/execs", body)  # And nobody confirms what it gave.
                long_id = new_exec_id()
                sleeping = asyncio.create_task(
                    call("POST", f"{path}/execs", {"exec_id": long_id, "command": ["sh", "-c", "touch began; sleep 1000"]})
                )
                while (await sandbox.exec(["ls", "began"])).returncode:
                    await asyncio.sleep(0.01)
                await sandbox.reset()
                assert b"was reset" in (await sleeping)[1]
                for method, where, again in (
                    ("POST", f"{path}/execs", body),
                    ("GET", f"{path}/execs/{exec_id}?stdout=0&stderr=0", None),
                ):
                    status, answer = await asyncio.wait_for(call(method, where, again), 20)
                    assert (status, b"out" in answer, b'"returncode": 5' in answer) == (200, True, True), answer
                    status, answer = await asyncio.wait_for(
                        call(
                            method,
                            where.replace(exec_id, long_id),
                            again and {"exec_id": long_id, "command": ["sh", "-c", "touch began; sleep 1000"]},
                        ),
                        20,
                    )
                    assert b"was reset" in answer or b'"signal"' in answer or b"137" in answer, answer
                assert (await sandbox.exec(["ls", "-A"])).stdout == ""
            await sandbox.stop()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def _http(server: Any) -> Any:
    import aiohttp

    path = server.url.removeprefix("unix://")
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as http:

        async def call(method: str, path: str, body: Any = None) -> tuple[int, bytes]:
            data = None if body is None else json.dumps(body).encode()
            async with http.request(method, f"http://server{path}", data=data) as response:
                return response.status, await response.read()

        yield call


@pytest.mark.parametrize("how", ["reset", "snapshot"])
def test_a_late_copy_of_a_request_runs_nothing_again(make_server: Any, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Some proxy held it back until the result had arrived and the sandbox was in another place."""
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox()
            await sandbox.exec(["true"])
            body = {"exec_id": new_exec_id(), "command": ["sh", "-c", "echo ran >>/tmp/ran; echo out"]}
            path = f"/v1/sandboxes/{sandbox.sandbox_id}"
            async with _http(server) as call:
                assert b"out" in (await call("POST", f"{path}/execs", body))[1]
                ack = {"sandbox_id": sandbox.sandbox_id, "exec_id": body["exec_id"], "stdout": 4, "stderr": 0, "done": True}
                await call("POST", "/v1/acknowledgements", {"execs": [ack]})
                for _ in range(2):
                    await getattr(sandbox, how)()
                    answer = (await asyncio.wait_for(call("POST", f"{path}/execs", body), 20))[1]
                    assert b"NOT_FOUND" in answer and b"out" not in answer, answer
            assert (await sandbox.exec(["sh", "-c", "cat /tmp/ran 2>/dev/null | wc -l"])).stdout == {
                "reset": "0\n",
                "snapshot": "1\n",
            }[how]
            await sandbox.stop()

    asyncio.run(main())


def test_the_same_reset_twice_is_one_and_nonsense_is_none(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, _http(served) as call:
            sandbox = await client.sandbox()
            await sandbox.exec(["touch", "x"])
            path = f"/v1/sandboxes/{sandbox.sandbox_id}/resets"
            first, second = new_reset_id(), new_reset_id()
            answers = await asyncio.gather(*(call("PUT", f"{path}/{first}", {}) for _ in range(5)))
            assert {status for status, _ in answers} == {200}
            assert (await sandbox.exec(["ls", "-A"])).stdout == ""
            await sandbox.exec(["touch", "y"])
            assert (await call("PUT", f"{path}/{first}", {}))[0] == 200
            assert (await sandbox.exec(["ls", "-A"])).stdout == "y\n"
            assert (await call("PUT", f"{path}/{second}", {}))[0] == 200
            await sandbox.exec(["touch", "z"])
            assert (await call("PUT", f"{path}/{first}", {}))[0] == 200  # It comes late, and is done.
            assert (await sandbox.exec(["ls", "-A"])).stdout == "z\n"
            for wrong in ("x", "rs-", "rs-" + "!" * 26, new_sandbox_id(), "rs-" + "0" * 300):
                status, answer = await call("PUT", f"{path}/{wrong}", {})
                assert status in (400, 404, 422) and b"not the id of a reset" in answer, (status, answer)
            for body in ({"to": 5}, {"too": None}, {"secret_values": []}, []):
                assert (await call("PUT", f"{path}/{new_reset_id()}", body))[0] in (400, 422)
            assert (await call("PUT", f"/v1/sandboxes/{new_sandbox_id()}/resets/{second}", {}))[0] == 404
            assert (await sandbox.exec(["ls", "-A"])).stdout == "z\n"
            place = derived_place_id(sandbox.sandbox_id, second)
            status, answer = await call("POST", "/v1/sandboxes", {"sandbox_id": place, "detached": True})
            assert status in (400, 422), answer  # Nobody takes another's place.

    asyncio.run(main())


def test_to_a_snapshot(session: Session, begun: list[str]) -> None:
    sandbox = session.sandbox()
    run(sandbox, "echo prepared >text; touch /srv/x")
    taken = sandbox.snapshot("reset-to:1").result()
    begun.append(taken.snapshot_id)
    for to in (taken.snapshot_id, "reset-to:1", taken):
        run(sandbox, "echo other >text; touch more; rm -f /srv/x")
        sandbox.reset(to).result()
        assert run(sandbox, "cat text; ls; ls /srv/x") == "prepared\ntext\n/srv/x\n"
    with pytest.raises(AviatoValidationError, match="no snapshot"):
        sandbox.reset(to="host").result()
    for unknown in (new_snapshot_id(), "nothing-of-that-name:7"):
        with pytest.raises((SandboxImageError, AviatoValidationError), match=r"not here|no snapshot|is not|unknown"):
            sandbox.reset(to=unknown).result()
    with pytest.raises(TypeError):
        sandbox.reset(to=5)  # type: ignore[arg-type]
    assert run(sandbox, "cat text") == "prepared\n"
    [child] = sandbox.fork()
    run(child, "echo child >>text")
    child.reset().result()
    assert run(child, "cat text") == "prepared\n"
    child.reset(to=taken).result()
    sandbox.reset().result()
    assert run(sandbox, "ls -A") == "" and run(child, "cat text") == "prepared\n"
    Sandbox.delete_snapshot(taken.snapshot_id).result()
    with pytest.raises(SandboxImageError, match="was deleted"):
        sandbox.reset(to=taken).result()
    assert run(child, "cat text") == "prepared\n"


def test_one_with_a_main_command_is_refused(session: Session) -> None:
    sandbox = session.sandbox(command="sleep", args=["1000"])
    with pytest.raises(AviatoValidationError, match="main command"):
        sandbox.reset().result()
    assert sandbox.get_status() == "running"


def test_by_await(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox()
            going = asyncio.create_task(sandbox.exec(["sh", "-c", "touch x; sleep 1000"]))
            while (await sandbox.exec(["ls", "x"])).returncode:
                await asyncio.sleep(0.01)
            taken = await sandbox.snapshot()
            await sandbox.reset()
            with pytest.raises(SandboxExecutionError, match="was reset"):
                await going
            assert (await sandbox.exec(["ls", "-A"])).stdout == ""
            await sandbox.reset(to=taken)
            assert (await sandbox.exec(["ls", "-A"])).stdout == "x\n"
            await client.delete_snapshot(taken.snapshot_id)

    asyncio.run(main())


def test_with_resets_stops_and_snapshots_at_once(session: Session) -> None:
    sandbox = session.sandbox()
    sandbox.reset().result()  # During its start.
    several = [sandbox.reset() for _ in range(5)]
    later = [sandbox.exec(["sh", "-c", "echo x"]) for _ in range(10)]
    taking = sandbox.snapshot()
    for one in several:
        one.result()
    for process in later:
        with contextlib.suppress(SandboxExecutionError):
            assert process.result().stdout == "x\n"
    with contextlib.suppress(SandboxExecutionError):
        Sandbox.delete_snapshot(taking.result().snapshot_id).result()
    assert run(sandbox, "echo x") == "x\n"
    others = [session.sandbox() for _ in range(8)]
    for one in others:
        one.wait()
    going = [one.reset() for one in others]
    for one in (*others, sandbox):
        one.stop().result()
    for reset in going:
        with contextlib.suppress(aviato.SandboxError):
            reset.result()
    assert {one.get_status() for one in others} == {"terminated"}
    with pytest.raises(aviato.SandboxNotRunningError):
        sandbox.reset().result()
    with pytest.raises(aviato.SandboxNotRunningError):
        sandbox.exec(["true"]).result()


def test_its_lifetime_goes_on(session: Session) -> None:
    sandbox = session.sandbox(max_lifetime_seconds=3)
    sandbox.wait()
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        sandbox.reset().result()
        time.sleep(0.3)  # a part of its life
    with contextlib.suppress(aviato.SandboxError):
        sandbox.exec(["sleep", "60"]).result()
    assert 2 < time.monotonic() - began < 6
    assert sandbox.get_status() != "running"


def test_its_lifetime_goes_on_over_a_restart(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        sandbox = session.sandbox(detached=True, max_lifetime_seconds=5)
        sandbox.wait()
        began = time.monotonic()
        server.stop(signal.SIGTERM)
        server.restart()
        sandbox.reset().result()
        with contextlib.suppress(aviato.SandboxError):
            sandbox.exec(["sleep", "60"], timeout_seconds=20).result()
        assert 4 < time.monotonic() - began < 8


def test_ports_and_the_way_to_the_network_are_there_again(session: Session) -> None:
    serve = ["python3", "-m", "http.server", "8000"]
    sandbox = session.sandbox(network=NetworkOptions(exposed_ports=[8000], egress_mode=["127.0.0.2"]))
    proxy = run(sandbox, "echo $HTTP_PROXY")
    assert proxy.strip()
    url = None
    for turn in range(3):
        run(sandbox, f"echo {turn} >name")
        sandbox.exec(serve)
        address = sandbox.wait_for_port(8000).result()
        assert url in (None, address)
        url = address
        with urllib.request.urlopen(f"{url}/name", timeout=10) as answer:
            assert answer.read() == f"{turn}\n".encode()
        fetched = sandbox.exec(["python3", "-c", FETCH]).result()
        assert fetched.stdout.strip() == "403", fetched
        sandbox.reset().result()
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(f"{url}/name", timeout=3)


FETCH = """
import urllib.request, urllib.error
try:
    urllib.request.urlopen("http://127.0.0.3:1/", timeout=10)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.parametrize("after_seconds", [0.0, 0.005, 0.02, 0.05])
def test_a_server_that_dies_in_the_middle(make_server: Any, monkeypatch: pytest.MonkeyPatch, after_seconds: float) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        sandboxes = [session.sandbox(detached=True) for _ in range(4)]
        for one in sandboxes:
            run(one, "touch mess; (setsid sleep 1000 &) >/dev/null 2>&1")
        going = [one.reset() for one in sandboxes]
        time.sleep(after_seconds)  # the point of the kill, not a wait
        server.stop(signal.SIGKILL)
        server.restart()
        for one, reset in zip(sandboxes, going, strict=True):
            try:
                reset.result()
            except aviato.SandboxError as error:
                assert error.is_infrastructure
                assert one.get_status() != "running"
            else:
                assert run(one, "ls -A; cat /proc/[0-9]*/comm | grep -c sleep || true") == "0\n"
                run(one, "touch mess")
                one.reset().result()  # Of one that an earlier server has made.
                assert run(one, "ls -A") == ""
            one.stop(missing_ok=True).result()
        places = [*Path(server.state_dir).glob("sandboxes/*")]
        assert not places


def test_nothing_is_left_of_many(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    def turn(sandbox: Sandbox) -> None:
        process = sandbox.exec(["sh", "-c", "echo x; sleep 1000"])
        next(iter(process.stdout.lines()))
        sandbox.reset().result()
        with pytest.raises(SandboxExecutionError):
            process.result()

    def left(before: Any = None) -> Any:
        deadline = time.monotonic() + 15
        while (found := {**snapshot(server, False), "files": 0}) != before and time.monotonic() < deadline:
            if before is None and time.monotonic() > deadline - 14:
                break
            time.sleep(0.1)
        return found

    with Session() as session:
        sandbox = session.sandbox()
        for _ in range(20):
            turn(sandbox)
        before, memory = left(), memory_bytes(server.pid)
        for _ in range(50):
            turn(sandbox)
        after = left(before)
        assert after == before
        assert memory_bytes(server.pid) < memory * 1.1 + (2 << 20)
