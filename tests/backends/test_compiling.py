"""How the compiled part is made, and that none is used that was made from other sources than are there."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aviato
from aviato.server.backends.local import compiling, native

PACKAGE = os.path.dirname(aviato.__file__)
pytestmark = pytest.mark.skipif(native.load() is None, reason="there is no compiled part")


def test_it_says_what_it_was_made_from():
    said = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(native.load(), "aviato_sources"))).decode()
    assert said == compiling.mark(PACKAGE) and re.fullmatch("aviato-sources:[0-9a-f]{64}", said)


def readelf(*flags):
    return subprocess.run(["readelf", "-W", *flags, native.LIBRARY], capture_output=True, text=True, check=True).stdout


needs_readelf = pytest.mark.skipif(shutil.which("readelf") is None, reason="there is no readelf on this machine")


@needs_readelf
def test_what_is_linked_cannot_be_changed_later():
    dynamic, segments = readelf("-d"), readelf("-l")
    assert "BIND_NOW" in dynamic and "TEXTREL" not in dynamic and "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert re.search(r"GNU_RELRO.* R  +0x", segments)
    assert re.search(r"GNU_STACK.* RW  +0x", segments)
    assert not re.search(r"LOAD.* RWE ", segments)


@needs_readelf
def test_it_shows_what_is_called_by_name_and_no_more():
    """By Python, or by a test."""
    symbols = [line.split() for line in readelf("--dyn-syms").splitlines() if re.match(r" +\d+: [0-9a-f]+", line)]
    shown = {fields[7] for fields in symbols if fields[6] != "UND"}
    code = "".join(Path(PACKAGE, name).read_text() for name in compiling.sources(PACKAGE) if name.endswith(".c"))
    assert shown == set(re.findall(r"^EXPORTED .*?\b(aviato_\w+)[\[(]", code, re.MULTILINE))
    callers = [*Path(PACKAGE, "server/backends/local").glob("*.py"), *Path(__file__).parent.glob("*.py")]
    assert shown <= set(re.findall(r"\baviato_\w+", "".join(path.read_text() for path in callers)))


@needs_readelf
def test_it_looks_at_its_stack_and_its_buffers():
    wanted = readelf("--dyn-syms")
    assert "__stack_chk_fail" in wanted
    assert platform.libc_ver()[0] != "glibc" or re.search(r"__\w+_chk@", wanted)


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, as far as the compiled part needs it, with the library."""
    for name in [*compiling.sources(PACKAGE), compiling.LIBRARY]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"{PACKAGE}/{name}", tmp_path / name)
    return tmp_path


def test_an_untouched_copy_is_current(copy):
    assert compiling.is_current(str(copy))


HEADER, SOURCE = "server/supervisor/early.h", "server/backends/local/birth.c"
CHANGES = {
    "a source": lambda package, _: (package / SOURCE).write_text((package / SOURCE).read_text() + "\n"),
    "a header": lambda package, _: (package / HEADER).write_text((package / HEADER).read_text() + "\n"),
    "another file": lambda package, _: (package / "server/supervisor/more.c").write_text(""),
    "one that is gone": lambda package, _: (package / "server/supervisor/early_files.c").unlink(),
    "one that is another": lambda package, _: (package / HEADER).rename(package / "server/supervisor/late.h"),
    "contents that were moved": lambda package, _: swap(package / SOURCE, package / HEADER),
    "no sources": lambda package, _: shutil.rmtree(package / "server/supervisor"),
    "flags": lambda _, patch: patch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-g")),
    "a library that says nothing": lambda package, _: (package / compiling.LIBRARY).write_bytes(b"\x7fELF"),
    "no library": lambda package, _: (package / compiling.LIBRARY).unlink(),
}


def swap(one: Path, other: Path):
    first, second = one.read_text(), other.read_text()
    one.write_text(second)
    other.write_text(first)


@pytest.mark.parametrize("change", CHANGES)
def test_another_is_not_current(copy, monkeypatch, change):
    CHANGES[change](copy, monkeypatch)
    assert not compiling.is_current(str(copy))


ASK = """
import json, os
from aviato.server.backends.local import native, probe
used = native.wanted()
print(json.dumps([used, native.load() is not None, native.renew(), probe.native_check(used).detail]))
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the whole package, whose library is older than its sources."""
    package = tmp_path / "aviato"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so.*"))
    (package / SOURCE).write_text((package / SOURCE).read_text() + "/* changed */\n")
    return tmp_path


def ask(tree, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "AVIATO_COMPILED")}
    argv = [sys.executable, "-P", "-c", ASK]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, env={**environment, "PYTHONPATH": str(tree), **variables}, cwd=tree
    )
    return json.loads(done.stdout)


def test_an_old_one_is_made_anew(tree):
    used, loaded, said, detail = ask(tree)
    assert used and loaded and compiling.is_current(str(tree / "aviato"))
    assert said == "the compiled part of aviato was made from other sources, and was compiled anew"
    assert detail == "sandboxes are made by compiled code"
    assert ask(tree)[2] is None


def no_compiler(tree):
    return "there is no C compiler", {"CC": "no-such-compiler"}


def no_sources_that_compile(tree):
    with (tree / "aviato" / SOURCE).open("a") as file:
        file.write("no C\n")
    return "error", {}


@pytest.mark.parametrize("why", [no_compiler, no_sources_that_compile])
def test_an_old_one_that_cannot_be_made_anew_is_left_out(tree, why):
    reason, variables = why(tree)
    used, loaded, said, detail = ask(tree, **variables)
    assert not used and not loaded
    assert said.startswith(
        "the compiled part of aviato was made from other sources, is left out, and could not be compiled anew: "
    )
    assert reason in said and said in detail and detail.startswith("sandboxes are made by Python code alone")
    assert sorted(path.name for path in (tree / "aviato/server/backends/local").glob("*.so*")) == ["libaviato.so"]


def test_one_that_was_never_made_is_not_made_unasked(tree):
    (tree / "aviato" / compiling.LIBRARY).unlink()
    assert ask(tree)[:3] == [False, False, None]
    assert not (tree / "aviato" / compiling.LIBRARY).exists()


def test_a_directory_that_is_somebody_elses(copy, monkeypatch):
    """As that of an installation for all users."""
    (copy / SOURCE).write_text((copy / SOURCE).read_text() + "\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert compiling.compile_library(str(copy)) == f"{copy}/server/backends/local cannot be written to"
