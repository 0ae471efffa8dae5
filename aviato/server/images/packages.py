"""Directories of Python packages that sandboxes see, looked at before one is made: imports that cannot work are refused then.

Whoever may change what lies on the way to such a directory could put another one in its place, once it was looked at. So a
directory is known by its file system and its number there, which cannot be another's as long as it is held open.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from aviato.exceptions import AviatoValidationError
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from aviato.server.images.interpreters import Interpreter

LOOK_SECONDS = 5.0
"""How long what was seen in a directory counts, unless names in it come or go."""
MOST_KNOWN = 64
LARGEST_BYTES = 64 << 10
"""Of the small files that say what a directory is."""
FOLDERS = ("site-packages", "dist-packages")
_CONFIGURATION = "pyvenv.cfg"
_VERSION = re.compile(rb"^version(?:_info)?\s*=\s*3\.(\d{1,3})", re.MULTILINE)
_LIBRARY = re.compile(r"python3\.(\d{1,3})")
_TAG = re.compile(rb"^Tag: cp3(\d{1,3})-cp3\d", re.MULTILINE)
_INSTALLED = (".dist-info", ".egg-info")
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class PackageDirectory(NamedTuple):
    """Where packages are.

    Attributes:
        path: without links.
        device: the number of its file system.
        inode: its own there.
    """

    path: str
    device: int
    inode: int


class _Known(NamedTuple):
    """What was seen: the directory that was named, that of the packages as it was then, and when."""

    top: tuple[int, int]
    directory: PackageDirectory
    changed: int
    until: float


class Packages:
    """What a server has, and what its own user may name.

    Args:
        registered: name → directory.
        foreign: sandboxes have other ids than this process.
        by_path: they come to the directory by its path on the machine, so that those above it must let them pass.
        private: directories that no sandbox may see.
    """

    def __init__(
        self,
        registered: Mapping[str, str],
        *,
        foreign: bool = False,
        by_path: bool = False,
        private: Iterable[str] = (),
    ) -> None:
        self._registered = dict(registered)
        self._foreign = foreign
        self._by_path = by_path
        self._private = tuple(map(os.path.realpath, private))
        self._known: dict[tuple[str, Interpreter | None], _Known] = {}

    @property
    def shared(self) -> list[str]:
        """The registered directories, which any sandbox may see."""
        return [*self._registered.values()]

    def check_registered(self, reference: str) -> None:
        """Let those who may name no path name what is registered.

        Raises:
            AviatoValidationError: that is not.
        """
        if reference not in self._registered:
            raise self._unknown(reference)

    @asynccontextmanager
    async def held(self, reference: str, interpreter: Interpreter | None) -> AsyncIterator[PackageDirectory]:
        """The directory of packages, which stays what it is in the context; looked at in a thread, unless it was of late.

        Args:
            reference: a registered name, or an absolute path.
            interpreter: which is to import them.

        Raises:
            AviatoValidationError: there are none, or nobody inside could import them.
        """
        with ExitStack() as opened:
            known = self._known.get((reference, interpreter))
            if known is not None and time.monotonic() < known.until:
                yield self._hold(reference, interpreter, opened)
            else:
                yield await in_thread(self._hold, reference, interpreter, opened)

    def _hold(self, reference: str, interpreter: Interpreter | None, opened: ExitStack) -> PackageDirectory:
        if interpreter is None:
            raise self._refused(reference, "the sandbox has no Python of the machine's; install packages in its image")
        look = _Look(reference, interpreter, opened, self._refused)
        top = look.open(self._path(reference))
        known = self._known.get((reference, interpreter))
        try:
            if known is None or not _holds(known, top, opened):
                known = self._look(look, top)
        except OSError as error:  # It goes, or its disk does, while it is looked at.
            raise self._refused(reference, str(error.strerror)) from None
        return known.directory

    def _look(self, look: _Look, top: int) -> _Known:
        key = look.reference, look.interpreter
        self._known.pop(key, None)
        found = look.packages(top)
        path, is_at = os.readlink(f"/proc/self/fd/{found}"), os.fstat(found)
        self._check_private(look.reference, path)
        look.check_content(found, path)
        if self._foreign:
            look.check_open(found, path, self._by_path)
        directory = PackageDirectory(path, is_at.st_dev, is_at.st_ino)
        while len(self._known) >= MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)
        known = _Known(_number(os.fstat(top)), directory, is_at.st_mtime_ns, time.monotonic() + LOOK_SECONDS)
        self._known[key] = known
        return known

    def _path(self, reference: str) -> str:
        if reference in self._registered:
            return self._registered[reference]
        if not reference.startswith("/") or "\0" in reference:
            raise self._unknown(reference)
        return reference

    def _unknown(self, reference: str) -> AviatoValidationError:
        names = ", ".join(map(repr, sorted(self._registered)))
        there = f"registered: {names}" if names else "none are registered (`aviato serve --packages NAME=DIR`)"
        if reference.startswith("/"):
            return _wrong(f"this caller may name packages that the server's operator has registered, no paths; {there}")
        return _wrong(f"{reference!r} is no name of packages that this server has; {there}")

    def _check_private(self, reference: str, path: str) -> None:
        for one in self._private:
            if _is_in(one, path) or _is_in(path, one):
                raise self._refused(reference, "it is where the server keeps what no sandbox may see")

    def _refused(self, reference: str, why: str) -> AviatoValidationError:
        return _wrong(f"{reference!r} cannot be had: {why}")


class _Look:
    """One look at a directory.

    Args:
        reference: what it is called.
        interpreter: which is to import from it.
        opened: closes what is opened.
        refused: the error of a reason.
    """

    def __init__(
        self,
        reference: str,
        interpreter: Interpreter,
        opened: ExitStack,
        refused: Callable[[str, str], AviatoValidationError],
    ) -> None:
        self.reference = reference
        self.interpreter = interpreter
        self._opened = opened
        self._refused = refused

    def open(self, path: str) -> int:
        """A directory by its path, links followed.

        Raises:
            AviatoValidationError: there is none, or none that this process may come to.
        """
        try:
            return self._keep(os.open(path, _PATH))
        except OSError as error:
            raise self._wrong(f"{error.strerror} on the server's machine") from None
        except ValueError as error:
            raise self._wrong(str(error)) from None

    def packages(self, top: int) -> int:
        """What holds the packages: of an environment, a directory in it.

        Raises:
            AviatoValidationError: it is of another Python.
        """
        configuration = _read(top, _CONFIGURATION)
        libraries = self._libraries(top)
        if configuration is None and not libraries:
            return top
        said = None if configuration is None else _VERSION.search(configuration)
        minors = [int(said[1])] if said else sorted(libraries)
        if self.interpreter.minor not in minors:
            self._check_minor(minors)
            raise self._wrong("its pyvenv.cfg names no version, and it has no lib/python3.N")
        found = libraries.get(self.interpreter.minor)
        site = None if found is None else self._inside(found, FOLDERS[0])
        if site is None:
            raise self._wrong(f"it has no lib/python{self.interpreter.version}/{FOLDERS[0]}")
        return site

    def check_content(self, found: int, path: str) -> None:
        """See whether packages were installed there, for this Python as far as that can be told.

        Raises:
            AviatoValidationError: not so.
        """
        library = _LIBRARY.fullmatch(os.path.basename(os.path.dirname(path)))
        names = self._names(found)
        if os.path.basename(path) not in FOLDERS and not any(name.endswith(_INSTALLED) for name in names):
            raise self._wrong(
                "it is neither a virtual environment (pyvenv.cfg) nor has it installed packages in it (*.dist-info)"
            )
        if library is not None:
            self._check_minor([int(library[1])])
            return
        for name in names:
            if name.endswith(".dist-info") and (wheel := _read(found, f"{name}/WHEEL")):
                self._check_minor([int(minor) for minor in _TAG.findall(wheel)], f"{name} in ")

    def check_open(self, found: int, path: str, by_path: bool) -> None:
        """See whether everybody may read it, and what lies in it.

        Raises:
            AviatoValidationError: something of it is closed.
        """
        remedy = f"sandboxes have ids of their own: chmod -R a+rX {self.reference!r}"
        if not _is_open(os.fstat(found)):
            raise self._wrong(f"only some may read it, and {remedy}")
        for name in self._names(found):
            try:
                if not _is_open(os.stat(name, dir_fd=found)):
                    raise self._wrong(f"only some may read {name!r} in it, and {remedy}")
            except OSError:
                continue  # A link that leads nowhere, or what has gone meanwhile.
        if by_path:
            above = os.path.dirname(path)
            while above != "/":
                if not os.stat(above).st_mode & stat.S_IXOTH:
                    raise self._wrong("a directory above it is closed to the ids that sandboxes have of their own")
                above = os.path.dirname(above)

    def _check_minor(self, minors: list[int], where: str = "") -> None:
        if minors and self.interpreter.minor not in minors:
            theirs = " and ".join(f"3.{minor}" for minor in minors)
            own = self.interpreter
            raise self._wrong(
                f"{where}it is of Python {theirs}, and the sandbox's python is {own.version} ({own.executable}); make it with "
                f"python{own.version}, or ask for container_image='python:3.{minors[-1]}'"
            )

    def _libraries(self, top: int) -> dict[int, int]:
        """The directories of libraries, by the minor version of their Python."""
        library = self._inside(top, "lib")
        found = {}
        for name in [] if library is None else self._names(library):
            match = _LIBRARY.fullmatch(name)
            if match and library is not None and (one := self._inside(library, name)) is not None:
                found[int(match[1])] = one
        return found

    def _inside(self, directory: int, name: str) -> int | None:
        """A directory in another, and no link to one."""
        try:
            return self._keep(os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=directory))
        except OSError:
            return None

    def _names(self, directory: int) -> list[str]:
        try:
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise self._wrong(f"the server cannot read it: {error.strerror}") from None
        try:
            return os.listdir(readable)
        finally:
            os.close(readable)

    def _keep(self, fd: int) -> int:
        self._opened.callback(os.close, fd)
        return fd

    def _wrong(self, why: str) -> AviatoValidationError:
        return self._refused(self.reference, why)


def _holds(known: _Known, top: int, opened: ExitStack) -> bool:
    """Whether what was seen can be taken for what is there; it is held open then."""
    if time.monotonic() >= known.until or _number(os.fstat(top)) != known.top:
        return False
    try:
        fd = os.open(known.directory.path, _PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    opened.callback(os.close, fd)
    there = os.fstat(fd)
    return _number(there) == known.directory[1:] and there.st_mtime_ns == known.changed


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_open(found: os.stat_result) -> bool:
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
    return found.st_mode & wanted == wanted


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _read(directory: int, name: str) -> bytes | None:
    """A small regular file, no link; None if there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(fd, LARGEST_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def _wrong(why: str) -> AviatoValidationError:
    return AviatoValidationError(f"packages: {why}", field_violations={"packages": why})
