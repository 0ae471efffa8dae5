"""Directories of packages: what is taken for one, what is refused and in which words, and what a sandbox then sees."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.server.images import packages as looked_at
from aviato.server.images.packages import Packages
from tests.environments import install, interpreter, make_environment, site_of

pytestmark = pytest.mark.anyio
GREETINGS = "WORD = 'hello'\n"
SAY = "import greetings; print(greetings.WORD)"


def found(reference, *, registered=None, foreign=False, **options):
    """Where its packages are."""

    async def find():
        async with Packages(registered or {}, foreign=foreign, **options).held(str(reference), interpreter()) as directory:
            return directory

    return asyncio.run(find())


def why_not(reference, **options):
    with pytest.raises(AviatoValidationError) as caught:
        found(reference, **options)
    text = str(caught.value)
    assert text.startswith("packages: ") and "\n" not in text and caught.value.field_violations.keys() == {"packages"}
    return text


# -- what is one


def test_an_environment_and_what_is_in_one(tmp_path):
    site = site_of(make_environment(tmp_path / "env", greetings=GREETINGS))
    for path in (tmp_path / "env", site):
        directory = found(path)
        there = site.stat()
        assert directory == (str(site), there.st_dev, there.st_ino)
    (tmp_path / "link").symlink_to("env")
    assert found(tmp_path / "link").path == str(site)
    assert found("mine", registered={"mine": str(tmp_path / "link")}).path == str(site)


def test_a_prefix_without_a_configuration(tmp_path):
    """As conda makes them; its own version may be one of several."""
    environment = make_environment(tmp_path / "env", greetings=GREETINGS)
    (environment / "pyvenv.cfg").unlink()
    (environment / "lib" / "python3.99" / "site-packages").mkdir(parents=True)
    assert found(environment).path == str(site_of(environment).parents[1] / f"python{interpreter().version}" / "site-packages")


@pytest.mark.parametrize("line", ["version_info = {}.1.final.0", "version={}", "home = /version = 2.7\nversion = {}.0"])
def test_the_version_of_a_configuration(tmp_path, line):
    environment = make_environment(tmp_path / "env", greetings=GREETINGS)
    (environment / "pyvenv.cfg").write_text(line.format(interpreter().version) + "\n")
    assert found(environment).path == str(site_of(environment))
    (environment / "pyvenv.cfg").write_text(line.format("3.99") + "\n")
    assert "it is of Python 3.99, and the sandbox's python is" in why_not(environment)


def test_a_target_of_pip(tmp_path):
    assert found(install(tmp_path / "target", greetings=GREETINGS)).path == str(tmp_path / "target")


# -- what is none


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh" / "id_ed25519").write_text("secret")
    (tmp_path / "script.py").write_text("x = 1")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_what_is_no_directory_of_packages(home):
    for path in (home / ".ssh", home, home / "empty", "/", "/proc", "/proc/self", "/dev", "/etc", "/sys"):
        assert "it is neither a virtual environment (pyvenv.cfg) nor has it installed packages in it" in why_not(path), path
    assert "No such file or directory on the server's machine" in why_not(home / "absent")
    assert "Not a directory on the server's machine" in why_not(home / "script.py")
    assert "is no name of packages that this server has; none are registered" in why_not("absent")
    assert "registered: 'a', 'b'" in why_not("c", registered={"b": "/b", "a": "/a"})
    assert why_not("a\0b")


def test_an_environment_of_another_python(tmp_path):
    other = interpreter().minor + 1
    environment = make_environment(tmp_path / "env", minor=other, greetings=GREETINGS)
    for path in (environment, site_of(environment)):
        text = why_not(path)
        assert f"Python 3.{other}" in text and interpreter().version in text and f"container_image='python:3.{other}'" in text


def test_a_wheel_of_another_python(tmp_path):
    target = install(tmp_path / "target", greetings=GREETINGS)
    wheel = target / "greetings-1.0.dist-info" / "WHEEL"
    own = f"cp3{interpreter().minor}"
    for tags in (
        ["py3-none-any"],
        [f"{own}-{own}-linux_x86_64"],
        ["cp37-abi3-linux_x86_64"],
        ["cp39-cp39-linux", f"{own}-{own}-linux"],
    ):
        wheel.write_text("".join(f"Tag: {tag}\n" for tag in tags))
        assert found(target).path == str(target), tags
    wheel.write_text("Wheel-Version: 1.0\nTag: cp399-cp399-manylinux_2_17_x86_64\n")
    assert "greetings-1.0.dist-info in it is of Python 3.99" in why_not(target)


def test_an_environment_that_has_lost_its_packages(tmp_path):
    environment = make_environment(tmp_path / "env", greetings=GREETINGS)
    site = site_of(environment)
    shutil.rmtree(site)
    assert f"it has no lib/python{interpreter().version}/site-packages" in why_not(environment)
    shutil.rmtree(site.parents[1])
    assert f"it has no lib/python{interpreter().version}/site-packages" in why_not(environment)


def test_links_inside_an_environment_are_not_followed(home):
    """Whoever may write in an environment could lead to what its owner may read."""
    environment = make_environment(home / "env")
    site = site_of(environment)
    for part in (site, site.parent, site.parents[1]):
        away = part.with_name("away")
        part.rename(away)
        part.symlink_to(away)
        assert "has no lib/python" in why_not(environment) or "it is neither" in why_not(environment)
        part.unlink()
        away.rename(part)
    (home / ".ssh" / "config").write_text("version = 3.99\n")
    (environment / "pyvenv.cfg").unlink()
    (environment / "pyvenv.cfg").symlink_to(home / ".ssh" / "config")
    assert found(environment).path == str(site)  # By the directory's name; the file was not read.


def test_what_sandboxes_with_other_ids_cannot_read(tmp_path):
    environment = make_environment(tmp_path / "env", greetings=GREETINGS, farewells="")
    site = site_of(environment)
    assert found(environment, foreign=True).path == str(site)
    for closed in (site, site / "greetings", site / "greetings-1.0.dist-info"):
        mode = closed.stat().st_mode
        closed.chmod(0o700)
        text = why_not(environment, foreign=True)
        assert "chmod -R a+rX" in text and (closed == site or repr(closed.name) in text)
        assert found(environment).path == str(site)  # Those of the server's own id can.
        closed.chmod(stat.S_IMODE(mode))
    (site / "dangling").symlink_to("nowhere")
    assert found(environment, foreign=True).path == str(site)
    # Bound by itself it can lie in a home that is closed; by its path nobody comes to it.
    tmp_path.chmod(0o700)
    assert found(environment, foreign=True).path == str(site)
    assert "a directory above it is closed" in why_not(environment, foreign=True, by_path=True)


def test_what_no_sandbox_may_see(tmp_path):
    target = install(tmp_path / "target", greetings=GREETINGS)
    for private in (target, target / "secrets", tmp_path):
        assert "no sandbox may see" in why_not(target, private=[str(private)])
    assert found(target, private=[str(tmp_path / "tar"), str(tmp_path / "target2")]).path == str(target)


def test_what_goes_while_it_is_looked_at(tmp_path, monkeypatch):
    environment = make_environment(tmp_path / "env", greetings=GREETINGS)
    monkeypatch.setattr(looked_at.os, "readlink", lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    assert "Input/output error" in why_not(environment)


# -- what was seen before


def test_what_was_seen_counts_for_a_while(tmp_path, monkeypatch):
    """Not as long as another directory is there, or names in it have come and gone."""
    environment, other = (make_environment(tmp_path / name, greetings=GREETINGS) for name in ("env", "other"))
    (tmp_path / "link").symlink_to(environment)
    looks = []
    monkeypatch.setattr(looked_at._Look, "check_content", lambda self, found, path: looks.append(path))

    async def main():
        known = Packages({})

        async def at():
            async with known.held(str(tmp_path / "link"), interpreter()) as directory:
                return directory.path

        assert [await at() for _ in range(3)] == [str(site_of(environment))] * 3 and len(looks) == 1
        (site_of(environment) / "new.py").write_text("")
        assert await at() == str(site_of(environment)) and len(looks) == 2
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to(other)
        assert await at() == str(site_of(other)) and len(looks) == 3
        monkeypatch.setattr(looked_at.time, "monotonic", lambda: 1e12)
        assert await at() == str(site_of(other)) and len(looks) == 4
        shutil.rmtree(other)
        with pytest.raises(AviatoValidationError):
            await at()

    asyncio.run(main())


def test_nothing_stays_open(tmp_path):
    environment = make_environment(tmp_path / "env", greetings=GREETINGS)

    async def main():
        known = Packages({}, private=["/nowhere"])
        await asyncio.to_thread(len, "")
        before = os.listdir("/proc/self/fd")
        for path in (environment, site_of(environment), environment, tmp_path, "/absent", tmp_path):
            with contextlib.suppress(AviatoValidationError):
                async with known.held(str(path), interpreter()):
                    assert len(os.listdir("/proc/self/fd")) > len(before)
        assert len(os.listdir("/proc/self/fd")) == len(before)

    asyncio.run(main())


# -- inside


@pytest.fixture
def environment():
    """Where landlock's ids can come to it."""
    path = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    path.chmod(0o755)
    yield make_environment(path / "env", greetings=GREETINGS)
    shutil.rmtree(path)


@pytest.fixture(params=["usual", "plain", "old"])
def way(request, backend, monkeypatch):
    """As they are here, as on machines that put no layers over one another, and as on old kernels."""
    if request.param in ("plain", "old"):
        monkeypatch.setattr(backend, "_layered", False)
    if request.param == "old":
        monkeypatch.setattr(backend, "_modern", False)
    return request.param


async def test_they_are_imported_however_python_is_started(way, make_box, environment):
    async with make_box(packages=str(environment)) as box:
        for argv in (["python"], ["python3", "-I"], ["python3", "-E", "-s"], [f"python{interpreter().version}", "-P"]):
            if argv[-1] != "-P" or interpreter().minor >= 11:
                result = await box.run(*argv, "-c", SAY)
                assert result.stdout == "hello\n", (argv, result.stderr)
        nowhere = {"HOME": "/nowhere", "PYTHONNOUSERSITE": "1", "PYTHONPATH": "/tmp"}
        assert (await box.run("python3", "-c", SAY, env=nowhere)).stdout == "hello\n"
        started = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAY!r}])"
        assert (await box.run("python3", "-c", started)).stdout == "hello\n"
        spawned = "import multiprocessing as m, greetings\nif __name__ == '__main__':\n"
        spawned += "    with m.get_context('spawn').Pool(1) as p: print(p.apply(eval, ('__import__(\"greetings\").WORD',)))\n"
        await box.put("/workspace/main.py", spawned.encode())
        result = await box.run("python3", "main.py")
        assert result.stdout == "hello\n", result.stderr


async def test_after_the_standard_library_and_beside_what_is_installed(make_box, environment):
    for name in ("json", "this_is_new"):
        install(site_of(environment), **{name: "OWN = True"})
    source = "import json, this_is_new, sys; print(hasattr(json, 'OWN'), this_is_new.OWN, sys.prefix != sys.base_prefix)"
    async with make_box() as plain, make_box(packages=str(environment)) as box:
        assert (await box.run("python3", "-c", source)).stdout == "False True True\n"
        paths = "import sys; print([path for path in sys.path if path])"
        assert set(eval((await plain.run("python3", "-c", paths)).stdout)) < set(
            eval((await box.run("python3", "-c", paths)).stdout)
        )
        assert (await plain.run("python3", "-c", SAY)).returncode == 1


async def test_path_files_of_an_environment(make_box, environment, tmp_path):
    """What lies beside them is found, what they run is run, and what is elsewhere on the machine is not there."""
    site = site_of(environment)
    (site / "more").mkdir()
    (site / "more" / "beside.py").write_text("X = 1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "editable.py").write_text("X = 1")
    (site / "more.pth").write_text(f"more\n{tmp_path / 'elsewhere'}\nimport sys; sys.ran = 'ran'\n")
    async with make_box(packages=str(environment)) as box:
        assert (await box.run("python3", "-c", "import beside, sys; print(sys.ran)")).stdout == "ran\n"
        assert "No module named 'editable'" in (await box.run("python3", "-c", "import editable")).stderr


async def test_nothing_inside_changes_them(way, make_box, environment):
    site = site_of(environment)
    site.chmod(0o777)
    for path in site.rglob("*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    async with make_box(packages=str(environment)) as box:
        where = (
            await box.run("python3", "-c", "import greetings, os; print(os.path.dirname(greetings.__file__))")
        ).stdout.strip()
        assert where.startswith("/.aviato/lib/")
        for script in (
            "touch new",
            "echo x > __init__.py",
            "rm __init__.py",
            "mv __init__.py other",
            "chmod 700 .",
            "rmdir ..",
        ):
            assert (await box.sh(f"cd {where} && {script}")).returncode != 0, script
        mounts = (await box.run("cat", "/proc/self/mountinfo")).stdout
        [line] = [line.split() for line in mounts.splitlines() if line.split()[4].endswith("/site-packages")]
        assert {"ro", "nosuid", "nodev"} <= set(line[5].split(","))
        assert line[6] == "-", f"nothing that is mounted there later comes to it: {line}"
    assert sorted(path.name for path in site.iterdir()) == ["greetings", "greetings-1.0.dist-info"]
    assert (site / "greetings" / "__init__.py").read_text() == GREETINGS


async def test_what_is_installed_inside_lies_elsewhere(make_box, environment):
    """As `pip install --user` does, whatever of it is there."""
    async with make_box(packages=str(environment)) as box:
        user = (await box.run("python3", "-c", "import site; print(site.getusersitepackages())")).stdout.strip()
        await box.put(f"{user}/later.py", b"X = 2")
        await box.put(f"{user}/greetings.py", b"WORD = 'mine'")
        assert (await box.run("python3", "-c", "import later, greetings; print(later.X, greetings.WORD)")).stdout == "2 hello\n"


async def test_one_after_the_other_with_others(way, make_box, environment, tmp_path):
    """Places that sandboxes have left go to others, whose packages are their own."""
    other = make_environment(tmp_path / "other", greetings="WORD = 'good day'")
    for _ in range(3):
        for path, word in ((environment, "hello\n"), (other, "good day\n"), (None, "")):
            async with make_box(packages=None if path is None else str(path)) as box:
                assert (await box.run("python3", "-c", SAY)).stdout == word
        await asyncio.sleep(0.06)  # After which a place can be had again; what is tested holds without.


@pytest.mark.parametrize("by", ["rename", "link"])
async def test_what_is_put_in_its_place_is_not_bound(way, backend, make_box, environment, tmp_path, monkeypatch, by):
    site, create = site_of(environment), backend._create_somewhere
    away = site.with_name("away")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "secret").write_text("secret")

    async def swapped(spec):
        site.rename(away)
        if by == "link":
            site.symlink_to(tmp_path / "hidden")
        else:
            shutil.copytree(tmp_path / "hidden", site)
        return await create(spec)

    monkeypatch.setattr(backend, "_create_somewhere", swapped)
    with pytest.raises(SandboxUnavailableError):
        async with make_box(packages=str(environment)):
            pass
    shutil.rmtree(site) if by == "rename" else site.unlink()
    away.rename(site)
    monkeypatch.setattr(backend, "_create_somewhere", create)
    async with make_box(packages=str(environment)) as box:
        assert (await box.run("python3", "-c", SAY)).stdout == "hello\n"


async def test_each_interpreter_of_this_machine(backend, make_box, tmp_path):
    for one in backend._images._interpreters[:4]:
        environment = make_environment(tmp_path / one.version / one.prefix[1:], minor=one.minor, greetings=GREETINGS)
        async with make_box(f"python:{one.version}", packages=str(environment)) as box:
            result = await box.run("python3", "-c", f"import sys; print(sys.version_info[1]); {SAY}")
            assert result.stdout == f"{one.minor}\nhello\n", result.stderr


async def test_an_image_of_a_directory_has_its_own(backend, tmp_path, environment):
    (tmp_path / "root").mkdir()
    image = backend.resolve_image(f"dir:{tmp_path / 'root'}")
    with pytest.raises(AviatoValidationError, match="install packages in its image"):
        await backend.check_packages(str(environment), image, registered=False)
