"""Where paths lead process 1: as the kernel has it, but never to what is the kernel's or its own."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from aviato.exceptions import SandboxFileError
from aviato.server.backends.base import MountedFile
from aviato.server.backends.local import newborn
from aviato.server.supervisor import paths, reading
from aviato.server.supervisor.errors import OfTheKernel, Refused
from aviato.trees import tar
from aviato.trees.pack import pack
from tests.real_backend import WAYS, open_by

pytestmark = pytest.mark.anyio

KINDS = {"newer kernels": paths.OPENAT2, "older kernels": -1}
FLAGS = {
    "look": os.O_PATH,
    "directory": paths.DIRECTORY,
    "link": os.O_PATH | os.O_NOFOLLOW,
    "read": os.O_RDONLY,
    "list": os.O_RDONLY | os.O_DIRECTORY,
}
ORDINARY = (
    *("d", "d/", "d/.", "d/..", "d//f", "d/f", "d/f/", "d/f/.", "d/f/x", "./d/./f", "..", ".", "", "/", "//", "/usr/bin/env"),
    *(
        "nothing",
        "nothing/",
        "nothing/x",
        "d/nothing",
        "closed/f",
        "to-d",
        "to-d/",
        "to-d/f",
        "to-f",
        "to-f/",
        "to-f/x",
        "up/d/f",
    ),
    *(
        "loop",
        "loop/x",
        "absolute",
        "absolute/f",
        "to-nothing",
        "to-nothing/",
        "to-slash",
        "to-slash/f",
        "file-slash",
        "long/f",
    ),
    *("chain40", "chain41", "\udcff", "a" * 300, "/tmp/../usr"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    top = tmp_path_factory.mktemp("paths")
    (top / "d").mkdir()
    (top / "d" / "f").write_text("f")
    (top / "\udcff").write_text("no text")
    links = {
        "to-d": "d",
        "to-f": "d/f",
        "up": f"../{top.name}",
        "loop": "loop",
        "absolute": f"{top}/d",
        "to-nothing": "nothing",
    }
    links |= {"to-slash": "d/", "file-slash": "d/f/", "long": "././d/../d/.", "chain0": "d"}
    links |= {f"chain{number}": f"chain{number - 1}" for number in range(1, 42)}
    for name, target in links.items():
        (top / name).symlink_to(target)
    return top


def outcome(open_it, path, flags):
    try:
        fd = open_it(path, flags)
    except OSError as error:
        return type(error).__name__, error.errno
    try:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino
    finally:
        os.close(fd)


def held_below(place):
    """What is open there: other descriptors of this process come and go with its other threads."""
    held = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(path for path in held if path.startswith(str(place)))


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    monkeypatch.setattr(paths, "OPENAT2", KINDS[request.param])


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("flags", FLAGS)
def test_an_ordinary_path_leads_where_it_always_does(place, monkeypatch, flags):
    monkeypatch.chdir(place)
    before = held_below(place)
    for path in ORDINARY:
        expected = outcome(lambda path, flags: os.open(path, flags | os.O_CLOEXEC), path, FLAGS[flags])
        assert outcome(paths.open_path, path, FLAGS[flags]) == expected, path
    assert held_below(place) == before


@pytest.mark.usefixtures("kind")
def test_a_path_counts_from_a_directory(place):
    at = os.open(place / "d", os.O_PATH)
    try:
        for path, name in {"f": "d/f", "../d/f": "d/f", "../to-f": "d/f", "../absolute": "d", str(place): "."}.items():
            fd = paths.open_path(path, os.O_PATH, at)
            assert os.path.samestat(os.fstat(fd), (place / name).stat()), path
            os.close(fd)
    finally:
        os.close(at)


@pytest.mark.usefixtures("kind")
def test_the_kernels_own_and_its_links_are_refused(place):
    held = os.open(place, os.O_RDONLY)
    try:
        own = ["/proc/self/exe", "/proc/self/root", "/proc/self/root/usr", "/proc/self/cwd", f"/proc/self/fd/{held}"]
        own += [f"/proc/self/fd/{held}/d", f"/proc/thread-self/fd/{held}/d/f", "/proc/self/cwd/..", f"/dev/fd/{held}/d"]
        kernels = [
            "/proc",
            "/proc/version",
            "/proc/self",
            "/proc/self/maps",
            "/proc/self/fd",
            "/dev/fd",
            "/sys/kernel",
            "/proc/net",
        ]
        for number, path in enumerate(own + kernels):
            link = place / f"kernel{number}"
            if not os.path.lexists(link):
                link.symlink_to(path)
            for one in (path, str(link)):
                with pytest.raises(OfTheKernel):
                    os.close(paths.open_path(one, os.O_PATH))
        for path in own:
            with pytest.raises(OfTheKernel):
                os.close(paths.open_path(path, os.O_PATH, kernel=True))
        os.close(paths.open_path("/proc", os.O_PATH, kernel=True))
    finally:
        os.close(held)


def test_compiled_code_has_the_same_list():
    source = Path(paths.__file__).with_name("early_files.c").read_text()
    listed = re.search(r"kernel_file_systems\[\] = \{([^}]*)\}", source)
    assert listed is not None
    assert {int(number, 16) for number in listed[1].split(",")} == paths.KERNEL_FILE_SYSTEMS


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("f", "f"),
        ("d/new", "d/new"),
        ("to-f", "d/f"),
        ("to-nothing", "nothing"),
        ("a/b/c", "a/b/c"),
        ("chain-of-links", "x/y"),
        ("to-missing/f", "missing/f"),
        ("d/", IsADirectoryError),
        ("d/..", IsADirectoryError),
        ("loop", OSError),
        ("round/f", OSError),
        ("d/f/x", NotADirectoryError),
        ("to-slash", IsADirectoryError),
    ],
)
def test_the_place_of_a_file(tmp_path, monkeypatch, path, expected):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("")
    links = {"to-f": "d/f", "to-nothing": "nothing", "chain-of-links": "d/next", "d/next": "../x/y", "to-missing": "missing"}
    links |= {"loop": "loop", "round": "round", "to-slash": "d/"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    if isinstance(expected, str):
        folder, name = paths.find_place(path, make=True)
        assert f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}" == str(tmp_path / expected)
        os.close(folder)
    else:
        with pytest.raises(expected):
            paths.find_place(path, make=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_endless_file_ends_at_the_size_limit(tmp_path, monkeypatch):
    """Code inside writes as fast as it is read: here before each piece."""
    monkeypatch.setattr(reading, "LARGEST_BYTES", 3 * reading.PIECE_BYTES)
    (tmp_path / "f").write_bytes(bytes(reading.PIECE_BYTES))
    got = []
    with pytest.raises(Refused) as caught:
        for piece in reading._contents(os.open(tmp_path / "f", os.O_RDONLY), "f", 0, reading.LARGEST_BYTES):
            got.append(len(piece))
            with open(tmp_path / "f", "ab") as file:
                file.write(bytes(reading.PIECE_BYTES))
    assert (caught.value.body["reason"], sum(got)) == ("too_large", 3 * reading.PIECE_BYTES)


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


# -- of sandboxes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=WAYS, scope="module")
async def backend(request, anyio_backend):
    async for opened in open_by(request.param):
        yield opened


OWN = (
    *("/proc/self/exe", "/proc/self/root", "/proc/self/root/etc", "/proc/self/cwd", f"/proc/self/fd/{newborn.LAYER}"),
    *(f"/proc/self/fd/{newborn.NOTE}", f"/dev/fd/{newborn.LAYER}/workspace", "/proc/thread-self/root", "/proc/1/cwd"),
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


@pytest.mark.parametrize("python", [False, True], ids=["at once", "of Python"])
async def test_no_file_call_goes_to_what_is_no_file_of_the_sandbox(make_box, python):
    async with make_box() as box:
        targets = [*OWN, *KERNELS]
        links = "\n".join(f"ln -s {path} link{number}" for number, path in enumerate(targets))
        await box.sh(links)
        if python:
            await box.run("cat", stdin=b"")
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


@pytest.mark.parametrize("python", [False, True], ids=["at once", "of Python"])
async def test_no_command_begins_in_what_process_1_has_open(make_box, python):
    async with make_box() as box:
        if python:
            await box.run("cat", stdin=b"")
        for number, target in enumerate(path for path in OWN if not path.endswith(("exe", f"/{newborn.NOTE}"))):
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
