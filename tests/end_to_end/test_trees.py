"""Directory trees in and out, in both worlds."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from aviato.core import transfer
from aviato.trees.pack import pack

MAKE_TREE = r"""
import os, sys
os.umask(0)
top = os.fsencode(sys.argv[1])
os.makedirs(top + b"/a/b/c"); os.makedirs(top + b"/empty/er")
files = {b"plain": 0o644, b"a/program": 0o755, b"a/b/secret": 0o600, b"a/n\xff\xfe.txt": 0o640, b"l" * 255: 0o644}
for name, mode in files.items():
    with open(top + b"/" + name, "wb") as file:
        file.write(name * 1000)
    os.chmod(top + b"/" + name, mode)
os.symlink(b"b/secret", top + b"/a/in"); os.symlink(b"../plain", top + b"/a/up"); os.symlink(b"gone\xff", top + b"/dangling")
long = top + b"/" + b"/".join([b"x" * 100] * 8)
os.makedirs(long); open(long + b"/end", "wb").close()
open(top + b"/with\nnewline \xc3\xa9", "wb").close()
os.chmod(top + b"/a/b", 0o500)
for number, name in enumerate((b"plain", b"a/program", b"a/b/c", b"empty", b"a/b", b"a")):
    os.utime(top + b"/" + name, (0, 10**9 + number))
"""


def snapshot(top: Path | str) -> dict[bytes, Any]:
    """All that a copy keeps, by name below the top."""
    found: dict[bytes, Any] = {}
    root = os.fsencode(top)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            content: Any = None
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, root)] = (stat.S_IFMT(info.st_mode), info.st_mode & 0o777, int(info.st_mtime), content)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "from"
    subprocess.run([sys.executable, "-I", "-c", MAKE_TREE, str(top)], check=True)
    return top


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_tree_in_and_out(sandbox: Sandbox, tree: Path, tmp_path: Path) -> None:
    before = snapshot(tree)
    assert len(before) > 20
    sandbox.upload(tree, "in/here").result()
    sandbox.exec(["python3", "-I", "-c", MAKE_TREE, "/tmp/made"], check=True).result()
    assert sandbox.exec(["diff", "-r", "--no-dereference", "in/here", "/tmp/made"]).result().stdout == ""
    assert sandbox.exec(["test", "-x", "in/here/a/program"]).result().returncode == 0
    for name in ("in/here", "/tmp/made"):
        target = tmp_path / name.replace("/", "-")
        sandbox.download(name, target).result()
        # What a program inside makes has times of its own, but for those that it sets.
        assert {name for name, entry in snapshot(target).items() if entry[2] == before[name][2]} >= {b"plain", b"a/b", b"a"}
        assert {name: (*e[:2], e[3]) for name, e in snapshot(target).items()} == {n: (*e[:2], e[3]) for n, e in before.items()}
    assert snapshot(tmp_path / "in-here") == before
    assert sorted(os.listdir(tmp_path)) == ["-tmp-made", "from", "in-here"]
    assert [one.path for one in sandbox.list_files("in").result()] == ["/workspace/in/here"]


async def _async_round_trip(url: str, tree: Path, target: Path) -> None:
    async with AsyncClient(base_url=url) as client, await client.sandbox() as sandbox:
        await sandbox.upload(tree, "in")
        await sandbox.download("in", target)
        await sandbox.upload(tree / "plain", "one/file")
        await sandbox.download("one/file", target / "one")
        with pytest.raises(aviato.SandboxFileError) as caught:
            await sandbox.download("none", target / "none")
        assert (caught.value.reason, caught.value.filepath) == ("no_such_file", "none")
        for wrong, error in (("", ValueError), (b"x", TypeError), ("a\0b", ValueError)):
            for call in (sandbox.read_file, sandbox.stat, sandbox.list_files, sandbox.remove, sandbox.make_directory):
                with pytest.raises(error):
                    await call(wrong)  # type: ignore[operator]
            with pytest.raises(error):
                await sandbox.upload(wrong, "x")  # type: ignore[arg-type]
            with pytest.raises(error):
                await sandbox.download("x", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="bytes, not str"):
            await sandbox.write_file("x", "text")  # type: ignore[arg-type]


def test_the_same_in_coroutines(served: Any, tree: Path, tmp_path: Path) -> None:
    asyncio.run(_async_round_trip(served.url, tree, tmp_path / "back"))
    assert (tmp_path / "back" / "one").read_bytes() == (tree / "plain").read_bytes()
    (tmp_path / "back" / "one").unlink()
    assert snapshot(tmp_path / "back") == snapshot(tree)

    async def facade() -> None:
        async with Sandbox() as sandbox:
            await sandbox.upload(tree, "in")
            await sandbox.download("in", tmp_path / "again")

    asyncio.run(facade())
    assert snapshot(tmp_path / "again") == snapshot(tree)


def test_into_what_is_there(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "new").write_text("new")
    sandbox.exec(["sh", "-c", "mkdir -p t/d && echo old > t/d/old && echo file > f && ln -s t link"], check=True).result()
    sandbox.upload(source, "link").result()
    assert sorted(one.path for one in sandbox.list_files("t/d").result()) == ["/workspace/t/d/new", "/workspace/t/d/old"]
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.upload(source, "f").result()
    assert (caught.value.reason, caught.value.filepath) == ("not_a_directory", "f")
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.upload(source, "f/below").result()
    assert caught.value.reason in ("not_a_directory", "file_exists")
    sandbox.download("link", tmp_path / "there").result()
    (tmp_path / "there" / "mine").write_text("mine")
    sandbox.download("t", tmp_path / "there").result()
    assert sorted(os.listdir(tmp_path / "there")) == ["d", "mine"]
    (tmp_path / "file").write_text("file")
    with pytest.raises(NotADirectoryError):
        sandbox.download("t", tmp_path / "file").result()
    with pytest.raises(IsADirectoryError):
        sandbox.download("f", tmp_path / "there").result()
    with pytest.raises(FileNotFoundError, match="no such directory"):
        sandbox.download("f", tmp_path / "none" / "x").result()
    with pytest.raises(FileNotFoundError):
        sandbox.download("t", tmp_path / "none" / "x").result()
    with pytest.raises(FileNotFoundError):
        sandbox.upload(tmp_path / "none", "x").result()
    # A directory takes over the root of the sandbox too, over what lies on other file systems.
    (source / "dev").mkdir()
    (source / "tmp").mkdir()
    (source / "tmp" / "x").write_text("x")
    sandbox.upload(source, "/").result()
    assert sandbox.read_file("/tmp/x").result() == b"x"
    sandbox.upload(source, "/dev/shm").result()
    assert sandbox.read_file("/dev/shm/tmp/x").result() == b"x"


def test_what_leads_out_is_refused_by_name(sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sandbox.exec(
        ["sh", "-c", "mkdir -p t/d && echo 1 > t/file && ln -s /etc/passwd t/d/out && mkfifo t/pipe"], check=True
    ).result()
    with pytest.raises(aviato.SandboxFileError, match="'d/out' is a link to '/etc/passwd'") as caught:
        sandbox.download("t", tmp_path / "t").result()
    assert (caught.value.reason, caught.value.filepath, caught.value.is_infrastructure) == ("hostile_archive", "t", False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="outside_links"):
        sandbox.download("t", tmp_path / "t", outside_links="keep")  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "aviato"):
        sandbox.download("t", tmp_path / "t", outside_links="skip").result()
    assert sorted(os.listdir(tmp_path / "t")) == ["d", "file"]
    assert "'d/out'" in caplog.text
    assert "'pipe'" in caplog.text
    (tmp_path / "t" / "d" / "abs").symlink_to("/etc/passwd")
    sandbox.upload(tmp_path / "t", "back").result()
    assert sandbox.stat("back/d/abs").result().link_target == "/etc/passwd"


def test_what_is_no_file(sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t").mkdir()
    os.mkfifo(tmp_path / "t" / "pipe")
    with caplog.at_level(logging.WARNING, "aviato"):
        sandbox.upload(tmp_path / "t", "t").result()
    assert sandbox.list_files("t").result() == []
    assert "'pipe'" in caplog.text
    with pytest.raises(aviato.AviatoValidationError, match="neither a file nor a directory"):
        sandbox.upload(tmp_path / "t" / "pipe", "x").result()
    sandbox.exec(["mkfifo", "pipe"], check=True).result()
    for path in ("pipe", "/dev/null", "/dev/zero", "/proc/meminfo"):
        with pytest.raises(aviato.SandboxFileError) as caught:
            sandbox.download(path, tmp_path / "x").result(5)
        assert (caught.value.reason, caught.value.filepath) == ("not_a_regular_file", path)
        with pytest.raises(aviato.SandboxFileError) as caught:
            sandbox.write_file(path, b"x").result(5)
        assert caught.value.reason == "not_a_regular_file"
    assert not (tmp_path / "x").exists()


def test_a_file_full_of_holes_has_them_here_too(sandbox: Sandbox, tmp_path: Path) -> None:
    """Who has little room inside can make a file that is as long as any."""
    sandbox.exec(["sh", "-c", "truncate -s 50M holes; echo end >> holes; truncate -s 60M holes"], check=True).result()
    sandbox.download("holes", tmp_path / "holes").result()
    found = (tmp_path / "holes").stat()
    assert found.st_size == 60 << 20 and found.st_blocks * 512 <= 8 << 20
    assert (tmp_path / "holes").read_bytes() == bytes(50 << 20) + b"end\n" + bytes((10 << 20) - 4)
    sandbox.download("holes", tmp_path / "holes").result()
    assert (tmp_path / "holes").stat().st_size == 60 << 20


def test_an_unreadable_or_missing_entry_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.exec(["sh", "-c", "mkdir -p t/d && echo 1 > t/d/closed && chmod 0 t/d/closed"], check=True).result()
    if sandbox.exec(["cat", "t/d/closed"]).result().returncode == 0:  # Where it has users, its root may read what is theirs.
        sandbox.download("t", tmp_path / "t").result()
        assert (tmp_path / "t" / "d" / "closed").stat().st_mode & 0o777 == 0
        shutil.rmtree(tmp_path / "t")
    else:
        with pytest.raises(aviato.SandboxFileError, match="'d/closed': Permission denied") as caught:
            sandbox.download("t", tmp_path / "t").result()
        assert (caught.value.reason, caught.value.filepath) == ("permission_denied", "t")
    assert os.listdir(tmp_path) == []
    sandbox.exec(["sh", "-c", "ln -s loop loop"], check=True).result()
    for path, reason in (("none", "no_such_file"), ("loop", "file"), ("t/d/closed/x", "not_a_directory")):
        with pytest.raises(aviato.SandboxFileError) as caught:
            sandbox.download(path, tmp_path / "t").result()
        assert (caught.value.reason, caught.value.filepath) == (reason, path)
    assert os.listdir(tmp_path) == []


def test_a_tree_that_changes_while_it_is_copied_harms_nobody(sandbox: Sandbox, tmp_path: Path) -> None:
    """Directories become links and FIFOs and back, under process 1 reading and writing, and it answers all along."""
    source = tmp_path / "source"
    for number in range(20):
        (source / f"d{number}").mkdir(parents=True)
        (source / f"d{number}" / "f").write_text("x" * 1000)
    sandbox.upload(source, "t").result()
    swapping = sandbox.exec(
        [
            "python3",
            "-I",
            "-c",
            """
import glob, os, random, shutil
while True:
    for place in ("t", *glob.glob("t/.aviato-*"), *glob.glob(".aviato-*")):
        name = f"{place}/d{random.randrange(20)}"
        try:
            kind = random.randrange(5)
            if kind == 0: os.rename(name, name + "-"); os.symlink("/proc/self", name)
            elif kind == 1: os.rename(name + "-", name)
            elif kind == 2: os.unlink(name)
            elif kind == 3: os.mkfifo(name)
            else: shutil.rmtree(name)
        except OSError: pass
""",
        ]
    )
    deadline = time.monotonic() + 4
    outcomes = set()
    while time.monotonic() < deadline:
        for copy in (sandbox.upload(source, "t"), sandbox.download("t", tmp_path / "out", outside_links="skip")):
            try:
                copy.result(20)
                outcomes.add("done")
            except aviato.SandboxFileError as error:
                outcomes.add(error.reason)
            except (NotADirectoryError, IsADirectoryError, FileExistsError):
                outcomes.add("local")
        assert sandbox.exec(["true"]).result(10).returncode == 0
    assert outcomes
    swapping.cancel()
    sandbox.remove("t", recursive=True).result()
    assert sandbox.exec(["sh", "-c", "ls -A /proc/self/d0 /etc | grep -c '^f$'"]).result().stdout.strip() == "0"
    assert sorted(os.listdir(tmp_path)) in (["source"], ["out", "source"])


def test_a_sandbox_that_ends_meanwhile_is_no_failure_of_ours(served: Any, tmp_path: Path) -> None:
    with Sandbox.run("sleep", "600") as sandbox:
        sandbox.exec(["sh", "-c", "mkdir t; for n in 1 2 3; do truncate -s 1G t/$n; done"], check=True).result()
        copying = sandbox.download("t", tmp_path / "t")
        reading = iter(sandbox.read_file_streaming("t/1"))
        next(reading)
        deadline = time.monotonic() + 10
        while not os.listdir(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        sandbox.exec(["pkill", "sleep"]).cancel()
        with pytest.raises(aviato.AviatoError):
            sandbox.exec(["sh", "-c", "kill $(pgrep -x sleep); sleep 5"]).result()
        for failing in (copying.result, lambda: list(reading)):
            with pytest.raises(aviato.AviatoError) as caught:
                failing()
            assert not caught.value.is_infrastructure, repr(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_copy_that_is_cancelled_leaves_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.exec(["sh", "-c", "mkdir t && truncate -s 3G t/big"], check=True).result()
    copying = sandbox.download("t", tmp_path / "t")
    deadline = time.monotonic() + 10
    while not os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    copying.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        copying.result(10)
    assert os.listdir(tmp_path) == []
    (tmp_path / "source").mkdir()
    with (tmp_path / "source" / "big").open("wb") as file:
        file.truncate(3 << 30)
    copying = sandbox.upload(tmp_path / "source", "in")
    while len(sandbox.list_files(".").result()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    copying.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        copying.result(10)
    while len(sandbox.list_files(".").result()) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [one.path for one in sandbox.list_files(".").result()] == ["/workspace/t"]


def test_a_copy_that_is_cancelled_while_its_source_is_read(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is given up while a thread still reads for it: the source is closed after that, never under it."""
    reading, go_on = threading.Event(), threading.Event()

    def slow(top: int, skipped: list[bytes]) -> Iterator[bytes]:
        yield from pack(top, skipped)
        reading.set()
        assert go_on.wait(20)
        os.fstat(top)
        yield b""

    monkeypatch.setattr("aviato.core.transfer.pack", slow)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"x")
    copying = sandbox.upload(tmp_path / "source", "in")
    assert reading.wait(20)
    threading.Timer(0.3, go_on.set).start()
    copying.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        copying.result(10)
    assert go_on.is_set()


@pytest.mark.parametrize("what", ["directory", "file"])
def test_a_copy_that_is_cancelled_as_it_begins_leaves_nothing(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """What a thread has just made belongs to nobody yet."""
    sandbox.exec(["sh", "-c", "mkdir directory && echo 1 > directory/file && cp directory/file file"], check=True).result()
    begun = threading.Event()

    def slowly(make: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            begun.set()
            time.sleep(0.3)
            return made

        return call

    monkeypatch.setattr(transfer, "Arrival", slowly(transfer.Arrival))
    monkeypatch.setattr(transfer.tempfile, "NamedTemporaryFile", slowly(tempfile.NamedTemporaryFile))
    copying = sandbox.download(what, tmp_path / "copy")
    assert begun.wait(10)
    copying.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        copying.result(10)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("what", "step"), [("file", "NamedTemporaryFile"), ("file", "write_all"), ("directory", "Arrival"), ("directory", "_run")]
)
def test_a_copy_that_is_cancelled_twice_is_over_with_its_files(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, step: str
) -> None:
    """As by a second Ctrl-C, or anyio: a thread that still waits to write has its file, and not one that came after it."""
    begun, go_on = threading.Event(), threading.Event()
    failed: list[OSError] = []

    def slowly(call: Any) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Any:
            begun.set()
            assert go_on.wait(20)
            try:
                return call(*args, **kwargs)
            except OSError as error:
                failed.append(error)
                raise

        return slow

    owner: Any = tempfile if step == "NamedTemporaryFile" else transfer
    monkeypatch.setattr(owner, step, slowly(getattr(owner, step)))

    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            await sandbox.exec(["sh", "-c", "mkdir directory && echo 1 > directory/file && cp directory/file file"], check=True)
            copying = asyncio.create_task(sandbox.download(what, tmp_path / "copy"))
            assert await asyncio.to_thread(begun.wait, 20)
            for _ in range(3):
                copying.cancel()
                await asyncio.sleep(0)
            go_on.set()
            await asyncio.wait([copying], timeout=20)
            assert copying.cancelled()

    asyncio.run(main())
    assert (failed, os.listdir(tmp_path)) == ([], [])


def test_a_process_that_copied_files_ends_without_a_word(served: Any, script: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    done = script(f"import aviato; aviato.Sandbox().upload({str(tmp_path)!r}, '/app').result()")
    assert (done.returncode, done.stderr) == (0, "")
