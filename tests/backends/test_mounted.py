"""Read-only files of the caller's: they are there first, and nothing inside can change them or what is found by their path."""

from __future__ import annotations

import asyncio

import pytest

from aviato.exceptions import AviatoValidationError, SandboxFileError
from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.link.link import Process1Link
from aviato.wire.ids import new_sandbox_id

pytestmark = pytest.mark.anyio

PATH = "/workspace/deep/er/tests.json"
CONTENT = b"the truth \xff\n" * 1000
FILES = (
    MountedFile(path=PATH, content=CONTENT),
    MountedFile(path="/etc/app/settings", content=b"x = 1\n"),
    MountedFile(path="/etc/hosts", content=b"instead\n"),
    MountedFile(path="/data", content=b""),
)

ATTACK = """
import ctypes, os, sys
path = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MS_MOVE, MNT_DETACH = 32, 4096, 8192, 2
worked = []

def attempt(what, call):
    try:
        result = call()
    except OSError:
        return
    if result != -1:
        worked.append(what)

def reopened():
    fd = os.open(path, os.O_RDONLY)
    return os.write(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), b"evil")

def system(call, *arguments):
    return lambda: getattr(libc, call)(*arguments)

p = path.encode()
attempt("write", lambda: open(path, "w"))
attempt("append", lambda: open(path, "a"))
attempt("truncate", lambda: os.truncate(path, 0))
attempt("write through /proc", reopened)
attempt("chmod", lambda: os.chmod(path, 0o777))
attempt("chown", lambda: os.chown(path, 0, 0))
attempt("utime", lambda: os.utime(path))
attempt("setxattr", lambda: os.setxattr(path, "user.x", b"1"))
attempt("unlink", lambda: os.unlink(path))
attempt("rename", lambda: os.rename(path, path + ".old"))
attempt("replace", lambda: (open("/tmp/evil", "w").close(), os.rename("/tmp/evil", path)))
attempt("replace from beside", lambda: (open(path + ".evil", "w").close(), os.rename(path + ".evil", path)))
attempt("link", lambda: os.link(path, path + ".link"))
attempt("umount", system("umount2", p, 0))
attempt("detach", system("umount2", p, MNT_DETACH))
attempt("remount", system("mount", None, p, None, MS_REMOUNT | MS_BIND, None))
attempt("mount over", system("mount", b"/etc/passwd", p, None, MS_BIND, None))
attempt("move", system("mount", p, b"/tmp", None, MS_MOVE, None))
above = os.path.dirname(path)
while above != "/":
    attempt("rename " + above, lambda: os.rename(above, above + ".old"))
    attempt("rmdir " + above, lambda: os.rmdir(above))
    attempt("umount " + above, system("umount2", above.encode(), MNT_DETACH))
    os.makedirs("/x", exist_ok=True)
    attempt("exchange " + above, system("renameat2", -100, b"/x", -100, above.encode(), 2))
    above = os.path.dirname(above)
print(worked)
"""


async def test_they_are_there_before_anything_runs(make_box):
    async with make_box(mounted_files=FILES) as box:
        assert await box.get(PATH) == CONTENT
        _, main = box.start("sh", "-c", f"wc -c < {PATH}; cat /etc/app/settings /etc/hosts /data", main=True)
        assert (await box.finish("", main)).stdout == f"{len(CONTENT)}\nx = 1\ninstead\n"


@pytest.mark.attack
@pytest.mark.parametrize("modern", [True, False], ids=["new kernels", "old kernels"])
async def test_nothing_inside_changes_them(backend, make_box, monkeypatch, modern):
    monkeypatch.setattr(backend, "_modern", modern and backend._modern)
    async with make_box(mounted_files=FILES) as box:
        for path in (PATH, "/etc/app/settings", "/data"):
            result = await box.python(ATTACK, path)
            assert (result.stdout, result.returncode) == ("[]\n", 0), result.stderr
        result = await box.sh("rm -rf /workspace /etc/app /data; mv /workspace /w")
        assert result.returncode != 0
        assert await box.get(PATH) == CONTENT
        with pytest.raises(SandboxFileError):
            await box.put(PATH, b"evil")
        with pytest.raises(SandboxFileError):
            await box.link.remove("/workspace", recursive=True)
        assert (await box.sh(f"cat {PATH} | sha256sum; ls /workspace/deep/er")).stdout.endswith("tests.json\n")
        assert await box.get(PATH) == CONTENT


async def test_what_is_beside_them_stays_writable(make_box):
    async with make_box(mounted_files=FILES) as box:
        result = await box.sh("echo a > a && mv a deep/er/b && cat deep/er/b && stat -c '%a %u' deep/er/tests.json")
        assert (result.stdout, result.stderr) == ("a\n444 0\n", "")
        await box.put("deep/er/b", b"changed")
        assert await box.get("/workspace/deep/er/b") == b"changed"


async def test_what_cannot_be_mounted_is_said_before_anything_starts(backend):
    for path in ("/usr/bin/env", "/usr/new", "/bin/sh", "/lib/x/y"):
        spec = SandboxSpec(
            sandbox_id=new_sandbox_id(),
            image=backend.resolve_image(None),
            mounted_files=(MountedFile(path=path, content=b""),),
        )
        with pytest.raises(AviatoValidationError, match=f"mounted_files: mount_path '{path}'"):
            backend.check(spec)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/workspace", "no regular file"),
        ("/link/x", "'/link' is a link to '/etc'"),
        ("/file/x", "'/file' is no directory"),
        ("/way/out", "no regular file"),
    ],
)
async def test_what_an_image_stands_in_the_way_of_is_no_failure_of_ours(backend, make_box, tmp_path, path, why):
    image = tmp_path / "image"
    (image / "way").mkdir(parents=True)
    (image / "link").symlink_to("/etc")
    (image / "file").touch()
    (image / "way" / "out").symlink_to("/etc/passwd")
    for directory in (image, tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    with pytest.raises(AviatoValidationError, match=why) as caught:
        async with make_box(f"dir:{image}", mounted_files=(MountedFile(path=path, content=b"x"),)):
            pass
    assert not caught.value.is_infrastructure


async def test_a_reason_is_heard_however_late_the_server_speaks(backend, make_box, tmp_path, monkeypatch):
    connect = Process1Link.connect

    async def late(*arguments):
        await asyncio.sleep(0.5)  # the child has failed long before
        return await connect(*arguments)

    monkeypatch.setattr(Process1Link, "connect", late)
    (tmp_path / "image" / "data").mkdir(parents=True)
    for directory in (tmp_path / "image", tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    with pytest.raises(AviatoValidationError, match="no regular file"):
        async with make_box(f"dir:{tmp_path}/image", mounted_files=(MountedFile(path="/data", content=b"x"),)):
            pass


async def test_in_an_image_they_cover_what_is_there(make_box, tmp_path):
    image = tmp_path / "image"
    (image / "data").mkdir(parents=True)
    (image / "data" / "file").write_text("the image's")
    for directory in (image, tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    files = (MountedFile(path="/data/file", content=b"mine"), MountedFile(path="/data/new", content=b"new"))
    async with make_box(f"dir:{image}", mounted_files=files) as box:
        assert (await box.get("/data/file"), await box.get("/data/new")) == (b"mine", b"new")
        with pytest.raises(SandboxFileError):
            await box.put("/data/file", b"evil")
    assert (image / "data" / "file").read_text() == "the image's"
