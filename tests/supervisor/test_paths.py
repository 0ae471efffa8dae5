"""Where file calls lead: as the kernel has it, but never to what is the kernel's or process 1's own."""

from __future__ import annotations

import os

import pytest

from aviato.exceptions import SandboxFileError
from aviato.server.backends.base import MountedFile
from aviato.trees import tar
from aviato.trees.pack import pack

pytestmark = pytest.mark.anyio

NOTE, LAYER = 5, 6
"""Descriptors of process 1."""


def test_a_tree_ends_where_another_file_system_of_the_kernel_begins(tmp_path):
    for name in ("own/f", "foreign/f", "foreign/deep/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    foreign = (tmp_path / "foreign").stat().st_ino
    top = os.open(tmp_path, os.O_RDONLY)
    archive = b"".join(pack(top, foreign=lambda fd: os.fstat(fd).st_ino == foreign))
    os.close(top)
    members = [item.name for item in tar.Reader().feed(archive) if isinstance(item, tar.Member)]
    assert sorted(members) == [b"./", b"foreign/", b"own/", b"own/f"]


OWN = (
    *("/proc/self/exe", "/proc/self/root", "/proc/self/root/etc", "/proc/self/cwd", f"/proc/self/fd/{LAYER}"),
    *(f"/proc/self/fd/{NOTE}", f"/dev/fd/{LAYER}/workspace", "/proc/thread-self/root", "/proc/1/cwd"),
)
KERNELS = (
    *(
        "/proc/version",
        "/proc/self/maps",
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/kmsg",
        "/proc/mounts",
        "/proc/net/unix",
    ),
    *(
        "/proc/sys/kernel/hostname",
        "/proc/self/comm",
        "/proc/self",
        "/proc/self/fd",
        "/proc/self/task",
        "/dev/fd",
        "/dev/stdin",
    ),
)


async def nothing():
    for piece in ():
        yield piece


async def size_of(reader):
    return sum([len(piece) async for piece in reader])


def calls(box, path):
    """Every file call that goes there, or below."""
    link, below = box.link, f"{path}/x"
    return {
        "read": lambda: box.get(path),
        "read below": lambda: box.get(below),
        "write": lambda: box.put(path, b"x"),
        "write below": lambda: box.put(below, b"x"),
        "write below, larger": lambda: box.put(below, bytes(200_000)),
        "read a tree": lambda: size_of(link.read_tree(path)),
        "write a tree": lambda: link.write_tree(path, nothing()),
        "write a tree below": lambda: link.write_tree(below, nothing()),
        "list": lambda: link.list_files(path),
        "describe below": lambda: link.stat(below),
        "make a directory below": lambda: link.make_directory(below),
        "remove below": lambda: link.remove(below),
    }


async def reason(call):
    try:
        await call()
    except SandboxFileError as error:
        assert not error.is_infrastructure
        return error.reason
    return "done"


async def test_no_file_call_goes_to_what_is_no_file_of_the_sandbox(make_box):
    async with make_box() as box:
        targets = [*OWN, *KERNELS]
        links = "\n".join(f"ln -s {path} link{number}" for number, path in enumerate(targets))
        await box.sh(links)
        wrong = {}
        for number, target in enumerate(targets):
            for path in (target, f"link{number}"):
                for name, call in calls(box, path).items():
                    allowed = {"not_a_regular_file"}
                    if name not in ("read", "write"):
                        # Of a file, or of a name that is not there: nothing has been opened.
                        allowed |= {"not_a_directory", "no_such_file"}
                    if (said := await reason(call)) not in allowed:
                        wrong[f"{name} {path} ({target})"] = said
        assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())
        assert (await box.sh("find / -xdev -name x -o -name '.aviato-*' 2>/dev/null")).stdout == ""
        assert (await box.link.stat("/proc"))["type"] == "directory"
        assert (await box.link.stat("link0"))["link_target"] == targets[0]
        assert "/proc" in [one["path"] for one in await box.link.list_files("/")]


async def test_no_command_begins_in_what_process_1_has_open(make_box):
    async with make_box() as box:
        for number, target in enumerate(path for path in OWN if not path.endswith(("exe", f"/{NOTE}"))):
            await box.sh(f"ln -s {target} link{number}")
            for path in (target, f"link{number}", f"link{number}/."):
                result = await box.run("pwd", cwd=path)
                assert result.error is not None and result.error["reason"] == "not_a_regular_file", path
        assert (await box.run("pwd", cwd="/proc")).stdout == "/proc\n"


async def test_whatever_else_is_read_and_written_as_ever(make_box):
    mounted = (MountedFile(path="/workspace/given", content=b"given"),)
    async with make_box(mounted_files=mounted) as box:
        await box.sh("mkdir d && echo x > d/f && ln -s d/f l && echo x > /dev/shm/f && echo x > /run/f && ln -s /dev/shm shm")
        for path in ("d/f", "l", "/dev/shm/f", "/run/f", "shm/f", "/workspace/../workspace/d/f"):
            assert await box.get(path) == b"x\n", path
        assert await box.get("given") == b"given"
        assert (await box.get("/etc/hosts")).startswith(b"127.0.0.1")
        assert len(await box.get("/usr/bin/env")) > 1000
        for path in ("/dev/shm/new/f", "shm/f2", "/run/g", "/sys/g", "/tmp/a/b"):
            await box.put(path, b"y")
            assert await box.get(path) == b"y", path
