"""Sandboxes that lie on several layers, and what they find of their own in an image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aviato.server.backends.local import plan
from aviato.server.images.resolved import ResolvedImage
from tests.images.layers import Member, directory, tar, unpacked
from tests.images.programs import busybox

pytestmark = pytest.mark.anyio

PROGRAMS = ("cat", "chmod", "find", "grep", "ln", "ls", "mkdir", "mv", "rm", "sh", "stat", "touch", "wc")


@pytest.fixture
def base(tmp_path):
    """The lowest layer: busybox, and nothing else."""
    root = tmp_path / "0"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox(), root / "bin" / "busybox")
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    return root


def stack(base: Path, *above: dict[str, str | None]) -> ResolvedImage:
    """An image of a base and layers over it: paths and what is in them, None for what is taken away."""
    layers = [str(base)]
    for number, files in enumerate(above, 1):
        root = base.parent / str(number)
        root.mkdir()
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                os.mknod(root / path, 0o020000, 0)
            else:
                (root / path).write_text(content)
        layers.insert(0, str(root))
    return ResolvedImage(reference="stack", kind="dir", layers=tuple(layers))


async def test_what_is_above_covers_what_is_below(base, make_box):
    image = stack(
        base,
        {"a/one": "1", "a/both": "low", "b/x": "x", "c/y": "y", "gone": "?"},
        {"a/two": "2", "a/both": "high", "b": None, "gone": None},
        {"b/new": "n", "c/z": "z"},
    )
    os.setxattr(f"{image.layers[0]}/c", "user.overlay.opaque", b"y")
    async with make_box(image) as box:
        result = await box.sh("cat a/one a/both a/two; echo; ls b c; ls -d gone 2>&1", cwd="/")
        assert result.stdout == "1high2\nb:\nnew\n\nc:\nz\nls: gone: No such file or directory\n", result.stderr
        assert (await box.sh("rm -r a; echo mine > b/new; ls / > c/z", cwd="/")).returncode == 0
    assert Path(image.layers[1], "a/both").read_text() == "high" and Path(image.layers[0], "b/new").read_text() == "n"


async def test_what_a_layer_takes_away_where_nothing_is_below(base, make_box):
    """As some builders have it: nobody finds a name that he can neither read nor remove."""
    layer = base.parent / "1"
    layer.mkdir()
    members = (directory("d"), Member("d/.wh.gone"), Member("d/here"), directory("o"), Member("o/.wh..wh..opq"))
    unpacked(tar(*members, Member("o/.wh.gone"), Member("implied/.wh.gone"), Member(".wh.nothing")), layer)
    image = ResolvedImage(reference="stack", kind="dir", layers=(str(layer), str(base)))
    async with make_box(image) as box:
        result = await box.sh(
            "find /d /o /implied; ls -d /nothing; touch /o/gone; ls /o; rm -r /d /o /implied && echo done", cwd="/"
        )
    found = ["/d", "/d/here", "/o", "/implied", "gone", "done"]
    assert result.stdout.splitlines() == found and "/nothing" in result.stderr and "find" not in result.stderr, result


@pytest.mark.parametrize("count", [40, 127])
async def test_many_layers(base, make_box, count):
    """More than fit the page of mount options by their paths."""
    deep = base.parent / ("x" * 100)
    deep.mkdir()
    base = base.rename(deep / "0")
    image = stack(base, *({f"d/{number}": str(number)} for number in range(1, count)))
    async with make_box(image) as box:
        result = await box.sh("ls /d | wc -l; cat /d/7; echo; grep -c xxxx /proc/mounts")
        assert result.stdout.split() == [f"{count - 1}", "7", "0"], result


async def test_names_of_its_own(base, make_box):
    image = stack(base, {"etc/hosts": "10.0.0.1 builder", "etc/hostname": "builder", "etc/other": "stays"})
    async with make_box(image) as box:
        result = await box.sh("cat /etc/hosts /etc/hostname /etc/other")
        assert "127.0.0.1 localhost" in result.stdout and f"127.0.1.1 {box.id}\n{box.id}\nstays" in result.stdout
    assert Path(image.layers[0], "etc/hosts").read_text() == "10.0.0.1 builder"


@pytest.mark.parametrize(
    "hostile",
    [
        "ln -s /proc/self/environ etc/hosts",
        "ln -s nowhere etc/hosts",
        "ln -s / etc/hosts",
        "ln -s hosts etc/hosts",
        "mkdir etc/hosts",
        "mkfifo etc/hosts",
        "rmdir etc; ln -s / etc",
        "rmdir etc; ln -s ../../../../etc etc",
        "rmdir etc; ln -s etc etc",
        "rmdir etc; echo > etc",
        "ln -s / etc/up; rm -rf proc; ln -s etc proc",
        "rm -rf dev; ln -s / dev",
        "rm -rf tmp; ln -s /etc tmp",
        "rm -rf run; ln -s ../../.. run",
    ],
)
async def test_hostile_trees(base, make_box, hostile):
    """A sandbox comes to be or does not, and nothing outside is touched."""
    before = {name: os.stat(name).st_mtime_ns for name in ("/etc/hosts", "/etc/hostname", "/etc", "/tmp/..")}
    image = stack(base, {"etc/x": ""})
    os.unlink(f"{image.layers[0]}/etc/x")
    subprocess.run(["sh", "-ec", hostile], cwd=image.layers[0], check=True)
    seen = sorted(os.listdir(image.layers[0]))
    try:
        async with make_box(image) as box:
            assert "root" not in (await box.sh("ls -ln / /etc/ 2>&1 | grep -c 'builder'; cat /etc/hosts 2>&1")).stderr
    except Exception as error:
        assert "confined" in str(error), error
    assert before == {name: os.stat(name).st_mtime_ns for name in before}
    assert sorted(os.listdir(image.layers[0])) == seen


def test_the_directory_of_an_image_is_made_with_those_above():
    options = plan.PlanOptions(host_name="sb-x", place="/p/sb-x", layers=("/a",), working_dir="/app/src")
    step = next(one for one in plan.make_plan(options) if one.operation == "directories")
    assert [path for path, _ in step.arguments[0]][-2:] == ["/app", "/app/src"]
