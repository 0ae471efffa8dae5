"""The steps of a build: what each does, and what it is cached by."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.building.copy_files import CopyFiles
    from aviato.building.dockerfile_stage import DockerfileStage

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Run:
    """A command.

    Attributes:
        words: of it.
        environment: variables that are its own, and not the image's.
        working_dir: where it starts; None: where commands of the image do.
        network: `none` whatever that of the build is.
        said: what it is called; empty: by its words.
    """

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    network: Literal["default", "none"] = "default"
    said: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.said or f"run {self.words[-1] if self.words[:2] == ('sh', '-c') else ' '.join(self.words)}"

    def inputs(self) -> str:
        """What its result depends on."""
        return repr((self.words, self.environment, self.working_dir, self.network))


@dataclass(frozen=True)
class Copy:
    """A file or directory of the caller's.

    Attributes:
        local: its path, absolute.
        remote: the name of the copy, absolute or counted from where commands start.
    """

    local: str
    remote: str

    def __str__(self) -> str:
        return f"copy {self.local} {self.remote}"

    def inputs(self) -> str:
        """What its result depends on: names, modes and contents, and no times. Blocks.

        Raises:
            OSError: it cannot be read.
        """
        digest = hashlib.sha256()
        for piece in _pieces(self.local, ""):
            digest.update(len(piece).to_bytes(8, "big") + piece)
        return repr((self.remote, digest.hexdigest()))


@dataclass(frozen=True)
class Setting:
    """What commands get from here on.

    Attributes:
        environment: variables.
        working_dir: where they start, or None: as before.
        user: who they are, or None: as before.
        entrypoint: words that come before a command, or None: as before.
        command: the words of the main command, or None: as before.
        labels: of the image.
        shell: words by which a text is run, or None: as before.
        said: what it is called; empty: by what it sets.
    """

    environment: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    shell: tuple[str, ...] | None = None
    said: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.said:
            return self.said
        said = [f"{name}={value}" for name, value in self.environment]
        said += [f"workdir {self.working_dir}"] if self.working_dir is not None else []
        said += [f"user {self.user}"] if self.user is not None else []
        return f"set {' '.join(said)}"

    def inputs(self) -> str:
        """What its result depends on."""
        said = (self.environment, self.working_dir, self.user, self.entrypoint, self.command, self.labels)
        return repr(said if self.shell is None else (*said, self.shell))


Step: TypeAlias = "Run | Copy | CopyFiles | Setting | DockerfileStage"


@dataclass(frozen=True)
class Source:
    """An image that files are copied out of.

    Attributes:
        base: what it begins with.
        steps: what is done to that.
    """

    base: str
    steps: tuple[Step, ...] = ()


def _pieces(path: str, name: str) -> Iterator[bytes]:
    """Of a file or a tree, in an order that is always the same."""
    found = os.lstat(path) if name else os.stat(path)
    yield f"{name} {stat.S_IFMT(found.st_mode):o} {found.st_mode & 0o777:o}".encode(errors="surrogateescape")
    if stat.S_ISDIR(found.st_mode):
        for entry in sorted(os.listdir(path)):
            yield from _pieces(os.path.join(path, entry), f"{name}/{entry}")
    elif stat.S_ISLNK(found.st_mode):
        yield os.readlink(path).encode(errors="surrogateescape")
    elif stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
