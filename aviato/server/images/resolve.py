"""From a reference to an image that the local backend can start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxImageError
from aviato.server.images.interpreters import Interpreter, choose, choose_default
from aviato.server.images.reference import parse
from aviato.server.images.resolved import ResolvedImage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class LocalImages:
    """What this machine has.

    Args:
        interpreters: of the machine, preferred ones first.
        registered: name → root directory, for `dir:NAME` (and `python:3.N`, where one is registered by that name).
        allow_any_directory: whether `dir:/absolute/path` is allowed too.
    """

    def __init__(self, interpreters: list[Interpreter], registered: Mapping[str, Path], allow_any_directory: bool) -> None:
        self._interpreters = interpreters
        self._registered = registered
        self._allow_any_directory = allow_any_directory

    def resolve(self, reference: str | None, fallback: str | None = None) -> ResolvedImage:
        """The image of a reference.

        Raises:
            SandboxImageError: there is none; the message names what there is.
        """
        parsed = parse(reference)
        if reference is not None and reference in self._registered:
            return self._directory(str(self._registered[reference]), reference)
        if parsed.kind == "host":
            interpreter = choose_default(self._interpreters)
            return ResolvedImage(reference="host", kind="host", interpreter=interpreter.executable if interpreter else None)
        if parsed.kind == "python":
            return self._python(int(parsed.value), fallback)
        if parsed.kind == "name":
            if parsed.value not in self._registered:
                raise SandboxImageError(f"image {reference!r} is not registered here; {self._names()}")
            return self._directory(str(self._registered[parsed.value]), str(reference))
        if parsed.kind == "path":
            if not self._allow_any_directory:
                raise SandboxImageError(f"image {reference!r}: this server starts registered directories only; {self._names()}")
            return self._directory(parsed.value, str(reference))
        raise SandboxImageError(
            f"image {reference!r} is unknown; there are 'host', {self._versions()}, and 'dir:…'; {self._names()}"
        )

    def interpreter_at(self, executable: str | None) -> Interpreter | None:
        """The interpreter that a resolved image names."""
        return next((one for one in self._interpreters if one.executable == executable), None)

    def _python(self, minor: int, fallback: str | None) -> ResolvedImage:
        chosen = choose(self._interpreters, minor, fallback)
        if chosen is None:
            remedy = "" if fallback == "nearest" else "; AVIATO_IMAGE_FALLBACK=nearest accepts the nearest newer one"
            raise SandboxImageError(f"image 'python:3.{minor}': this machine has {self._versions()}{remedy}")
        note = None
        if chosen.minor != minor:
            note = f"image 'python:3.{minor}' is not here; using the machine's Python {chosen.version} ({chosen.executable})"
        reference = f"python:{chosen.version}"
        return ResolvedImage(reference=reference, kind="host", note=note, interpreter=chosen.executable)

    def _directory(self, path: str, reference: str) -> ResolvedImage:
        if not os.path.isdir(path):
            raise SandboxImageError(f"image {reference!r}: {path!r} is not a directory that the server can see")
        return ResolvedImage(reference=reference, kind="dir", root=os.path.realpath(path))

    def _versions(self) -> str:
        seen = dict.fromkeys(one.version for one in self._interpreters)
        if not seen:
            return "no Python interpreter"
        return "the interpreters " + ", ".join(
            f"python:{version} ({next(one.executable for one in self._interpreters if one.version == version)})"
            for version in sorted(seen, key=lambda version: int(version[2:]))
        )

    def _names(self) -> str:
        names = ", ".join(f"dir:{name}" for name in sorted(self._registered))
        return f"registered: {names}" if names else "no directory is registered (--image NAME=DIR)"
