"""Resets: a sandbox is what a new one is, whatever was done to it, and who waited for something in it is told."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

import aviato
from aviato import (
    AsyncClient,
    AviatoValidationError,
    Sandbox,
    SandboxExecutionError,
    SandboxImageError,
    SandboxNotRunningError,
    SandboxTerminatedError,
    Session,
)
from aviato.wire.ids import new_exec_id, new_reset_id
from tests.end_to_end.test_pools import OPTIONS, eventually, places, run, seen

pytestmark = pytest.mark.usefixtures("served")

MESS = r"""
echo x >/root/x; mkdir -p /srv/d/e; ln -s /etc/passwd /srv/l; rm -rf /var/log /etc/hosts; echo y >>/etc/passwd; chmod 700 /tmp
mkfifo /tmp/pipe; truncate -s 1M /workspace/big; echo z >/dev/shm/z; echo r >/run/r; chmod 1777 /
(setsid sh -c 'trap "" TERM INT HUP; while :; do sleep 1; done' >/dev/null 2>&1 &)
(sleep 1000 >/dev/null 2>&1 & kill -STOP $!)
python3 -c '
import os, socket, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        one, two = socket.socket(), socket.socket(socket.AF_UNIX)
        one.bind(("127.0.0.1", 8123)); one.listen(); two.bind("/run/u"); two.listen()
        os.close(1); os.close(2)
        time.sleep(1000)
    os._exit(0)
'
"""


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "ports", "resources", "files"])
def test_it_is_what_a_new_one_is(session: Session, options: dict[str, Any]) -> None:
    box, new = session.sandbox(**options), session.sandbox(**options)
    run(box, MESS)
    assert "x" in run(box, "ls /root")
    box.reset().result()
    assert run(box, "hostname").strip() == box.sandbox_id and run(new, "hostname").strip() == new.sandbox_id
    assert seen(box) == seen(new)
    run(box, MESS)
    box.reset().result()
    run(box, "true")
    assert seen(box) == seen(new)


def test_what_ran_is_told(session: Session) -> None:
    box = session.sandbox()
    running = box.exec(["sleep", "1000"])
    reading = box.exec(["cat"], stdin=True)
    shell = box.shell(["sh"])
    kept = box.exec(["sleep", "1000"], detach=True)
    eventually(lambda: run(box, "cat /proc/[0-9]*/comm").count("sleep") == 2)
    box.reset().result()
    for one in (running, reading, shell, kept):
        with pytest.raises(SandboxExecutionError, match="reset") as caught:
            one.result(30)
        assert caught.value.reason == "reset" and not caught.value.is_infrastructure
    assert run(box, "cat /proc/[0-9]*/comm").count("sleep") == 0


def test_results_of_before_are_there(session: Session) -> None:
    box = session.sandbox()
    kept = box.exec(["sh", "-c", "echo before; exit 3"], detach=True)
    exec_id = kept.exec_id
    eventually(lambda: kept.poll() is not None)
    box.reset().result()
    run(box, "true")
    again = box.attach(exec_id)
    assert (again.result(30).stdout, again.result(30).returncode) == ("before\n", 3)


def test_a_command_of_before_does_not_run_again(session: Session, server: Any) -> None:
    box = session.sandbox()
    box.wait()
    body = {"exec_id": new_exec_id(), "command": ["sh", "-c", "echo ran >>/root/ran; sleep 1000"]}
    path = f"/v1/sandboxes/{box.sandbox_id}/execs"
    first = threading.Thread(target=ask, args=(server, "POST", path, body))
    first.start()
    eventually(lambda: run(box, "cat /root/ran 2>/dev/null || true") == "ran\n")
    box.reset().result()
    first.join(30)
    assert "reset" in ask(server, "POST", path, body)[1]
    assert run(box, "ls -A /root") == ""


def test_the_same_one_is_done_once(session: Session, server: Any) -> None:
    box = session.sandbox()
    run(box, "echo x >/root/x")
    path = f"/v1/sandboxes/{box.sandbox_id}/resets/{new_reset_id()}"
    assert ask(server, "PUT", path, {})[0] == 200
    run(box, "echo y >/root/y")
    assert ask(server, "PUT", path, {})[0] == 200
    assert run(box, "ls /root") == "y\n"
    assert ask(server, "PUT", f"{path}-", {})[0] in (400, 404)


def ask(server: Any, method: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and answer of a request as anybody sends it."""

    async def main() -> tuple[int, str]:
        connector = aiohttp.UnixConnector(server.url.removeprefix("unix://"))
        address = f"http://server{path}"
        async with aiohttp.ClientSession(connector=connector) as http, http.request(method, address, json=body) as answer:
            return answer.status, (await answer.read()).decode(errors="replace")

    return asyncio.run(main())


def test_to_a_snapshot(session: Session) -> None:
    box = session.sandbox(environment_variables={"A": "1"})
    run(box, "echo one >/root/x")
    taken = box.snapshot(name="to-be-reset-to:1").result()
    try:
        for to in (taken, taken.snapshot_id, "to-be-reset-to:1"):
            run(box, "echo two >/root/x; touch /root/y")
            box.reset(to).result()
            assert run(box, "cat /root/x; ls /root; echo $A") == "one\nx\n1\n"
        box.reset().result()
        assert run(box, "ls /root") == ""
        [child] = box.fork()
        run(child, "touch /root/child")
        child.reset().result()
        assert run(child, "ls /root") == ""
        for wrong, error in (
            ("host", AviatoValidationError),
            ("sn-" + "0" * 26, SandboxImageError),
            ("nix:1", AviatoValidationError),
        ):
            with pytest.raises(error):
                box.reset(wrong).result()
        assert run(box, "echo on") == "on\n"
    finally:
        Sandbox.delete_snapshot(taken.snapshot_id).result()


def test_what_cannot_be(session: Session) -> None:
    with pytest.raises(AviatoValidationError, match="main command"):
        session.sandbox(command="sleep", args=["1000"]).reset().result()
    box = session.sandbox()
    box.stop().result()
    with pytest.raises(SandboxNotRunningError):
        box.reset().result()
    for wrong in (1, b"x", ""):
        with pytest.raises((TypeError, AviatoValidationError)):
            session.sandbox(start=False).reset(wrong)  # type: ignore[arg-type]


def test_many_at_once_and_a_stop_among_them(session: Session) -> None:
    box = session.sandbox()
    for one in [box.reset() for _ in range(8)]:
        one.result(60)
    assert run(box, "echo on") == "on\n"
    resets = [box.reset() for _ in range(3)]
    box.stop().result()
    for one in resets:
        try:
            one.result(60)
        except SandboxNotRunningError:
            pass
    assert box.get_status().is_terminal


def test_its_lifetime_goes_on(session: Session) -> None:
    box = session.sandbox(max_lifetime_seconds=4.0)
    box.wait()
    began = time.monotonic()
    with pytest.raises((SandboxTerminatedError, SandboxExecutionError)):
        while True:
            box.reset().result()
            box.exec(["sleep", "0.5"]).result()
    assert time.monotonic() - began < 30


def test_ports_and_the_way_to_the_network(session: Session) -> None:
    box = session.sandbox(ports=[8000], network=aviato.NetworkOptions(egress_mode=["example.org"]))
    serve = ["python3", "-m", "http.server", "8000", "-d", "/srv"]
    for n in range(3):
        run(box, f"mkdir -p /srv && echo {n} >/srv/n")
        serving = box.exec(serve)
        url = box.wait_for_port(8000).result()
        assert requests.get(f"{url}/n", timeout=20).text == f"{n}\n"
        assert run(box, "echo ${https_proxy:+proxy}") == "proxy\n"
        box.reset().result()
        with pytest.raises(SandboxExecutionError):
            serving.result(30)


def test_secrets_are_there_again(make_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush")
    server = make_server(secrets_dir=tmp_path)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        box = session.sandbox(secrets=[aviato.Secret(store="file", name="token", env_var="TOKEN")])
        assert run(box, "echo $TOKEN") == "hush\n"
        box.reset().result()
        assert run(box, "echo $TOKEN") == "hush\n"


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 0.1])
def test_a_server_that_is_killed_meanwhile(make_server: Any, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        box = session.sandbox(environment_variables={"A": "1"})
        run(box, "echo x >/root/x")
        going = box.reset()
        time.sleep(seconds)
        server.stop(signal.SIGKILL)
        server.restart()
        going.result(60)
        assert run(box, "ls /root; echo $A") == "1\n"
        eventually(lambda: len(places(server)) == 1)


def test_nothing_is_left(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Session() as session:
        box = session.sandbox(ports=[8000])
        for _ in range(5):
            box.reset().result()
        eventually(lambda: len(places(server)) == 1)
        before = descriptors(server)
        for n in range(20):
            run(box, f"sleep {1000 + n} & touch /root/{n}")
            box.reset().result()
        eventually(lambda: len(places(server)) == 1 and descriptors(server) < before + 10)


def descriptors(server: Any) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def test_by_await(session: Session) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            box = await client.sandbox()
            await box.write_file("/root/x", b"x")
            taken = await box.snapshot()
            process = box.spawn(["sleep", "1000"])
            running = asyncio.ensure_future(process)
            assert await process.started()
            await box.reset()
            with pytest.raises(SandboxExecutionError):
                await running
            assert (await box.exec(["ls", "/root"])).stdout == ""
            await box.reset(taken)
            assert (await box.exec(["ls", "/root"])).stdout == "x\n"
            await client.delete_snapshot(taken.snapshot_id)
            await box.stop()

    asyncio.run(main())
