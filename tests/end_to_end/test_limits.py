"""Limits as their users see them: asked for, shown, refused, met; blocking and async."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AviatoValidationError, ResourceOptions, Sandbox, SandboxDefaults
from aviato.server.backends.local import facts, groups

MIB = 1 << 20
MACHINE_BYTES = facts.memory_bytes()
PROCESSORS = len(os.sched_getaffinity(0))
GROUPS = bool(groups.find())
"""Whether the kernel keeps memory and processor time here."""
BOMB = ["python3", "-c", "import time; kept = bytearray(b'x') * (150 << 20); time.sleep(20)"]
FILL = ["sh", "-c", "head -c 60000000 /dev/zero > /tmp/big; sleep 20"]


@pytest.fixture(autouse=True)
def _served(served: Any) -> None:
    """All of these use the run's server."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_going_beyond_memory_is_a_result() -> None:
    with Sandbox(resources={"memory": "64Mi"}) as sandbox:
        process = sandbox.exec(BOMB)
        result = process.result()
        assert (result.returncode, result.signal, result.oom_killed, result.timed_out) == (137, 9, True, False)
        assert process.poll() == 137
        with pytest.raises(aviato.SandboxExecutionError) as caught:
            sandbox.exec(BOMB, check=True).result()
        assert caught.value.exec_result is not None and caught.value.exec_result.oom_killed
        assert not caught.value.is_infrastructure
        assert sandbox.exec(["echo", "on"]).result().stdout == "on\n"
        assert (sandbox.status, sandbox.exec_stats["completed_nonzero"]) == ("running", 2)


@pytest.mark.anyio
async def test_going_beyond_memory_and_disk_async() -> None:
    async with Sandbox(resources={"memory": "64Mi", "disk": "16Mi"}) as sandbox:
        result = await sandbox.exec(BOMB)
        assert (result.returncode, result.oom_killed) == (137, True)
        result = await sandbox.exec(FILL)
        assert (result.returncode, result.oom_killed) == (137, False)
        assert result.stderr == "aviato: killed: the sandbox's limit of 16 MiB of disk is reached\n"
        with pytest.raises(aviato.SandboxFileError) as caught:
            await sandbox.write_file("/tmp/more", b"x")
        assert (caught.value.reason, caught.value.is_infrastructure) == ("disk_full", False)
        await sandbox.remove("/tmp/big")
        await sandbox.write_file("/tmp/more", b"x")


def test_going_beyond_the_disk_is_told_by_every_call_that_writes(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * (20 << 20))
    with Sandbox(resources={"disk": "16Mi"}) as sandbox:
        sandbox.write_file("/tmp/kept", b"kept").result()
        calls = [
            lambda: sandbox.upload(tmp_path / "tree", "/tmp/tree"),
            lambda: sandbox.write_file("/tmp/big", b"x" * (17 << 20)),
            lambda: sandbox.write_file_streaming("/tmp/big", [b"x" * MIB] * 17),
        ]
        for call in calls:
            with pytest.raises(aviato.SandboxFileError) as caught:
                call().result()
            assert (caught.value.reason, caught.value.is_infrastructure) == ("disk_full", False)
        assert [info.path for info in sandbox.list_files("/tmp").result()] == ["/tmp/kept"]


def test_the_main_command_out_of_memory_ends_the_sandbox() -> None:
    sandbox = Sandbox(command=BOMB[0], args=BOMB[1:], resources={"memory": "64Mi"})
    sandbox.wait_until_complete().result(20)
    assert (sandbox.status, sandbox.status_reason, sandbox.returncode) == ("failed", "oom", 137)
    with pytest.raises(aviato.SandboxFailedError, match="oom") as caught:
        sandbox.exec(["true"]).result()
    assert not caught.value.is_infrastructure


def test_limits_are_shown_with_their_strength() -> None:
    defaults = SandboxDefaults(resources={"processes": 64, "memory": "1Gi"})
    asked = ResourceOptions(requests={"memory": "192Mi", "disk": "5Gi"}, limits={"memory": "256Mi", "cpu": "500m"})
    with Sandbox(defaults=defaults, resources=asked) as sandbox:
        sandbox.wait()
        shown = sandbox.limits
    assert shown["memory"] == (256 * MIB, "hard" if GROUPS else "watched")
    assert shown["disk"] == (5 << 30, "watched")
    assert shown["processes"] == (64, "hard")
    assert shown["cpu"] == (0.5, "hard" if GROUPS else "none")
    with Sandbox() as sandbox:
        sandbox.wait()
        assert sandbox.limits["processes"].value == 512 and sandbox.limits["disk"].value == 4 << 30
        assert 0 < (sandbox.limits["memory"].value or 0) <= 2 << 30


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"resources": {"gpu": 1}}, "gpu"),
        ({"resources": ResourceOptions(requests={"memory": "4Pi"})}, "4Pi are more than"),
        ({"resources": ResourceOptions(requests={"cpu": 100_000})}, "100000 are more than"),
        ({"resources": {"memory": "4Pi"}}, r"limits\['memory'\]: 4Pi are more than the [\d.]+Gi of this machine"),
        ({"resources": {"memory": MACHINE_BYTES + 1}}, "more than the"),
        ({"resources": {"cpu": PROCESSORS + 1}}, f"{PROCESSORS + 1} are more than the {PROCESSORS} processors of this machine"),
        ({"resources": {"cpu": 100_000}, "strict_limits": True}, "100000 are more than the"),
        ({"resources": {"processes": 1 << 40}}, r"more than the \d+ processes of this machine"),
        ({"resources": {"disk": "4Pi"}}, r"limits\['disk'\]: 4Pi are more than the"),
        ({"resources": {"disk": 1 << 58, "inodes": 64}}, "more than the"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(AviatoValidationError, match=named) as caught:
        Sandbox(**options).start().result()
    assert re.search(named, caught.value.field_violations["resources"])


def test_all_that_the_machine_has_can_be_had() -> None:
    with Sandbox(resources={"memory": MACHINE_BYTES, "cpu": PROCESSORS}) as sandbox:
        assert sandbox.exec(["true"]).result().returncode == 0


def test_a_limit_that_is_not_kept_is_refused_if_they_must_hold() -> None:
    sandbox = Sandbox(resources={"cpu": 1}, strict_limits=True)
    if GROUPS:
        with sandbox:
            assert sandbox.wait().limits["cpu"] == (1, "hard")
        return
    with pytest.raises(AviatoValidationError, match=r"cpu.*strict_limits"):
        sandbox.start().result()


def test_limits_outlive_the_server(make_server: Any) -> None:
    server = make_server()
    with Sandbox(base_url=server.url, resources={"memory": "64Mi"}) as sandbox:
        sandbox.wait()
        server.process.kill()
        server.process.wait()
        server.restart()
        assert sandbox.exec(BOMB).result().oom_killed
        assert sandbox.limits["memory"].value == 64 * MIB
