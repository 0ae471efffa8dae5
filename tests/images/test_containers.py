"""Sandboxes of OCI images, as a user has them: from a layout to a command's result."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox, SandboxImageError, SandboxStatus
from tests.images import debian
from tests.images.programs import one_program, tools
from tests.images.whole_images import make_layout, tar_of

PROGRAMS = ("cat", "echo", "env", "grep", "id", "ls", "mkdir", "pwd", "rm", "sh", "sleep", "stat", "touch", "wc")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, owners, a user, a directory, variables."""
    base = tar_of(
        {
            **dict.fromkeys(("bin/", "etc/", "app/", "home/", "tmp/"), b""),
            **tools(*PROGRAMS),
            "etc/passwd": (0o644, 0, 0, PASSWD),
            "home/app/": (0o700, 1000, 1000, b""),
            "app/old": b"old",
            "app/both": b"low",
            "app/dir/": b"",
            "app/dir/x": b"x",
        }
    )
    middle = tar_of(
        {"app/": b"", "app/both": b"high", "app/.wh.old": b"", "app/dir/": b"", "app/dir/.wh..wh..opq": b"", "app/dir/y": b"y"}
    )
    top = tar_of({"app/": b"", "app/mine": (0o600, 1000, 1000, b"secret"), "app/shared": (0o640, 0, 1000, b"shared")})
    config = {
        "Env": ["PATH=/bin", "WHERE=image", "HOME=/root"],
        "WorkingDir": "/app",
        "User": "app",
        "Entrypoint": ["/bin/echo"],
        "Cmd": ["hello"],
    }
    return make_layout(tmp_path_factory.mktemp("layout") / "image", [base, middle, top], config)


@pytest.fixture(scope="module")
def server(own_server: Any) -> Any:
    return own_server


@pytest.fixture
def url(server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return str(server.url)


def said(sandbox: Sandbox, *command: str, **options: Any) -> str:
    result = sandbox.exec(list(command), check=True, **options).result(60)
    return result.stdout.strip()


def has_users(sandbox: Sandbox) -> bool:
    return said(sandbox, "sh", "-c", "while read a b c; do echo $c; done < /proc/self/uid_map", user=0) != "1"


def test_an_image_as_its_configuration_says(url: str, layout: Path) -> None:
    with Sandbox(container_image=f"oci:{layout}", environment_variables={"MORE": "mine"}) as sandbox:
        assert said(sandbox, "pwd") == "/app"
        assert said(sandbox, "sh", "-c", "echo $WHERE $MORE $PATH") == "image mine /bin"
        assert said(sandbox, "sh", "-c", "echo $WHERE", env={"WHERE": "call"}) == "call"
        assert said(sandbox, "ls", user=0) == "both\ndir\nmine\nshared"
        assert said(sandbox, "cat", "both", "dir/y", user=0) == "highy"
        assert said(sandbox, "ls", "dir") == "y"
        if has_users(sandbox):
            assert said(sandbox, "id", "-u") == "1000" and said(sandbox, "id", "-u", user="root") == "0"
            assert said(sandbox, "sh", "-c", "cat mine; cat shared; echo $USER") == "secretsharedapp"
            assert said(sandbox, "stat", "-c", "%u:%g %a", "mine", user=0) == "1000:1000 600"
            assert sandbox.exec(["cat", "mine"], user=7).result(60).returncode == 1
            assert said(sandbox, "sh", "-c", "touch ~/x; stat -c %u ~/x") == "1000"
            assert sandbox.exec(["touch", "/app/new"]).result(60).returncode == 1
        else:
            assert said(sandbox, "id", "-u") == "0"
        sandbox.write_file("/app/written", b"w").result(60)
        assert said(sandbox, "cat", "written", user=0) == "w"
    with Sandbox(container_image=f"oci:{layout}") as sandbox:
        assert said(sandbox, "ls", user=0) == "both\ndir\nmine\nshared", "what another has written"
        assert said(sandbox, "pwd", cwd="/tmp") == "/tmp"
    with Sandbox(container_image=f"oci:{layout}", working_dir="/home") as sandbox:
        assert said(sandbox, "pwd") == "/home"


def test_many_at_once_pull_once(url: str, layout: Path) -> None:
    async def main() -> list[str]:
        async with AsyncClient() as client:

            async def one(number: int) -> str:
                async with await client.sandbox(container_image=f"oci:{layout}") as sandbox:
                    return (await sandbox.exec(["echo", str(number)])).stdout

            return await asyncio.gather(*map(one, range(16)))

    assert asyncio.run(main()) == [f"{number}\n" for number in range(16)]


def test_an_image_with_one_program_and_nothing_else(url: str, tmp_path: Path) -> None:
    """No shell, no C library, no /etc: aviato-init itself is a program like any other."""
    with Sandbox(container_image=one_program(tmp_path / "image")) as sandbox:
        assert said(sandbox, "/program", "--version").startswith("aviato-init ")
        sandbox.write_file("/data/x", b"1" * 100_000).result(60)
        assert sandbox.read_file("/data/x").result(60) == b"1" * 100_000
        assert {"/data", "/etc", "/program"} <= {entry.path for entry in sandbox.list_files("/").result(60)}


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("oci:/nowhere/at/all", "nowhere"),
        ("docker-archive:/nowhere.tar", "nowhere"),
        ("Upper/Case:1", "lower case"),
        ("a//b", "empty"),
        ("localhost:1/none/such:1", "localhost:1"),
    ],
)
def test_images_that_there_are_not(url: str, reference: str, why: str) -> None:
    sandbox = Sandbox(container_image=reference)
    with pytest.raises(SandboxImageError, match=why) as caught:
        sandbox.exec(["true"]).result(60)
    assert caught.value.is_infrastructure
    with Sandbox() as other:
        assert said(other, "echo", "works") == "works"


def test_a_damaged_layer_is_no_sandbox_and_leaves_nothing(url: str, server: Any, tmp_path: Path) -> None:
    """Nor does it stand in the way of the same image, once that is as it should be."""

    def here() -> set[str]:
        return {str(path) for path in Path(server.state_dir).glob("images/*/[liu]*/*")}

    layers = [tar_of({**tools(), "of": b"this test"}), tar_of({"data": os.urandom(300_000)})]
    damaged = make_layout(tmp_path / "damaged", layers, {})
    [blob] = [path for path in (damaged / "blobs" / "sha256").iterdir() if 300_000 <= path.stat().st_size < 400_000]
    content, before = blob.read_bytes(), here()
    for wrong, words in (
        (content[:150_000] + bytes([content[150_000] ^ 0xFF]) + content[150_001:], "another digest|other bytes|digest"),
        (content[:150_000], "bytes"),
        (content + b"x", "bytes"),
    ):
        blob.write_bytes(wrong)
        with pytest.raises(SandboxImageError, match=words) as caught:
            Sandbox(container_image=f"oci:{damaged}").exec(["/bin/busybox", "true"]).result(60)
        assert caught.value.is_infrastructure and caught.value.reason == "image_pull_failed"
        # What is whole may stay, for the next try; what is not is nowhere.
        assert len({path for path in here() - before if "/layers/" in path}) <= 1
        assert not {path for path in here() - before if "/images/sha256" in path}
    blob.write_bytes(content)
    with Sandbox(container_image=f"oci:{damaged}") as sandbox:
        assert said(sandbox, "/bin/busybox", "wc", "-c", "/data").split()[0] == "300000"


def test_a_sandbox_waits_for_its_image(url: str, tmp_path: Path) -> None:
    """It is pending with a reason, others start meanwhile, and who stops it need not wait."""
    image = make_layout(tmp_path / "image", [tar_of(tools())], {})
    slow = next(path for path in (image / "blobs" / "sha256").iterdir() if path.read_bytes()[:2] == b"\x1f\x8b")
    content = slow.read_bytes()
    slow.unlink()
    os.mkfifo(slow)  # Whoever opens it waits; a server that did so on its loop would stand still.
    try:
        with Sandbox() as other:
            assert said(other, "echo", "before") == "before"
        sandbox = Sandbox(container_image=f"oci:{image}")
        process = sandbox.exec(["/bin/busybox", "true"])
        with Sandbox() as other:
            assert said(other, "echo", "meanwhile") == "meanwhile"
        error = process.exception(60)
        assert isinstance(error, SandboxImageError), error
    finally:
        slow.unlink()
        slow.write_bytes(content)
    with Sandbox(container_image=f"oci:{image}") as again:
        assert said(again, "/bin/busybox", "echo", "now") == "now"
        assert again.get_status() is SandboxStatus.RUNNING


DEBIAN = """
set -e
id -u; chown 33:34 /opt; stat -c %u:%g /opt
useradd -m bob; su bob -c 'id -un'; su - bob -c 'echo $HOME'
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/local/bin
printf '%s: %s\\n' Package own Version 1 Architecture all Maintainer 'x <x@example.org>' Description own > /tmp/p/DEBIAN/control
printf '#!/bin/sh\\necho installed\\n' > /tmp/p/usr/local/bin/own; chmod 755 /tmp/p/usr/local/bin/own
printf '#!/bin/sh\\nadduser --system --group own-daemon >/dev/null 2>&1 || useradd -r own-daemon\\n' > /tmp/p/DEBIAN/postinst
chmod 755 /tmp/p/DEBIAN/postinst; dpkg-deb -b /tmp/p /tmp/own.deb > /dev/null
apt-get install -y -q /tmp/own.deb > /tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
/usr/local/bin/own; id -un own-daemon; dpkg -s own | grep Status
"""


@pytest.mark.long
def test_debian(url: str) -> None:
    """What a distribution's own tools do, in an image of it."""
    try:
        image = debian.layout()
    except debian.NoImageError as error:
        pytest.skip(str(error))
    with Sandbox(container_image=f"oci:{image}", exec_timeout_seconds=300) as sandbox:
        if not has_users(sandbox):
            pytest.skip("this server can give its sandboxes no other ids")
        result = sandbox.exec(["bash", "-c", DEBIAN]).result(300)
        assert result.stdout.split("\n")[:-1] == [
            "0", "33:34", "bob", "/home/bob", "installed", "own-daemon", "Status: install ok installed",
        ], (result.stdout, result.stderr)  # fmt: skip
        assert said(sandbox, "id", "-un", user="bob") == "bob"
        assert said(sandbox, "stat", "-c", "%U:%G %a", "/usr/bin/passwd", "/var/mail") == "root:root 4755\nroot:mail 2775"
    assert aviato.__version__
