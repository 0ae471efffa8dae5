"""`dir:` images and interpreters, in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from aviato.exceptions import SandboxFileError
from aviato.server.backends.local.backend import LocalBackend

pytestmark = pytest.mark.anyio

SEEN = ("/proc/meminfo", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max", "/sys/class")
PROGRAM = r"""
#include <stdio.h>
#include <sys/stat.h>
#include <fcntl.h>
int show(const char *path) {
    FILE *f = fopen(path, "r"); char line[80] = "none\n";
    if (f) fgets(line, 80, f);
    fputs(line, stdout);
    return 0;
}
int main(int argc, char **argv) {
    if (argc > 2) return show(argv[2]);
    if (argc > 1) { int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644); if (fd < 0) { perror(argv[1]); return 1; } }
    FILE *f = fopen("/content", "r"); char line[80] = "";
    if (f) fgets(line, 80, f);
    printf("hello %s", line);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A static program: the image has nothing else, no shell and no Python."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a static program with")
    import subprocess

    folder = tmp_path_factory.mktemp("program")
    (folder / "p.c").write_text(PROGRAM)
    done = subprocess.run([compiler, "-static", "-o", folder / "p", folder / "p.c"], capture_output=True)
    if done.returncode:
        pytest.skip("no static C library")
    return folder / "p"


@pytest.fixture
def image(tmp_path, program):
    root = tmp_path / "odd, name:with\\signs"
    (root / "bin").mkdir(parents=True)
    shutil.copy(program, root / "bin" / "hello")
    (root / "content").write_text("from the image\n")
    return root


async def test_an_image_without_shell_and_python(make_box, image):
    if os.geteuid() == 0:
        tmp = image.parent
        while tmp != Path("/") and not tmp.stat().st_mode & 0o001:
            tmp = tmp.parent
    async with make_box(f"dir:{image}") as box:
        assert (await box.run("hello")).stdout == "hello from the image\n"
        for path in ("/content", "/new", "/bin/new", "/bin/hello2", "/tmp/x", "/workspace/x", "/root/x", "/dev/shm/x"):
            assert (await box.run("hello", path)).returncode == 0, path
        assert (await box.run("hello")).stdout == "hello "
        await box.put("/etc/made/file", b"x")
        assert await box.get("/etc/made/file") == b"x"
        await box.link.remove("/bin/new")
        await box.link.remove("/content")
        names = {entry["path"] for entry in await box.link.list_files("/")}
        assert names == {"/.aviato", "/bin", "/dev", "/etc", "/new", "/proc", "/root", "/run", "/sys", "/tmp", "/workspace"}
        assert (await box.run("python3")).returncode == 127
    assert sorted(path.name for path in image.iterdir()) == ["bin", "content"]
    assert (image / "content").read_text() == "from the image\n"
    assert sorted(os.listdir(image / "bin")) == ["hello"]


async def test_programs_of_an_image_see_the_limits(make_box, image, backend):
    groups = dict(backend._facts.groups)
    async with make_box(f"dir:{image}", limits={"cpu": 0.5, "memory": 256 << 20, "processes": 40}) as box:
        shown = {path: (await box.run("hello", "-", path)).stdout.split() for path in SEEN}
        assert shown["/proc/meminfo"] == ["MemTotal:", str(256 << 10), "kB"]
        if not groups:
            assert shown["/sys/fs/cgroup/cpu.max"] == ["50000", "100000"]
        assert shown["/sys/fs/cgroup/memory.max"] == [str(256 << 20)]
        assert shown["/sys/class"] == ["none"]
        assert (await box.run("hello")).stdout == "hello from the image\n"
        await box.put("/content", b"changed")
        assert (await box.run("hello")).stdout == "hello changed"


async def test_two_of_one_image_do_not_meet(make_box, image):
    async with make_box(f"dir:{image}") as one, make_box(f"dir:{image}") as two:
        await one.put("/content", b"changed")
        assert (await one.run("hello")).stdout == "hello changed"
        assert (await two.run("hello")).stdout == "hello from the image\n"


async def test_links_of_an_image_stay_inside(make_box, image, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("proc", "dev", "tmp", "workspace", "run"):
        (image / name).symlink_to(outside)
    async with make_box(f"dir:{image}") as box:
        # What is mounted on is a directory of the sandbox's own, in place of the link; the others lead nowhere.
        await box.run("hello")
    assert list(outside.iterdir()) == []


async def test_the_writable_layer_in_memory(boxes, image, tmp_path):
    backend = LocalBackend(tmp_path / "state", allow_any_directory=True)
    await backend.open()
    backend._upper_in_memory = True
    async with boxes.make_box(backend, f"dir:{image}") as box:
        assert (await box.run("hello", "/content")).returncode == 0
    assert (image / "content").read_text() == "from the image\n"
    await backend.close()


async def test_the_limit_of_the_disk_is_that_of_the_writable_layer(make_box, image):
    os.truncate(image / "content", 32 << 20)
    async with make_box(f"dir:{image}", limits={"disk": 8 << 20}) as box:
        await box.put("/one", b"x" * (6 << 20))
        assert (await box.run("hello")).returncode == 0
        await asyncio.sleep(0.3)  # Counted by now; that it was is what the refusal shows.
        with pytest.raises(SandboxFileError, match="8 MiB of disk"):
            await box.put("/two", b"x" * (4 << 20))
        await box.link.remove("/one", False)
        await box.put("/two", b"x" * (4 << 20))


async def test_each_interpreter_of_this_machine(backend, make_box):
    for interpreter in backend._images._interpreters[:4]:
        image = f"python:{interpreter.version}"
        async with make_box(image) as box:
            for name in ("python", "python3", f"python{interpreter.version}"):
                source = "import sys, ssl, json; print(sys.version_info[1], sys.prefix)"
                result = await box.run(name, "-c", source)
                assert result.stdout.split()[0] == str(interpreter.minor), result.stderr
            target = f"{interpreter.prefix}/x" if interpreter.prefix != "/usr" else "/usr/x"
            assert (await box.run("touch", target)).returncode != 0
