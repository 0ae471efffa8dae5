"""A sandbox that was made for nobody has the name of whoever gets it, and all else that it had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.images.resolved import ResolvedImage
from aviato.wire.ids import new_sandbox_id
from tests.images.test_stacks import base, stack

__all__ = ["base"]

pytestmark = pytest.mark.anyio
NAMES = "hostname; uname -n; cat /proc/sys/kernel/hostname; tail -n 1 /etc/hosts; cat /etc/hostname 2>/dev/null; true"


def claim(box: Any, image: ResolvedImage | None = None, name: str | None = None) -> str:
    """Give it to somebody; the name."""
    name = name or new_sandbox_id()
    spec = SandboxSpec(sandbox_id=box.id, image=image or box.backend.resolve_image(None))
    box.backend.claim(replace(spec, host_name=name), box.link)
    return name


@pytest.fixture
def image(base: Path) -> ResolvedImage:
    """With files of the machine that made it."""
    for name in ("echo", "hostname", "mkfifo", "sleep", "tail", "uname"):
        (base / "bin" / name).symlink_to("busybox")
    return stack(base, {"etc/hosts": "10.0.0.1 builder", "etc/hostname": "builder\n"})


async def test_all_say_its_name(make_box: Any) -> None:
    async with make_box() as box:
        before = (await box.sh(NAMES)).stdout
        assert before == f"{box.id}\n" * 3 + f"127.0.1.1 {box.id}\n"
        name = claim(box)
        assert (await box.sh(NAMES)).stdout == before.replace(box.id, name)
        again = claim(box, name="short")
        assert (await box.sh(NAMES)).stdout == before.replace(box.id, again)
        assert (await box.sh("cat /etc/hosts")).stdout.count("\n") == 3


async def test_in_an_image(make_box: Any, image: ResolvedImage) -> None:
    async with make_box(image) as box:
        before = (await box.sh(NAMES)).stdout
        assert before == f"{box.id}\n" * 3 + f"127.0.1.1 {box.id}\n{box.id}\n"
        name = claim(box, image)
        assert (await box.sh(NAMES)).stdout == before.replace(box.id, name)
    assert Path(image.layers[0], "etc/hostname").read_text() == "builder\n"


async def test_where_there_is_no_shell(make_box: Any, image: ResolvedImage) -> None:
    for name in ("sh", "cat", "hostname"):
        Path(image.layers[-1], "bin", name).unlink()
    async with make_box(image) as box:
        name = claim(box, image)
        assert (await box.run("busybox", "hostname")).stdout == f"{name}\n"
        assert await box.get("/etc/hostname") == f"{name}\n".encode()


@pytest.mark.parametrize(
    ("before", "shown", "after"),
    [
        ("echo 10.0.0.1 db >>/etc/hosts", "cat /etc/hosts", "127.0.1.1 NAME\n10.0.0.1 db\n"),
        ("echo mine >/etc/hostname", "cat /etc/hostname", "mine\n"),
        ("echo OLD-db xOLD >/etc/hostname", "cat /etc/hostname", "OLD-db xOLD\n"),
        ("rm /etc/hosts /etc/hostname", "cat /etc/hosts /etc/hostname; true", ""),
        ("rm /etc/hosts; echo OLD >other; ln -s /workspace/other /etc/hosts", "cat /etc/hosts", "OLD\n"),
        ("rm /etc/hosts; ln -s /proc/self/environ /etc/hosts", "echo on", "on\n"),
        ("rm -r /etc; ln -s /proc/1 /etc", "echo on", "on\n"),
        ("rm /etc/hosts; mkfifo /etc/hosts; (sleep 1000 >/etc/hosts &)", "echo on", "on\n"),
    ],
    ids=[
        "a line more",
        "another name",
        "words",
        "none",
        "a link",
        "a link of the kernel",
        "a directory of the kernel",
        "a pipe",
    ],
)
async def test_what_somebody_has_put_there(make_box: Any, image: ResolvedImage, before: str, shown: str, after: str) -> None:
    async with make_box(image) as box:
        assert (await box.sh(before.replace("OLD", box.id))).returncode == 0
        name = claim(box, image)
        said = (await box.sh(f"{shown} 2>/dev/null")).stdout
        assert said.endswith(after.replace("NAME", name).replace("OLD", box.id)), said
        assert (await box.sh("hostname")).stdout == f"{name}\n"


async def test_a_file_of_the_caller_s_stays(make_box: Any) -> None:
    given = b"10.0.0.1 given\n"
    async with make_box(mounted_files=(MountedFile(path="/etc/hosts", content=given),)) as box:
        name = claim(box)
        assert (await box.sh("cat /etc/hosts; hostname")).stdout == f"{given.decode()}{name}\n"


async def test_commands_that_ran_before_are_still_found(make_box: Any) -> None:
    """Each is marked by a namespace of names, and its processes by that."""
    async with make_box() as box:
        exec_id, subscription = box.start("sh", "-c", "setsid sleep 1000 & sleep 1000")
        other, others = box.start("sh", "-c", "setsid sleep 1001 & sleep 1001")
        name = claim(box)
        assert (await box.sh("hostname")).stdout == f"{name}\n"
        count = r"cat /proc/[0-9]*/cmdline | tr '\0' '\n' | grep -x '100[01]' | sort | uniq -c"
        await box.sh(rf"until [ $({count} | wc -l) = 2 ] && ! {count} | grep -q '^ *1 '; do :; done 2>/dev/null")
        assert (await box.sh(count)).stdout.split() == ["2", "1000", "2", "1001"]
        await box.link.cancel(exec_id)
        assert (await box.sh(count)).stdout.split() == ["2", "1001"]
        await box.link.cancel(other)
        assert (await box.sh(count)).stdout == ""
        subscription.close()
        others.close()


async def test_it_rests_as_one_that_was_never_claimed(make_box: Any) -> None:
    async with make_box() as box:
        assert (await box.link.rest()).rests
        claim(box)
        assert (await box.link.rest()).rests
        await box.sh("echo 10.0.0.1 db >>/etc/hosts")
        claim(box)
        assert not (await box.link.rest()).rests


async def test_what_a_command_has_put_into_memory_before_keeps_it_in_its_place(make_box: Any) -> None:
    async with make_box() as box:
        await box.sh("echo x >/dev/shm/x")
        claim(box)
        assert not (await box.link.rest()).rests
