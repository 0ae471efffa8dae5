"""Limits: asked for, shown with their strength, met, refused."""

from __future__ import annotations

import pytest

import aviato
from aviato.promises.declared import Declared, keeps, limits

TAKES = "import time; kept = bytearray(b'x') * (200 << 20); print(len(kept), flush=True); time.sleep(5)"
SPARE = 8
"""Processes that a backend may have counted for its own."""
FORKS = """
import os, time
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children, flush=True)
time.sleep(10 if children > 48 else 0)  # Where they are watched, until somebody looks.
"""


def test_they_are_shown(session: aviato.Session, declared: Declared) -> None:
    """Every limit is shown with its value and strength; one that is held has the value that was asked for."""
    asked = {"cpu": 1.0, "memory": 256 << 20, "processes": 64, "disk": 512 << 20}
    held = {name: value for name, value in asked.items() if declared.strengths.get(name, "none") != "none"}
    sandbox = session.sandbox(resources=held).wait()
    assert {"cpu", "memory", "processes", "disk"} <= set(sandbox.limits)
    assert {limit.strength for limit in sandbox.limits.values()} <= {"hard", "watched", "none"}
    assert {name: sandbox.limits[name].value for name in held} == held


def test_what_is_not_held_is_refused(session: aviato.Session, declared: Declared) -> None:
    """A limit of strength `none` that is asked for is refused by its name; `cpu` alone only with `strict_limits`."""
    asked = {"memory": "256Mi", "processes": 64, "disk": "1Gi", "cpu": 1}
    for name, value in asked.items():
        if declared.strengths.get(name, "none") == "none":
            with pytest.raises(aviato.AviatoValidationError, match=name):
                session.sandbox(resources={name: value}, strict_limits=True).wait()
    assert session.sandbox(resources={"cpu": 1}).exec(["true"]).result().returncode == 0


@pytest.mark.parametrize("resources", [{"memory": "100000Ti"}, {"cpu": 1_000_000}, {"no-such": 1}], ids=str)
def test_more_than_there_is(session: aviato.Session, declared: Declared, resources: dict[str, object]) -> None:
    """What no machine of the server has is refused by its name; of a cluster, which may grow, it is why the sandbox waits."""
    if "cpu" in resources and declared.strengths.get("cpu", "none") == "none":
        pytest.skip(f"{declared.backend!r} declares no strength of the limit 'cpu'")
    name = next(iter(resources))
    try:
        sandbox = session.sandbox(resources=resources)
        with pytest.raises(aviato.AviatoError) as caught:
            sandbox.wait(30)
    except (ValueError, TypeError) as error:
        assert name in str(error)
    else:
        assert name in str(caught.value)


@limits("memory")
def test_memory(session: aviato.Session) -> None:
    """Going over the memory limit kills the command: a result with `oom_killed` and 137, and a matter of the task."""
    sandbox = session.sandbox(resources={"memory": "128Mi"})
    result = sandbox.exec(["python3", "-c", TAKES]).result()
    assert (result.returncode, result.oom_killed, result.timed_out) == (137, True, False)
    assert sandbox.exec(["echo", "goes on"]).result().stdout == "goes on\n"


@limits("memory")
def test_memory_of_the_main_command(session: aviato.Session) -> None:
    """The main command's own OOM ends the sandbox: `failed` with 137, and calls afterwards raise no infrastructure error."""
    sandbox = session.sandbox(command="python3", args=["-c", TAKES], resources={"memory": "128Mi"})
    sandbox.wait_until_complete(raise_on_termination=False).result()
    assert (sandbox.status, sandbox.returncode) == ("failed", 137)
    with pytest.raises(aviato.SandboxFailedError) as caught:
        sandbox.exec(["true"]).result()
    assert not caught.value.is_infrastructure


@limits("processes")
def test_processes(session: aviato.Session, declared: Declared) -> None:
    """Processes over the limit are not made (hard), or the command that made them is killed (watched)."""
    sandbox = session.sandbox(resources={"processes": 40})
    result = sandbox.exec(["python3", "-c", FORKS]).result()
    if declared.strengths["processes"] == "hard":
        assert 5 < int(result.stdout) <= 40 + SPARE
    else:
        assert result.returncode == 137 and result.signal == 9
    sandbox.reset().result()
    assert sandbox.exec(["echo", "goes on"]).result().stdout == "goes on\n"


@limits("disk")
@keeps("disk")
def test_disk(session: aviato.Session) -> None:
    """Over the disk limit: 137 or an error of the write, writing files is `disk_full`, and reading and removing go on."""
    sandbox = session.sandbox(resources={"disk": "32Mi"})
    sandbox.write_file("kept", b"kept").result()
    result = sandbox.exec(["sh", "-c", "head -c 80000000 /dev/zero > big && sleep 20"]).result()
    assert result.returncode != 0 and not result.oom_killed
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.write_file("more", b"x" * (40 << 20)).result()
    assert (caught.value.reason, caught.value.is_infrastructure) == ("disk_full", False)
    assert sandbox.read_file("kept").result() == b"kept"
    sandbox.remove("big").result()
    sandbox.write_file("more", b"x").result()
