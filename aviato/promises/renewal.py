"""Sandboxes that begin anew, and those that are ready before anybody asks."""

from __future__ import annotations

import time

import pytest

import aviato
from aviato.promises.declared import needs
from aviato.server.backends.capabilities import Capability


def test_a_reset(session: aviato.Session) -> None:
    """`reset()` lets a sandbox begin as just after its start: no file, no process; its variables and id stay."""
    sandbox = session.sandbox(environment_variables={"A": "1"})
    sandbox_id = sandbox.sandbox_id
    sandbox.write_file("f", b"x").result()
    running = sandbox.exec(["sleep", "60"])
    sandbox.exec(["sh", "-c", "(setsid sleep 61.5 &) >/dev/null 2>&1 </dev/null"], check=True).result()
    sandbox.reset().result()
    with pytest.raises(aviato.SandboxExecutionError, match="reset"):
        running.result()
    assert sandbox.list_files(".").result() == [] and sandbox.sandbox_id == sandbox_id
    assert sandbox.exec(["sh", "-c", "ls; echo $A"]).result().stdout == "1\n"
    assert sandbox.get_status() == "running"


@needs(Capability.POOLS)
def test_a_pool(session: aviato.Session) -> None:
    """A sandbox of a pool is warmed up, and has the variables and tags that it was asked for with; no two are one."""
    with session.pool(2, warmup=["echo warm > warm"], tags=["of-a-pool"]) as pool:
        deadline = time.monotonic() + 60
        while pool.ready().result() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        taken = [pool.sandbox(environment_variables={"B": str(number)}, tags=[f"n{number}"]) for number in range(3)]
        look = ["sh", "-c", "cat warm; echo $B; ls; touch own; hostname"]
        said = [one.exec(look).result().stdout.split() for one in taken]
        assert [words[:3] for words in said] == [["warm", str(number), "warm"] for number in range(3)]
        assert [one.tags for one in taken] == [("of-a-pool", f"n{number}") for number in range(3)]


@needs(Capability.POOLS)
def test_times_of_one_of_a_pool(session: aviato.Session) -> None:
    """Lifetimes of a sandbox of a pool count from when it is taken."""
    with session.pool(1) as pool:
        deadline = time.monotonic() + 60
        while not pool.ready().result():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        taken = pool.sandbox(max_lifetime_seconds=1.5)
        assert taken.exec(["echo", "runs"]).result().stdout == "runs\n"
        taken.wait_until_complete(raise_on_termination=False).result()
        assert taken.status_reason == "lifetime"
