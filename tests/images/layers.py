"""Layers for tests: tars of members, `aviato-init layer` on them, and all that can be seen of a tree."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from aviato.server.backends.local import binary

DIRECTORY, FILE, LINK, HARD_LINK = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
FIFO, CHARACTER, BLOCK = tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE
OPAQUE = "user.overlay.opaque"
NOBODY = 65_534


class Member(NamedTuple):
    """One of a tar."""

    name: str
    type: bytes = FILE
    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1000
    target: str = ""
    attributes: Mapping[str, str] = MappingProxyType({})
    device: tuple[int, int] = (0, 0)


def directory(name: str, mode: int = 0o755, **more: Any) -> Member:
    return Member(name, DIRECTORY, mode=mode, **more)


def link(name: str, target: str, **more: Any) -> Member:
    return Member(name, LINK, mode=0o777, target=target, **more)


def hard_link(name: str, target: str) -> Member:
    return Member(name, HARD_LINK, target=target)


def tar(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for member in members:
            made = tarfile.TarInfo(member.name)
            made.type, made.mode, made.mtime = member.type, member.mode, member.mtime
            made.uid, made.gid, made.linkname = member.uid, member.gid, member.target
            made.devmajor, made.devminor = member.device
            made.size = len(member.content)
            made.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in member.attributes.items()}
            archive.addfile(made, io.BytesIO(member.content))
    return buffer.getvalue()


def run(
    data: bytes,
    into: Path,
    *flags: str,
    below: tuple[Path, ...] = (),
    user: int | None = None,
    most_memory_bytes: int | None = None,
) -> dict[str, Any]:
    """What the program says. With a user it is that one's, who gets the directory."""
    with ExitStack() as opened:

        def held(path: str | Path, flags: int) -> int:
            fd = os.open(path, flags)
            opened.callback(os.close, fd)
            return fd

        top, program = held(into, os.O_DIRECTORY), held(binary.found(), os.O_PATH)
        fds = [held(path, os.O_DIRECTORY) for path in below]
        argv = ["aviato-init", "layer", "--into", str(top), *flags]
        for fd in fds:
            argv += ["--below", str(fd)]
        other: dict[str, Any] = {}
        if user is not None:
            os.chown(top, user, user)
            other = {"user": user, "group": user, "extra_groups": []}
        if most_memory_bytes is not None:
            argv = ["prlimit", f"--as={most_memory_bytes}", f"/proc/self/fd/{program}", *argv[1:]]
        done = subprocess.run(
            argv,
            executable=f"/proc/self/fd/{program}" if most_memory_bytes is None else None,
            input=data,
            capture_output=True,
            pass_fds=(top, program, *fds),
            cwd="/",
            timeout=250,
            **other,
        )
    assert done.stderr == b"", done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if "error" in said else 0)
    return said


def unpacked(data: bytes, into: Path, *flags: str, **more: Any) -> dict[str, Any]:
    said = run(data, into, *flags, **more)
    assert "error" not in said, said
    return said


class Seen(NamedTuple):
    """What can be seen of a name."""

    kind: str
    mode: int
    owner: tuple[int, int]
    mtime: int
    content: bytes | str
    attributes: dict[str, bytes]
    names: tuple[str, ...]


def seen(top: Path) -> dict[str, Seen]:
    """Of a tree; of what has several names all of them."""
    found: dict[str, Seen] = {}
    inodes: dict[int, list[str]] = {}
    for folder, directories, files in os.walk(top):
        for name in [".", *directories, *files] if folder == str(top) else [*directories, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            shown = os.path.normpath(os.path.relpath(path, top))
            kind, content, attributes = "other", "", {}
            if stat.S_ISREG(status.st_mode):
                kind, content = "file", Path(path).read_bytes()
            elif stat.S_ISDIR(status.st_mode):
                kind = "directory"
            elif stat.S_ISLNK(status.st_mode):
                kind, content = "link", os.readlink(path)
            elif stat.S_ISFIFO(status.st_mode):
                kind = "fifo"
            elif stat.S_ISCHR(status.st_mode):
                kind = "whiteout" if status.st_rdev == 0 else "device"
            if kind in ("file", "directory"):
                attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
            if kind != "directory":
                inodes.setdefault(status.st_ino, []).append(shown)
            mode = stat.S_IMODE(status.st_mode)
            owner = (status.st_uid, status.st_gid)
            mtime = 0 if kind == "whiteout" else int(status.st_mtime)  # A layer's tar does not say when something was removed.
            found[shown] = Seen(kind, mode, owner, mtime, content, attributes, (str(status.st_ino),))
    return {name: one._replace(names=tuple(sorted(inodes.get(int(one.names[0]), [])))) for name, one in found.items()}
