"""The program `aviato-init`: where it is, how it is made from `init/` of a checkout, and why one that is there is of no use.

The build of aviato loads this file by itself, so it imports the standard library only. Beside a packaged program lies its mark:
a hash of the sources and of the architecture that it was made for, and one of the program itself.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "AVIATO_INIT"
"""An environment variable of the server: a program to use in place of the packaged one."""
PROGRAM = "server/backends/local/aviato-init"
MARK = f"{PROGRAM}.mark"
"""Below the package, both."""
PACKAGE = os.path.abspath(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")
SOURCES = ("Cargo.toml", ".cargo/config.toml", "src")
"""Below `init/`: what the program is made from."""
FLAGS = ("--release", "--offline", "--message-format=json-render-diagnostics")
MACHINES = {62: "x86_64", 183: "aarch64"}
"""Of the header of an ELF file, as `uname -m` says them."""
LINKED_AT_START = 3
"""A segment of an ELF file, `PT_INTERP`: it names the dynamic linker."""
REPAIRS = (
    ("apt-get", "sudo apt install cargo libc6-dev"),
    ("dnf", "sudo dnf install cargo glibc-static"),
    ("apk", "sudo apk add cargo"),
)
"""A machine's installer, and the line that brings what compiles the program."""


class Kind(enum.Enum):
    """What can be wrong with a program."""

    MISSING = "missing"
    NO_PROGRAM = "no program"
    ARCHITECTURE = "another architecture"
    NOT_EXECUTABLE = "not executable"
    CUT = "cut"
    BUILD = "another build"


class Trouble(NamedTuple):
    """Why a program cannot be used.

    Attributes:
        kind: what is wrong.
        said: what is wrong with which file, a sentence.
        repair: the line that repairs it.
    """

    kind: Kind
    said: str
    repair: str

    def __str__(self) -> str:
        return f"{self.said}; repair: {self.repair}"


def architecture() -> str:
    """What programs of this machine are made for, as `uname -m` says it."""
    return os.uname().machine


def found() -> str:
    """The path of the program to use, which need not be there."""
    return os.environ.get(VARIABLE) or f"{PACKAGE}/{PROGRAM}"


def checkout() -> str | None:
    """The tree that this package is used from, if it has the sources of the program."""
    tree = os.path.dirname(PACKAGE)
    return tree if os.path.isfile(f"{tree}/init/Cargo.toml") else None


def mark(tree: str) -> str:
    """A hash of the sources as they are and of this machine's architecture.

    Raises:
        OSError: they cannot be read.
    """
    names = []
    for source in SOURCES:
        if os.path.isdir(f"{tree}/init/{source}"):
            for folder, _, files in os.walk(f"{tree}/init/{source}"):
                names += [os.path.relpath(f"{folder}/{name}", f"{tree}/init") for name in files if name.endswith(".rs")]
        else:
            names.append(source)
    hashed = hashlib.sha256(f"{architecture()} ".encode())
    for name in sorted(names):
        with open(f"{tree}/init/{name}", "rb") as file:
            content = file.read()
        hashed.update(f"{name} {len(content)} ".encode() + content)
    return hashed.hexdigest()


def cargo() -> str | None:
    """The path of cargo: on PATH, or where rustup puts it."""
    own = f"{os.environ.get('CARGO_HOME') or os.path.expanduser('~/.cargo')}/bin/cargo"
    return shutil.which("cargo") or (own if os.access(own, os.X_OK) else None)


def cargo_line() -> str:
    """The line that brings what compiles the program, for the installer that this machine has."""
    return next((line for installer, line in REPAIRS if shutil.which(installer)), REPAIRS[0][1])


def build(tree: str) -> str | None:
    """Compile the program and put it and its mark into the package of a tree, each at once: others may use the old one.

    What is there and fits stays untouched: servers may be starting from it, by installations into other environments too.

    Returns:
        Why it could not be made; None if it was, or is there.
    """
    try:
        made_from = mark(tree)
        if _is_there(f"{tree}/aviato", made_from):
            return None
        content = compiled(f"{tree}/init")
        marked = f"{made_from} {hashlib.sha256(content).hexdigest()}\n"
        # The mark goes first and comes last, so that what is there between fits none.
        _remove(f"{tree}/aviato/{MARK}")
        put(f"{tree}/aviato/{PROGRAM}", content, 0o755)
        put(f"{tree}/aviato/{MARK}", marked.encode(), 0o644)
    except NotCompiled as error:
        return str(error)
    except OSError as error:
        return f"aviato-init cannot be compiled in {tree}: {error}"
    return None


def _is_there(package: str, made_from: str) -> bool:
    """Whether a package has the program that is made from such sources, whole."""
    try:
        with open(f"{package}/{PROGRAM}", "rb") as file:
            return _marked(package) == [made_from, hashlib.sha256(file.read()).hexdigest()]
    except OSError:
        return False


class NotCompiled(Exception):
    """Why the program could not be made."""


def compiled(sources: str, **settings: str) -> bytes:
    """The program, made from sources as those of `init/`.

    Args:
        sources: the directory.
        settings: variables for cargo, beside those of this process.

    Raises:
        NotCompiled: it could not be made, or is of no use.
        OSError: it could not be made for another reason.
    """
    if sys.platform != "linux":
        raise NotCompiled("aviato-init is for Linux")
    program = cargo()
    if program is None:
        raise NotCompiled(f"aviato-init cannot be compiled: there is no cargo; repair: {cargo_line()}")
    # Flags from outside would replace those of init/.cargo, by which the program needs no library of the machine.
    variables = {name: value for name, value in os.environ.items() if name not in ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS")}
    command = [program, "build", *FLAGS]
    done = subprocess.run(command, cwd=sources, env={**variables, **settings}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotCompiled(f"{shlex.join(command)} in {sources}: {done.stderr.strip()[-4000:]}")
    with open(_made(done.stdout), "rb") as file:
        content = file.read()
    if (why := _unfit(content)) is not None:
        raise NotCompiled(f"aviato-init was compiled and is of no use: {why}; repair: unset what sets another target of cargo")
    return content


def _made(said: str) -> str:
    """The path of the program, of cargo's messages: a target of the user's own changes it."""
    messages = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    for message in messages:
        if message.get("executable") and message["target"]["name"] == "aviato-init":
            return str(message["executable"])
    raise FileNotFoundError("cargo names no program that it made")


def put(path: str, content: bytes, mode: int) -> None:
    """Write a file that is there whole or not at all."""
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "wb") as file:
            file.write(content)
        os.chmod(new, mode)
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)


def _machine(content: bytes) -> str | None:
    """What a program is made for; None for what is no program of Linux."""
    if len(content) < 64 or content[:4] != b"\x7fELF":
        return None
    order = "big" if content[5] == 2 else "little"
    number = int.from_bytes(content[18:20], order)  # type: ignore[arg-type]
    return MACHINES.get(number, f"machine {number} of ELF")


def _unfit(content: bytes) -> str | None:
    """Why a program that was just made does not run in every sandbox of this machine."""
    machine = _machine(content)
    if machine != architecture():
        return f"it is for {machine}, and this machine is {architecture()}"
    start, size, count = (int.from_bytes(content[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    kinds = {int.from_bytes(content[at : at + 4], "little") for at in range(start, start + size * count, size)}
    return "it needs libraries of the machine" if LINKED_AT_START in kinds else None


def trouble() -> Trouble | None:
    """Why the program that is there cannot be used; None if it can."""
    path, named = found(), bool(os.environ.get(VARIABLE))
    subject = f"{VARIABLE}={path!r}" if named else f"aviato-init ({path})"
    repair = f"unset {VARIABLE}, or have it name an aviato-init" if named else _repair()
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return Trouble(Kind.MISSING, f"{subject} is missing", repair)
    except OSError as error:
        return Trouble(Kind.NO_PROGRAM, f"{subject} cannot be read: {error.strerror}", repair)
    machine = _machine(content)
    marked = [] if named else _marked(PACKAGE)
    changed = len(marked) == 2 and hashlib.sha256(content).hexdigest() != marked[1]
    if changed and machine in (None, architecture()):
        return Trouble(Kind.CUT, f"{subject} is cut, or was changed since it was built", repair)
    if machine is None:
        return Trouble(Kind.NO_PROGRAM, f"{subject} is no program", repair)
    if machine != architecture():
        return Trouble(Kind.ARCHITECTURE, f"{subject} is for {machine}, and this machine is {architecture()}", repair)
    if not os.access(path, os.X_OK):
        return Trouble(Kind.NOT_EXECUTABLE, f"{subject} cannot be executed", f"chmod 755 {shlex.quote(path)}")
    if not named and (len(marked) != 2 or not _is_current(marked[0])):
        return Trouble(Kind.BUILD, f"{subject} is of another build than the Python code beside it", repair)
    return None


def _repair() -> str:
    tree = checkout()
    if tree is None:
        return "pip install --force-reinstall --no-deps aviato-sandbox"
    again = f"pip install -e {shlex.quote(tree)}"
    return again if cargo() else f"{cargo_line()} && {again}"


def _marked(package: str) -> list[str]:
    """What the mark says, both hashes; nothing where there is none."""
    try:
        with open(f"{package}/{MARK}", encoding="ascii") as file:
            return file.read().split()
    except (OSError, UnicodeError):
        return []


def _is_current(made_from: str) -> bool:
    """Whether sources that a program was made from are those that are there; an installed package has none."""
    tree = checkout()
    return tree is None or made_from == mark(tree)


def renew() -> str | None:
    """Build the packaged program anew where a checkout has other sources than its mark says, or none is there.

    Of several processes that do so at once, one builds and the others wait for it.

    Returns:
        What is to be said of that; None where nothing was done.
    """
    tree = checkout()
    if tree is None or os.environ.get(VARIABLE) or _fits():
        return None
    with _alone(tree):
        if _fits():
            return None
        why = build(tree)
    return "aviato-init was made from other sources, and was compiled anew" if why is None else why


def _fits() -> bool:
    marked = _marked(PACKAGE)
    return len(marked) == 2 and os.path.exists(f"{PACKAGE}/{PROGRAM}") and _is_current(marked[0])


@contextmanager
def _alone(tree: str) -> Iterator[None]:
    """By a lock on the directory of the sources, which leaves no file behind."""
    descriptor = os.open(f"{tree}/init", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
