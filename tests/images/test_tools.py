"""Tools of an interpreter: whatever is first on PATH belongs together."""

from __future__ import annotations

import os
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aviato.server.backends.landlock import plan as landlock_plan
from aviato.server.backends.local import facts, plan, tools
from aviato.server.backends.local import landlock_calls as calls
from aviato.server.images.interpreters import Interpreter
from tests.environments import make_environment
from tests.real_backend import open_backend

pytestmark = pytest.mark.anyio


# -- found by looking at files ---------------------------------------------------------------------------------------------

PYTHON = "/usr/bin/python3.11"


def write(path, text="", mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("name", "content", "strange"),
    [
        ("pip", "#!{own}\n", False),
        ("pip", "#!{own} -I\n", False),
        ("pip", "#! {link}\n", False),
        ("pip", "#!{other}\n", True),
        ("pip", "#!/bin/sh\n'''exec' {own} \"$0\" \"$@\"\n' '''\n", False),
        ("pip", "#!/bin/sh\n'''exec' \"{other}\" \"$0\" \"$@\"\n' '''\n", True),
        ("pip", "\x7fELF", True),
        ("pip", "", True),
        ("pip3.12", "#!{other}\n", True),
        ("pydoc3", "#!{other}\n", True),
        ("idle", "#!{own}\n", False),
        ("2to3", "#!{other}\n", True),
        ("python3.12-config", "#!/bin/sh\n", False),
        ("python3.12d-config", "#!/bin/sh\n", False),
        ("python3-config", "#!/bin/sh\n", True),
        ("pytest", "#!{other}\n", False),
    ],
)
def test_whose_a_tool_is(tmp_path, name, content, strange):
    own, other = write(tmp_path / "usr/python3.12"), write(tmp_path / "usr/python3.11")
    (tmp_path / "usr/python3").symlink_to("python3.12")
    write(tmp_path / "usr" / name, content.format(own=own, other=other, link=tmp_path / "usr/python3"))
    one = Interpreter(minor=12, executable=str(own), prefix="/usr")
    expected = ((str(own), (name,)),) if strange else ()
    assert facts.strangers([one], [str(tmp_path / "usr")]) == expected


def test_the_first_on_path_counts(tmp_path):
    own, other = write(tmp_path / "opt/bin/python3.12"), write(tmp_path / "bin/python3.11")
    write(tmp_path / "bin/pip", f"#!{other}\n")
    write(tmp_path / "bin/pip3", f"#!{other}\n")
    write(tmp_path / "local/pip", f"#!{own}\n")
    write(tmp_path / "local/pip3", f"#!{own}\n", 0o644)
    write(tmp_path / "bin/2to3", f"#!{other}\n")
    (tmp_path / "local/2to3").mkdir()
    path = [str(tmp_path / "missing"), str(tmp_path / "local"), str(tmp_path / "bin")]
    bare = Interpreter(minor=12, executable=str(own), prefix=str(tmp_path / "opt"))
    assert facts.strangers([bare], path) == ((str(own), ("pip3", "2to3")),)
    write(tmp_path / "opt/bin/pip3", "#!/of/its/own")
    assert facts.strangers([bare], path) == ((str(own), ("2to3",)),)
    config = write(tmp_path / "bin/x86_64-linux-gnu-python3.12-config")
    (tmp_path / "bin/python3-config").symlink_to(config)
    assert facts.strangers([bare], path) == ((str(own), ("2to3",)),)


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        (None, plan.BASE_PATH),
        ("/usr", f"/.aviato/bin:{plan.BASE_PATH}"),
        ("/usr/local", f"/.aviato/bin:{plan.BASE_PATH}"),
        ("/opt/py", f"/.aviato/bin:/opt/py/bin:{plan.BASE_PATH}"),
    ],
)
def test_the_path_of_a_sandbox(prefix, path):
    assert plan.environment(prefix)["PATH"] == path
    landlocked = landlock_plan.environment("/p", prefix)["PATH"]
    assert landlocked == path.replace("/.aviato/bin", "/p/bin").replace("/root/.local/bin", "/p/root/home/.local/bin")


# -- in sandboxes ----------------------------------------------------------------------------------------------------------

LOOK = """
import os, re, shutil, sys
wrong = []
for name in sys.argv[2:]:
    path = shutil.which(name)
    if path is None: continue
    real = os.path.realpath(path)
    with open(real, "rb") as file: first = file.readline().decode("utf-8", "replace")
    if re.search("python3[.]%s[a-z]*-config$" % sys.argv[1], real): continue
    if not first.startswith("#!") or os.path.realpath(first[2:].split()[0]) != os.path.realpath(sys.executable):
        wrong.append((name, path, first))
print(wrong)
"""


@pytest.fixture(params=["local", "landlock"])
async def other(request, backend):
    """Backends of both kinds."""
    if request.param == "local":
        yield backend
        return
    if not calls.abi():
        pytest.skip("this kernel has no Landlock")
    async for opened in open_backend("landlock"):
        yield opened


async def test_names_of_each_interpreter_are_its_own(other, boxes, tmp_path):
    for one in other._images._interpreters:
        async with boxes.make_box(other, f"python:{one.version}") as box:
            if (chosen := other._images.resolve(f"python:{one.version}").interpreter) != one.executable:
                continue  # There are two of this version.
            result = await box.run("python3", "-c", LOOK, str(one.minor), *tools.names(one.minor))
            assert result.stdout == "[]\n", (chosen, result.stderr)


def wheel(path):
    """A package that pip takes."""
    info = "tiny_of_a_test-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_of_a_test.py", "X = 6 * 7\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-of-a-test\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"tiny_of_a_test.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path.read_bytes()


@pytest.fixture
def open_directory():
    """One that sandboxes with ids of their own can come to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def another(backend):
    """An interpreter that is not the machine's own, or the only one."""
    return next((one for one in backend._images._interpreters if not one.prefix.startswith("/usr") and one.minor >= 8), None)


@pytest.mark.parametrize("with_packages", [False, True], ids=["plain", "packages"])
async def test_what_pip_installs_can_be_imported(other, boxes, open_directory, with_packages):
    one = another(other) or other._images._interpreters[0]
    package = {"greetings": "X = 1"}
    packages = str(make_environment(open_directory / "env", minor=one.minor, **package)) if with_packages else None
    name = "tiny_of_a_test-1.0-py3-none-any.whl"
    async with boxes.make_box(other, f"python:{one.version}", packages=packages) as box:
        await box.put(name, wheel(open_directory / name))
        done = await box.run("pip", "install", "-q", "--disable-pip-version-check", "--no-index", f"./{name}")
        if "has none here" in done.stderr or done.returncode == 127:
            pytest.skip("this interpreter has no pip")
        assert done.returncode == 0, done.stderr
        assert (await box.run("python3", "-c", "import tiny_of_a_test as t; print(t.X)")).stdout == "42\n"
        done = await box.run("pip", "install", "-q", "--no-index", "--target", "there", f"./{name}")
        assert (done.returncode, (await box.run("ls", "there/tiny_of_a_test.py")).returncode) == (0, 0), done.stderr
        if with_packages:
            assert "greetings" in (await box.run("pip", "list", "--format=freeze", "--disable-pip-version-check")).stdout


@pytest.mark.parametrize("layered", [True, False], ids=["on a base root", "by itself"])
async def test_names_that_mean_another_interpreter_are_replaced(other, boxes, monkeypatch, layered):
    one = max(other._images._interpreters, key=lambda one: one.minor)
    strange = ((one.executable, ("pydoc", "2to3", "python3-config", "idle3")),)
    monkeypatch.setattr(other, "_facts", replace(other._facts, strange_tools=strange))
    monkeypatch.setattr(other, "_layered", other._layered and layered)
    async with boxes.make_box(other, f"python:{one.version}") as box:
        for name in strange[0][1]:
            where = (await box.run("which", name)).stdout.strip()
            assert os.path.dirname(where) == (await box.sh("dirname $(which python3)")).stdout.strip()
        await box.put("platform_of_a_test.py", b"'''Its words.'''")
        assert "Its words." in (await box.run("pydoc", "platform_of_a_test")).stdout
        assert f"python3.{one.minor}" in (await box.run("pydoc", "this")).stdout
        has = (await box.run("python3", "-c", "import lib2to3")).returncode == 0
        told = await box.run("2to3", "-l")
        assert told.returncode == (0 if has else 127)
        assert has or told.stderr == f"2to3: Python 3.{one.minor} has none here\n"
        config = await box.run("python3-config", "--includes")
        assert (
            f"python3.{one.minor}" in config.stdout or config.stderr == f"python3-config: Python 3.{one.minor} has none here\n"
        )
