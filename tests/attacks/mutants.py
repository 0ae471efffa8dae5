"""Programs like `aviato-init` that lack defences: compiled from its changed sources, and kept for the next run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from aviato.server.backends.local import binary
from tests.compiling import QUICKLY

BEGIN = "init/"
"""Of the path of a patch that is one of these sources."""


class Change(Protocol):
    """As `registry.Patch`."""

    @property
    def path(self) -> str: ...
    @property
    def old(self) -> str: ...
    @property
    def new(self) -> str: ...


def program(changes: Sequence[Change]) -> Path:
    """The program with these changes of its sources, which everyone can run."""
    tree = binary.checkout()
    assert tree is not None, "the sources of aviato-init are not beside the package"
    texts = changed(Path(tree, "init"), changes)
    hashed = hashlib.sha256(repr([sorted(texts.items()), sorted(QUICKLY.items())]).encode()).hexdigest()
    name = hashed[:32]
    of_root = own(0) / name
    if of_root.exists():
        return of_root
    directory = own(os.geteuid())
    directory.mkdir(mode=0o755, exist_ok=True)
    assert directory.lstat().st_uid == os.geteuid(), f"{directory} is another user's"
    directory.chmod(0o755)
    made = directory / name
    with alone(directory):
        if not made.exists():
            sources = directory / "init"
            write(sources, texts)
            content = binary.compiled(
                str(sources), CARGO_TARGET_DIR=str(directory / "target"), CARGO_INCREMENTAL="1", **QUICKLY
            )
            binary.put(str(made), content, 0o755)
    return made


def own(uid: int) -> Path:
    """Where those are that a user has compiled. Root's are for all: nobody else could have put them there."""
    directory = Path(tempfile.gettempdir(), f"aviato-mutants-{uid}")
    return directory if uid or not directory.exists() or directory.lstat().st_uid == 0 else directory / "nowhere"


def changed(sources: Path, changes: Sequence[Change]) -> dict[str, str]:
    """The sources by their names, with these changes made; what each replaces stands there once."""
    names = ("Cargo.toml", ".cargo/config.toml", *(str(path.relative_to(sources)) for path in sources.rglob("src/**/*.rs")))
    texts = {name: (sources / name).read_text() for name in names}
    for change in changes:
        name = change.path.removeprefix(BEGIN)
        assert texts[name].count(change.old) == 1, f"{change.path} has {texts[name].count(change.old)} of {change.old!r}"
        texts[name] = texts[name].replace(change.old, change.new)
    return texts


def write(sources: Path, texts: dict[str, str]) -> None:
    """Have these files there and no others. What is as it was stays untouched, so that cargo compiles little."""
    for path in list(sources.rglob("*.rs")):
        if str(path.relative_to(sources)) not in texts:
            path.unlink()
    for name, text in texts.items():
        path = sources / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Of several processes one compiles at a time."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
