"""`mounted_files`: what the caller put in stays as it is."""

from __future__ import annotations

import asyncio
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from tests.conftest import start_server

FILES = [
    {"mount_path": "/workspace/tests/cases.json", "file_content": '{"é": 1}'},
    {"mount_path": "/data.bin", "file_content": bytes(range(256)) * 4096},
]


def test_they_are_read_only_and_there_before_the_main_command(served: Any) -> None:
    with Sandbox(command="sh", args=["-c", "cat tests/cases.json; sleep 60"], mounted_files=FILES) as sandbox:
        assert next(iter(sandbox.stream_logs(follow=True))) == '{"é": 1}'
        assert sandbox.read_file("/data.bin").result() == FILES[1]["file_content"]
        for command in ("echo x > tests/cases.json", "rm -f /data.bin", "mv tests other", "chmod 777 /data.bin"):
            assert sandbox.exec(["sh", "-c", command]).result().returncode != 0, command
        with pytest.raises(aviato.SandboxFileError, match="tests/cases"):
            sandbox.write_file("tests/cases.json", b"other").result()
        assert sandbox.stat("/data.bin").result().mode & 0o777 == 0o444
        [listed] = [one for one in Sandbox.list().result() if one.sandbox_id == sandbox.sandbox_id]
        assert "cases" not in str(vars(listed._state.last_seen))


def test_async_form_and_a_session(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox(mounted_files=FILES[:1]) as sandbox:
            assert (await sandbox.exec(["cat", "tests/cases.json"])).stdout == '{"é": 1}'
        async with aviato.Session() as session:
            assert await session.sandbox(mounted_files=FILES).read_file("/data.bin") == FILES[1]["file_content"]

    asyncio.run(main())


def test_a_pickle_carries_them(served: Any) -> None:
    with pickle.loads(pickle.dumps(Sandbox(mounted_files=FILES))) as sandbox:
        assert sandbox.exec(["cat", "tests/cases.json"]).result().stdout == '{"é": 1}'


def test_they_survive_a_queue_and_a_restart(make_server: Any) -> None:
    """A sandbox whose start was not begun is queued again by the next server, from its record."""
    server = make_server(max_sandboxes=1)
    with Sandbox(base_url=server.url) as first:
        first.wait()
        with Sandbox(base_url=server.url, mounted_files=FILES) as second:
            server.stop(signal.SIGTERM)
            next_one = start_server(Path(server.state_dir).parent, max_sandboxes=1)
            server.process = next_one.process
            first.stop().result()
            assert second.read_file("/workspace/tests/cases.json").result() == '{"é": 1}'.encode()


def one(path: Any = "/a", content: Any = "") -> list[dict[str, Any]]:
    return [{"mount_path": path, "file_content": content}]


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        (one("relative"), ValueError, "'relative' must be an absolute path"),
        (one("/"), ValueError, "not the root"),
        (one("/a/../b"), ValueError, r"'/a/\.\./b' must be normalised"),
        (one("/a//b"), ValueError, "normalised"),
        (one("//a"), ValueError, "normalised"),
        (one("/a/"), ValueError, "normalised"),
        (one("/a\0"), ValueError, "normalised"),
        (one("/proc/version"), ValueError, "/proc, /dev, /sys, /.aviato"),
        (one("/dev/null"), ValueError, "of the system's own"),
        (one("/.aviato/bin/python"), ValueError, "of the system's own"),
        (one("/" + "a" * 256), ValueError, "too long"),
        (one("/a" * 513), ValueError, "too long"),
        (one() + one(), ValueError, "'/a' is given twice"),
        (one("/a/b/c") + one("/a"), ValueError, "'/a/b/c' lies below '/a'"),
        (one(content=b"x" * (8 << 20)) + one("/b", "x"), ValueError, "8388609 bytes; at most 8388608"),
        ([one(f"/{n}")[0] for n in range(65)], ValueError, "65 files; at most 64"),
        (one(1), TypeError, "mount_path must be a str, not int"),
        (one(content=1), TypeError, "file_content of '/a' must be str or bytes, not int"),
        ("/a", TypeError, "must be a list, not str"),
        ({"/a": "x"}, TypeError, "must be a list, not dict"),
        (["/a"], TypeError, "a dict of 'mount_path' and 'file_content', got str"),
        ([{"mount_path": "/a", "content": ""}], TypeError, r"got \['content', 'mount_path'\]"),
    ],
)
def test_bad_ones_are_refused_at_the_call(files: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Sandbox(mounted_files=files)


def test_what_the_server_refuses_is_no_infrastructure(served: Any) -> None:
    with pytest.raises(aviato.AviatoValidationError, match=r"'/usr/bin/env': /usr is the machine's own") as caught:
        Sandbox(mounted_files=one("/usr/bin/env")).start().result()
    assert not caught.value.is_infrastructure
    with pytest.raises(aviato.SandboxFailedError, match="no regular file") as failed:
        Sandbox(mounted_files=one("/tmp")).wait()
    assert (failed.value.reason, failed.value.is_infrastructure) == ("start_failed", False)
