"""What whoever packed an image may have put into it: a sandbox of it is one like any other, and nothing outside notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox
from tests.conftest import make_state_dir, remove
from tests.images.layers import BLOCK, CHARACTER, FIFO, Member, directory, link, tar
from tests.images.programs import busybox
from tests.images.whole_images import make_layout
from tests.matrices import every

pytestmark = pytest.mark.attack

PROGRAMS = ("cat", "echo", "env", "grep", "id", "ls", "sh", "stat", "test", "touch")
LOOK = """
cat /../$0/secret /etc/../../$0/secret 2>/dev/null; echo x > /etc/mine 2>/dev/null
test -c /dev/null && test ! -L /dev && test -d /proc/self/fd && test ! -L /proc && test -d /.aviato/own && test ! -L /.aviato &&
    test ! -L /.aviato/own && echo works
"""
"""What everything is like in the end; `{machine}` in a target is a directory of the machine that everybody may write to."""
LINKS = {
    f"{name} → {target}": [link(name, target)]
    for name in ("proc", "dev", "run", "sys", "etc", "tmp", "root", ".aviato", ".aviato/own")
    for target in ("/", "..", "..{machine}", "proc/self/cwd", "proc/1/root{machine}", name)
}
OTHERS = {
    f"{name} is {what}": [Member(name, kind)]
    for name in ("proc", "dev", "run", "sys", ".aviato", ".aviato/own")
    for what, kind in (("a file", b"0"), ("a pipe", FIFO))
}
OTHERS |= {
    "/etc/hosts → a file of process 1": [link("etc/hosts", "/proc/1/environ")],
    "/etc/hosts → the machine's": [link("etc/hosts", "../..{machine}/hosts")],
    "/etc/hostname is a directory": [directory("etc/hostname")],
    "/etc/resolv.conf → the machine's": [link("etc/resolv.conf", "/proc/1/root/..{machine}/x")],
    "devices": [Member("dev/sda", BLOCK, device=(8, 0)), Member("memory", CHARACTER, device=(1, 1), mode=0o666)],
    "working directory by a link": [link("app", "..{machine}")],
    "working directory by a link of a link": [link("app", "up/{machine}"), link("up", "/..")],
}
TREES = LINKS | OTHERS


@pytest.fixture(scope="module")
def url(own_server: Any) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AVIATO_BASE_URL", own_server.url)
        yield own_server.url


@pytest.fixture
def machine() -> Iterator[Path]:
    made = make_state_dir()
    made.chmod(0o777)
    for name in ("skeletons", "images"):
        (made / name).unlink(missing_ok=True)
    (made / "secret").write_text("of the machine")
    yield made
    remove(made)


def packed(where: Path, members: list[Member], config: dict[str, Any]) -> str:
    """An image with a shell and what is hostile; returns its reference."""
    programs = [
        Member("bin/busybox", content=busybox().read_bytes(), mode=0o755),
        *(link(f"bin/{name}", "busybox") for name in PROGRAMS),
    ]
    layers = [tar(directory("bin"), *programs), tar(*members)]
    return f"oci:{make_layout(where / 'image', layers, {'Env': ['PATH=/bin'], **config})}"


@pytest.mark.parametrize("name", [*every(5, LINKS), *OTHERS])  # Of the links, each name and each target.
def test_names_where_the_sandbox_has_its_own(url: str, machine: Path, tmp_path: Path, name: str) -> None:
    members = [one._replace(target=one.target.replace("{machine}", str(machine))) for one in TREES[name]]
    config = {"WorkingDir": "/app/made"} if "working directory" in name else {}
    with Sandbox(container_image=packed(tmp_path, members, config)) as sandbox:
        if not config:  # Else it may not be there, which is the image's own doing.
            result = sandbox.exec(["sh", "-c", LOOK, str(machine)], cwd="/").result(30)
            assert (result.stdout, result.returncode) == ("works\n", 0), result
            assert sandbox.exec(["ls", "/dev/sda", "/memory"], cwd="/").result(30).stdout == ""
    assert {path.name: path.read_text() for path in machine.iterdir()} == {"secret": "of the machine"}


def test_set_uid_programs_and_files_with_capabilities(url: str, tmp_path: Path) -> None:
    """They are as they were packed, and give nobody anything."""
    rights = {"security.capability": "\x01\0\0\x02" + "\x7f" * 8 + "\0" * 8}
    members = [
        Member("set-id/sh", content=busybox().read_bytes(), mode=0o6755),
        Member("capable/sh", content=busybox().read_bytes(), mode=0o755, attributes=rights),
        Member("etc/shadow", content=b"root:secret", mode=0o600),
    ]
    with Sandbox(container_image=packed(tmp_path, members, {})) as sandbox:
        if len(sandbox.exec(["cat", "/proc/self/uid_map"]).result(30).stdout.splitlines()) == 1:
            pytest.skip("sandboxes have one id here")
        line = (
            "id -u; id -g; cat /etc/shadow; grep -E 'CapEff|NoNewPrivs' /proc/self/status; grep -c ' / .*nosuid' /proc/mounts"
        )
        for program in ("/set-id/sh", "/capable/sh"):
            result = sandbox.exec([program, "-c", line], user="1000:1000").result(30)
            assert result.stdout.split() == ["1000", "1000", "CapEff:", "0" * 16, "NoNewPrivs:", "1", "1"], result


SAID: dict[str, tuple[dict[str, Any], int | None]] = {
    "a library before all others": ({"Env": ["PATH=/bin", "LD_PRELOAD=/evil.so", "PYTHONPATH=/evil"]}, 0),
    "programs elsewhere": ({"Env": ["PATH=/evil:/bin"]}, 0),
    "more than a program takes": ({"Env": ["PATH=/bin", *(f"A{number}={'x' * 1000}" for number in range(3000))]}, 126),
    "names that are none": ({"Env": ["PATH=/bin", "=x", "A B=c", "A\nB=c", "x"]}, 0),
    "an entry of our names": ({"Env": ["PATH=/bin"], "Entrypoint": ["/aviato-init", "serve"], "Cmd": ["aviato-init"]}, 0),
    "a user without a name": ({"Env": ["PATH=/bin"], "User": "nobody-at-all"}, None),
    "a user with no number": ({"Env": ["PATH=/bin"], "User": "4294967295"}, None),
    "a user by his own file": ({"Env": ["PATH=/bin"], "User": "odd"}, None),
}
"""A configuration, and how a command ends; None: it is refused, where sandboxes have users."""


@pytest.mark.parametrize("name", SAID)
def test_what_an_image_says_of_its_commands(url: str, tmp_path: Path, name: str) -> None:
    config, returncode = SAID[name]
    members = [link("etc/passwd", "/proc/1/environ"), Member("etc/group", FIFO), Member("evil/echo", content=b"", mode=0o755)]
    with Sandbox(container_image=packed(tmp_path, members, config)) as sandbox:
        try:
            result = sandbox.exec(["/bin/echo", "works"], timeout_seconds=10).result(30)
            assert result.returncode == (returncode or 0), result
        except aviato.AviatoError as error:
            assert returncode is None and not error.is_infrastructure, error
        sandbox.write_file("/tmp/x", b"x").result(30)
        assert sandbox.read_file("/tmp/x").result(30) == b"x"
        assert sandbox.get_status() == "running"
