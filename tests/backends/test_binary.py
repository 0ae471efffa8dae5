"""What is said of an `aviato-init` that cannot be used, and how one is built anew."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aviato.server.backends.local import binary
from aviato.server.backends.local.binary import Kind

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}


def elf(machine: str, *, dynamic: bool = False) -> bytes:
    """The begin of a program, with one segment."""
    number = next(number for number, name in binary.MACHINES.items() if name == machine)
    header = bytearray(64)
    header[:7] = b"\x7fELF\2\1\1"
    header[18:20] = number.to_bytes(2, "little")
    header[32:40] = (64).to_bytes(8, "little")
    header[54:56] = header[52:54] = (56).to_bytes(2, "little")
    header[56] = 1
    return bytes(header) + (binary.LINKED_AT_START if dynamic else 1).to_bytes(4, "little") + bytes(1000)


# It writes down that it ran, and answers as cargo does.
CARGO = f"""#!{sys.executable}
import json, os, sys
with open("ran", "a") as file:
    file.write("once\\n")
os.makedirs("target", exist_ok=True)
with open("target/made", "wb") as file:
    file.write(open("what", "rb").read())
print(json.dumps({{"reason": "compiler-artifact", "executable": None, "target": {{"name": "another"}}}}))
print(json.dumps({{"executable": os.path.abspath("target/made"), "target": {{"name": "aviato-init"}}}}))
sys.exit(os.path.exists("fails"))
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A checkout with sources, a cargo that makes what `init/what` has, and nothing built."""
    tree = tmp_path / "tree"
    for name, text in {"Cargo.toml": "[package]", ".cargo/config.toml": "", "src/main.rs": "fn main() {}"}.items():
        path = tree / "init" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree / "init" / "what").write_bytes(elf(binary.architecture()))
    (tree / "aviato/server/backends/local").mkdir(parents=True)
    cargo = tmp_path / "programs" / "cargo"
    cargo.parent.mkdir()
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cargo.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(binary.VARIABLE, raising=False)
    monkeypatch.setattr(binary, "PACKAGE", str(tree / "aviato"))
    return tree


@pytest.fixture
def built(tree):
    assert binary.build(str(tree)) is None
    assert binary.trouble() is None
    return Path(binary.found())


def installed(tree):
    """As from a wheel: no sources."""
    (tree / "init" / "Cargo.toml").unlink()


def test_missing(tree):
    trouble = binary.trouble()
    assert trouble.kind is Kind.MISSING
    assert str(trouble) == f"aviato-init ({tree}/aviato/{binary.PROGRAM}) is missing; repair: pip install -e {tree}"
    installed(tree)
    assert binary.trouble().repair == "pip install --force-reinstall --no-deps aviato-sandbox"


def test_missing_where_there_is_no_cargo(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CARGO_HOME", str(tmp_path))
    assert binary.trouble().repair == f"sudo apt install cargo libc6-dev && pip install -e {tree}"
    line = "aviato-init cannot be compiled: there is no cargo; repair: sudo apt install cargo libc6-dev"
    assert (binary.build(str(tree)), binary.renew()) == (line, line)


@pytest.mark.parametrize("size", [0, 3, 63, 500])
def test_cut(built, size):
    os.truncate(built, size)
    trouble = binary.trouble()
    assert trouble.kind is Kind.CUT and "is cut, or was changed since it was built" in trouble.said
    assert trouble.repair.startswith("pip install -e ")


def test_another_architecture(built):
    built.write_bytes(elf(OTHER[binary.architecture()]))
    trouble = binary.trouble()
    assert trouble.kind is Kind.ARCHITECTURE
    assert f"is for {OTHER[binary.architecture()]}, and this machine is {binary.architecture()}" in trouble.said


def test_not_executable(built):
    built.chmod(0o644)
    trouble = binary.trouble()
    assert trouble.kind is Kind.NOT_EXECUTABLE and trouble.repair == f"chmod 755 {built}"


CHANGES = {
    "a source": lambda tree: (tree / "init/src/main.rs").write_text("fn main() { }"),
    "another file": lambda tree: (tree / "init/src/more.rs").write_text(""),
    "flags": lambda tree: (tree / "init/.cargo/config.toml").write_text("[build]"),
    "no mark": lambda tree: (tree / "aviato" / binary.MARK).unlink(),
    "a mark of another kind": lambda tree: (tree / "aviato" / binary.MARK).write_text("x\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_build(built, tree, change):
    CHANGES[change](tree)
    trouble = binary.trouble()
    assert trouble.kind is Kind.BUILD and "of another build than the Python code beside it" in trouble.said
    assert binary.renew() == "aviato-init was made from other sources, and was compiled anew"
    assert (binary.trouble(), binary.renew()) == (None, None)


def test_an_installed_one_has_no_sources_to_fit(built, tree):
    installed(tree)
    assert (binary.trouble(), binary.renew()) == (None, None)
    (tree / "aviato" / binary.MARK).unlink()
    assert binary.trouble().kind is Kind.BUILD


NAMED = {
    "nothing": (lambda path: None, Kind.MISSING, "is missing"),
    "a directory": (lambda path: path.mkdir(), Kind.NO_PROGRAM, "cannot be read: Is a directory"),
    "a text": (lambda path: path.write_text("#!/bin/sh\n" * 20), Kind.NO_PROGRAM, "is no program"),
    "an empty file": (lambda path: path.write_text(""), Kind.NO_PROGRAM, "is no program"),
    "of another machine": (
        lambda path: path.write_bytes(elf(OTHER[binary.architecture()])),
        Kind.ARCHITECTURE,
        f"is for {OTHER.get(binary.architecture())}, and this machine is {binary.architecture()}",
    ),
    "not executable": (lambda path: path.write_bytes(elf(binary.architecture())), Kind.NOT_EXECUTABLE, "cannot be executed"),
}


@pytest.mark.parametrize("what", NAMED)
def test_the_variable_names_what_is_no_program(built, tmp_path, monkeypatch, what):
    make, kind, said = NAMED[what]
    path = tmp_path / "named"
    make(path)
    monkeypatch.setenv(binary.VARIABLE, str(path))
    trouble = binary.trouble()
    assert (trouble.kind, trouble.said) == (kind, f"AVIATO_INIT={str(path)!r} {said}")
    repair = f"chmod 755 {path}" if kind is Kind.NOT_EXECUTABLE else "unset AVIATO_INIT, or have it name an aviato-init"
    assert trouble.repair == repair


def test_the_variable_names_one_without_a_mark(tree, tmp_path, monkeypatch):
    path = tmp_path / "named"
    path.write_bytes(elf(binary.architecture()))
    path.chmod(0o755)
    monkeypatch.setenv(binary.VARIABLE, str(path))
    assert (binary.found(), binary.trouble(), binary.renew()) == (str(path), None, None)
    assert not (tree / "init" / "ran").exists()


def test_one_is_built_where_a_checkout_has_none(tree):
    assert binary.renew() is not None
    assert binary.trouble() is None


def test_of_many_that_build_at_once_one_does(tree):
    """Each by a descriptor of its own, as processes have."""
    said = []
    threads = [threading.Thread(target=lambda: said.append(binary.renew())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said, key=str) == [None] * 7 + ["aviato-init was made from other sources, and was compiled anew"]
    assert (tree / "init" / "ran").read_text() == "once\n"


def test_what_is_there_and_fits_stays_untouched(built, tree):
    """Another environment that aviato is installed into: servers start meanwhile."""
    files = (built, tree / "aviato" / binary.MARK)
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files]
    assert binary.build(str(tree)) is None
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in files] == before
    assert (tree / "init" / "ran").read_text() == "once\n"


def test_what_is_cut_is_made_again(built, tree):
    os.truncate(built, 500)
    assert binary.build(str(tree)) is None
    assert binary.trouble() is None


def test_what_cannot_be_compiled_leaves_what_is_there(built, tree):
    CHANGES["a source"](tree)
    before = built.read_bytes(), (tree / "aviato" / binary.MARK).read_bytes()
    (tree / "init" / "fails").write_text("")
    assert " build --release " in binary.build(str(tree))
    assert (built.read_bytes(), (tree / "aviato" / binary.MARK).read_bytes()) == before


def test_a_program_that_needs_libraries_is_not_taken(tree):
    (tree / "init" / "what").write_bytes(elf(binary.architecture(), dynamic=True))
    assert "it needs libraries of the machine" in binary.build(str(tree))
    (tree / "init" / "what").write_bytes(elf(OTHER[binary.architecture()]))
    assert f"it is for {OTHER[binary.architecture()]}" in binary.build(str(tree))
    assert binary.trouble().kind is Kind.MISSING


def test_flags_from_outside_are_left_out(tree, monkeypatch):
    program = tree.parent / "programs" / "cargo"
    program.write_text(CARGO + "open('flags', 'w').write(json.dumps(sorted(n for n in os.environ if 'RUSTFLAGS' in n)))\n")
    program.write_text(program.read_text().replace('sys.exit(os.path.exists("fails"))', ""))
    monkeypatch.setenv("RUSTFLAGS", "-C target-feature=-crt-static")
    monkeypatch.setenv("CARGO_ENCODED_RUSTFLAGS", "-C")
    assert binary.build(str(tree)) is None
    assert json.loads((tree / "init" / "flags").read_text()) == []


def test_the_build_of_aviato_can_load_it_by_itself():
    """With nothing but the standard library there."""
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['mark'](sys.argv[2]))"
    command = [sys.executable, "-I", "-S", "-c", code, binary.__file__, os.path.dirname(binary.PACKAGE)]
    assert runpy.run_path(binary.__file__)["PACKAGE"] == binary.PACKAGE
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()
    assert said == binary.mark(os.path.dirname(binary.PACKAGE))
