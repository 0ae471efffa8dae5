"""Commands, files, limits and ends of sandboxes without namespaces: what every backend gives, where paths are the machine's."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from aviato.exceptions import AviatoValidationError, SandboxFileError
from aviato.server.backends.base import SandboxSpec
from aviato.wire.frames import FrameType

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["true"], 0, ""),
        (["nothing-of-that-name"], 127, "command not found"),
        (["./missing"], 127, "No such file"),
        (["/"], 126, "directory"),
        (["./data"], 126, "Permission denied"),
        (["./no-interpreter"], 127, "/no/interpreter"),
        (["sh", "-c", "kill -9 $$"], 137, ""),
        (["sh", "-c", "exit 7"], 7, ""),
    ],
)
async def test_codes(box, argv, code, words):
    await box.put("data", b"x")
    await box.put("no-interpreter", b"#!/no/interpreter\n", mode=0o755)
    result = await box.run(*argv)
    assert result.returncode == code and words in result.stderr


async def test_where_it_stands(backend, box):
    """Its own folder: home, temporary files and working directory; nothing of the server's environment."""
    os.environ["AVIATO_TEST_LEAK"] = "x"
    result = await box.python("import json, os; print(json.dumps([os.getcwd(), os.environ.copy(), os.getuid()]))")
    del os.environ["AVIATO_TEST_LEAK"]
    directory, environment, uid = json.loads(result.stdout)
    root = f"{backend._directories.path(box.id)}/root"
    assert directory == f"{root}/workspace"
    assert (environment["HOME"], environment["TMPDIR"]) == (f"{root}/home", f"{root}/tmp")
    assert "AVIATO_TEST_LEAK" not in environment and environment["PATH"].startswith(f"{backend._directories.path(box.id)}/bin:")
    assert uid == (backend._held[box.id].uid if os.geteuid() == 0 else os.getuid())
    own = int((await box.run("cat", "/proc/self/oom_score_adj")).stdout)
    assert own == min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + 500)
    script = "set -e; cd; mktemp; cat /proc/self/status | grep -E 'NoNewPrivs|Seccomp:|CapEff'; ls -l /proc/self/fd | wc -l"
    said = (await box.sh(script)).stdout
    assert f"{root}/tmp/" in said and "NoNewPrivs:\t1" in said and "Seccomp:\t2" in said and "CapEff:\t0000000000000000" in said


async def test_ordinary_programs(box):
    """Python with its subprocesses, compiled modules, threads and event loops; a shell with jobs; tar."""
    source = """
import asyncio, concurrent.futures, sqlite3, ssl, subprocess, tempfile
async def main():
    process = await asyncio.create_subprocess_exec("sh", "-c", "echo a; exit 3", stdout=subprocess.PIPE)
    return (await process.communicate())[0], process.returncode
print(asyncio.run(main()), subprocess.run(["python3", "-c", "print(1)"], capture_output=True, text=True).stdout.strip())
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(int, "1234")))
db = sqlite3.connect("x.db"); db.execute("create table t (x)"); db.commit()
with tempfile.NamedTemporaryFile() as file: file.write(b"x")
import os
if os.fork() == 0: os._exit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    result = await box.python(source)
    assert result.stdout == "(b'a\\n', 3) 1\n10\n5\n" and result.stderr == ""
    script = "set -e; mkdir -p a/b; echo x > a/b/c; tar cf t.tar a; rm -r a; tar xf t.tar; mv a/b/c .; chmod +x c; ln c d; "
    script += "sleep 30 & kill %1 2>/dev/null || kill $!; wait $! || echo $?; cat < d; git --version >/dev/null 2>&1 || true"
    assert (await box.sh(script)).stdout == "143\nx\n"


async def test_input_and_live_output(box):
    assert (await box.run("cat", stdin=b"x" * 300_000)).streams[1] == b"x" * 300_000
    exec_id, subscription = box.start("sh", "-c", "echo first; read line; echo $line >&2", stdin=True)
    async for frame in subscription:
        if frame.type == FrameType.DATA:
            break
    assert frame.payload == b"first\n"
    await box.link.write_stdin(exec_id, b"second\n", 0, True)
    assert (await box.finish(exec_id, subscription)).stderr == "second\n"


async def test_usage_is_the_commands_own(box):
    small = await box.run("true")
    assert small.exit["max_rss_bytes"] is None or small.exit["max_rss_bytes"] < 4 << 20
    large = await box.python("x = bytearray(100 << 20)\nfor _ in range(3000000): pass")
    assert 100 << 20 < large.exit["max_rss_bytes"] < 150 << 20 and large.exit["cpu_seconds"] > 0.01


async def test_what_is_left_behind_lives_on(box, inside):
    result = await box.sh("(while :; do date > alive; sleep 0.05; done) & echo done")
    assert result.stdout == "done\n" and result.exit["duration_seconds"] < 5
    await box.sh("rm alive")
    deadline = time.monotonic() + 5
    while (await box.sh("test -s alive")).returncode:
        assert time.monotonic() < deadline
    # Commands of a sandbox may signal each other.
    assert (await box.sh(f"kill {inside(box).named('while :')[0]}")).returncode == 0
    await inside(box).gone("while :")


async def test_a_timeout_kills_the_tree(box, inside):
    result = await box.sh("trap '' TERM; setsid sleep 60.25 & (sleep 60.25 &) ; echo out; sleep 60.25", timeout=0.5)
    assert (result.returncode, result.exit["signal"], result.exit["timed_out"], result.stdout) == (137, 9, True, "out\n")
    await inside(box).gone("60.25")


async def test_a_tree_that_forks_on_is_killed(box, inside):
    source = "import os, time\nwhile True:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n    time.sleep(0.001)"
    before = time.monotonic()
    result = await box.python(f"import os, time\nif os.fork() == 0:\n    exec({source!r})\ntime.sleep(60)", timeout=0.5)
    assert result.exit["timed_out"]
    await inside(box).gone(seconds=10)
    assert time.monotonic() - before < 20


async def test_grading_leaves_the_main_command_alone(box, inside):
    box.start("sleep", "61.25", main=True)
    others = [box.start("sh", "-c", "setsid sleep 62.25 & sleep 62.25") for _ in range(3)]
    deadline = time.monotonic() + 5
    while len(inside(box).named("62.25")) < 9:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await box.link.cancel_all()
    assert inside(box).named("62.25") == [] and len(inside(box).named("61.25")) == 1
    for other in others:
        assert (await box.finish(*other)).exit["cancelled"]


async def test_a_terminal(box):
    exec_id, subscription = box.start("sh", terminal=(100, 30), stdin=True)
    await box.link.feed(exec_id, b"tty; stty size; echo $TERM; exit 4\n")
    result = await box.finish(exec_id, subscription)
    assert result.returncode == 4
    assert "/dev/pts/" in result.stdout and "30 100" in result.stdout and "xterm-256color" in result.stdout


async def test_file_calls(backend, box):
    await box.put("a/b/file", b"x" * 1_000_000, mode=0o640)
    assert await box.get("a/b/file") == b"x" * 1_000_000
    found = await box.link.stat("a/b/file")
    assert (found["size_bytes"], found["mode"], found["type"]) == (1_000_000, 0o640, "file")
    await box.link.make_directory("a/c/d")
    assert [one["path"].rsplit("/", 1)[1] for one in await box.link.list_files("a")] == ["b", "c"]
    await box.link.remove("a", recursive=True)
    with pytest.raises(SandboxFileError) as caught:
        await box.get("a/b/file")
    assert caught.value.reason == "no_such_file"
    # Absolute paths are the machine's: its own folder, and nothing else to be written to.
    root = f"{backend._directories.path(box.id)}/root"
    await box.put(f"{root}/tmp/file", b"y")
    assert (await box.sh("cat $TMPDIR/file")).stdout == "y"
    for path in ("/tmp/file", "/workspace/file", f"{root}/../note", f"{root}/../bin/python"):
        with pytest.raises(SandboxFileError) as caught:
            await box.put(path, b"x")
        assert caught.value.reason == "permission_denied" and not caught.value.is_infrastructure


async def test_memory(backend, boxes, inside):
    async with boxes.make_box(backend, limits={"memory": 100 << 20}) as box:
        fine, subscription = box.start("sh", "-c", "read line; echo fine", stdin=True)
        result = await box.python("x = []\nwhile True: x.append(bytearray(1 << 20))")
        assert (result.returncode, result.exit["oom_killed"]) == (137, True)
        await box.link.write_stdin(fine, b"\n", 0, True)
        assert (await box.finish(fine, subscription)).stdout == "fine\n"


async def test_disk(backend, boxes):
    async with boxes.make_box(backend, limits={"disk": 20 << 20}) as box:
        result = await box.sh("while :; do dd if=/dev/zero of=big bs=1M count=1 oflag=append conv=notrunc 2>/dev/null; done")
        assert result.returncode == 137 and "20 MiB of disk" in result.stderr
        with pytest.raises(SandboxFileError) as caught:
            await box.put("more", b"x" * (1 << 20))
        assert caught.value.reason == "disk_full"
        await box.link.remove("big")
        await box.put("more", b"x")


async def test_its_lifetime(backend, boxes):
    async with boxes.make_box(backend, max_lifetime_seconds=0.3) as box:
        box.start("sleep", "60")
        assert (await asyncio.wait_for(box.link.wait_ended(), 10)).reason == "lifetime"


async def test_many_commands_at_once(box, inside):
    results = await asyncio.gather(*(box.run("sh", "-c", f"echo {number}; exit {number}") for number in range(40)))
    assert [(result.returncode, result.stdout) for result in results] == [(number, f"{number}\n") for number in range(40)]
    await inside(box).gone()


async def test_one_that_was_made_for_nobody_keeps_the_machine_s_name(backend, box):
    spec = SandboxSpec(sandbox_id=box.id, image=backend.resolve_image(None), host_name="claimed", environment={"A": "1"})
    assert "host_name" not in box.link.hello["features"]
    backend.claim(spec, box.link)
    source = "import ctypes, os; print(ctypes.CDLL(None).sethostname(b'x', 1), os.uname().nodename, os.environ['A'])"
    assert (await box.python(source)).stdout == f"-1 {os.uname().nodename} 1\n"


async def test_a_later_server_finds_it(backend, box):
    exec_id, _ = box.start("sh", "-c", "sleep 0.3; echo whole")
    box.link.detach()
    link = await backend.reconnect(box.id)
    assert link is not None
    box.link = link
    assert (await box.finish(exec_id, link.subscribe(None, exec_id))).stdout == "whole\n"
    assert (await link.stop(0)).reason == "stopped"


async def test_the_place_is_taken_away(backend, boxes):
    async with boxes.make_box(backend) as box:
        await box.sh("mkdir -p a/b; touch a/b/c; chmod 0 a/b a; chmod 0 ..")
        place = backend._directories.path(box.id)
    assert not os.path.exists(place)


@pytest.mark.parametrize("reference", ["dir:/usr", "debian:12", "oci:/nowhere"])
async def test_another_image_is_refused_by_name(backend, reference):
    with pytest.raises(AviatoValidationError, match="'landlock' does not have 'images'"):
        backend.resolve_image(reference)
