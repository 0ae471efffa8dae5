"""References to images of registries, layout directories and archives, as a pure parse. The grammar of names is Docker's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from aviato.server.images.image_errors import image_error, quoted
from aviato.wire.ids import SNAPSHOT_ID
from aviato.wire.images import BUILT, TAKEN, is_taken

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"
LONGEST_NAME = 255
SCRATCH = "scratch"
"""The image of no files, which is in no registry."""
LAYOUT, ARCHIVE = "oci:", "docker-archive:"

_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANY_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}")
_HEX = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")


@dataclass(frozen=True, kw_only=True)
class OciReference:
    """Which image somebody means.

    Attributes:
        kind: `registry`, `layout` (a directory), `archive` (a file) or `scratch` (nothing).
        registry: host and port of a `registry` one; Docker Hub is `docker.io`.
        repository: the path there.
        tag: of a registry or a layout; the name within an archive; None if a digest says which, or the only one is meant.
        digest: `sha256:HEX` of the manifest, or None.
        path: of a `layout` or an `archive`, as written.
    """

    kind: Literal["registry", "layout", "archive", "scratch"]
    registry: str = ""
    repository: str = ""
    tag: str | None = None
    digest: str | None = None
    path: str = ""

    @property
    def name(self) -> str:
        """The reference in full, as the store keeps it. A digest says more than a tag beside it, which is left out."""
        if self.kind == "registry":
            end = f"@{self.digest}" if self.digest else f":{self.tag}"
            return f"{self.registry}/{self.repository}{end}"
        return self.origin + (f":{self.tag}" if self.tag else "")

    @property
    def origin(self) -> str:
        """Who has the image: the registry, or what names the directory or the archive."""
        if self.kind == "registry":
            return self.registry
        if self.kind == "scratch":
            return SCRATCH
        return f"{LAYOUT if self.kind == 'layout' else ARCHIVE}{self.path}"


@lru_cache(maxsize=1024)
def parse_oci_reference(text: str) -> OciReference:
    """Read a reference.

    Raises:
        SandboxImageError: it is wrong; the message says what.
    """
    if text.startswith(LAYOUT):
        return _file("layout", text, text[len(LAYOUT) :])
    if text.startswith(ARCHIVE):
        return _file("archive", text, text[len(ARCHIVE) :])
    if text == SCRATCH:
        return OciReference(kind="scratch")
    return _in_registry(text)


def is_digest(text: object) -> bool:
    """Whether this is a digest that is understood: SHA-256 in lower case."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def id_prefix(text: str) -> str | None:
    """The digits of an image id or of the beginning of one, as people write them; None if this is none."""
    match = _ID.fullmatch(text)
    return match[1] if match else None


def parse_own_name(text: str, *, of_build: bool = False) -> OciReference:
    """A name that somebody here gives an image.

    Args:
        text: the name.
        of_build: the image is a step of a build, which has a name of those.

    Raises:
        SandboxImageError: it is none as images of registries have them, would be taken for an id, or means something else.
    """
    if is_taken(text) and not (of_build and text.startswith(f"{BUILT}/")):
        raise image_error("bad_reference", f"{quoted(text)} is no name for an image: {TAKEN}")
    wanted = parse_oci_reference(text)
    if wanted.kind != "registry" or wanted.digest is not None or id_prefix(text) is not None or SNAPSHOT_ID.fullmatch(text):
        raise image_error("bad_reference", f"{quoted(text)} is no name for an image: write NAME or NAME:TAG")
    return wanted


def _in_registry(text: str) -> OciReference:
    if not text or text != text.strip():
        raise _wrong(text, "it is empty or has spaces around it")
    if text.startswith("sha256:") and id_prefix(text) is not None:
        raise _wrong(text, "it is an image id, of an image that is not here, and says not where it could be had")
    if "://" in text:
        raise _wrong(text, "a reference has no scheme; leave out what comes before the registry's host")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        if _ANY_DIGEST.fullmatch(digest) and not digest.startswith("sha256:"):
            raise _wrong(text, "only digests by sha256 are understood")
        raise _wrong(text, "behind the @ there is no digest: sha256: and 64 hexadecimal digits in lower case")
    tag = None
    slash, colon = rest.rfind("/"), rest.rfind(":")
    if colon > slash:
        rest, tag = rest[:colon], rest[colon + 1 :]
        if not _TAG.fullmatch(tag):
            raise _wrong(text, "its tag is none: up to 128 letters, digits, and _ . - within")
    registry, path = _split(rest)
    if not _HOST.fullmatch(registry):
        raise _wrong(text, f"{quoted(registry)} is no host of a registry")
    _check_port(text, registry)
    _check_path(text, path, is_whole=path == rest)
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    if len(registry) + 1 + len(path) > LONGEST_NAME:
        raise _wrong(text, f"its name is longer than {LONGEST_NAME} characters")
    if at:
        return OciReference(kind="registry", registry=registry, repository=path, tag=tag, digest=digest)
    return OciReference(kind="registry", registry=registry, repository=path, tag=tag or DEFAULT_TAG)


def _split(name: str) -> tuple[str, str]:
    """The registry's host and the path there: a first component with a dot or a port is a host, and localhost."""
    first, slash, rest = name.partition("/")
    is_host = slash and ("." in first or ":" in first or first.lower() == "localhost")
    host, path = (first.lower(), rest) if is_host else (DEFAULT_REGISTRY, name)
    return (DEFAULT_REGISTRY if host == "index.docker.io" else host), path


def _check_port(text: str, host: str) -> None:
    _, colon, port = host.rpartition("]")[2].rpartition(":")
    if colon and not 0 < int(port) < 1 << 16:
        raise _wrong(text, f"{port} is no port")


def _check_path(text: str, path: str, is_whole: bool) -> None:
    if is_whole and _HEX.fullmatch(path):
        raise _wrong(text, "64 hexadecimal digits are an image id and no name; such an image is not here")
    if path != path.lower():
        raise _wrong(text, f"names are in lower case: {quoted(path.lower())}")
    for component in path.split("/"):
        if not component:
            raise _wrong(text, "a part of its name is empty")
        if not _COMPONENT.fullmatch(component):
            raise _wrong(text, f"{quoted(component)} is no part of a name: letters and digits, with . _ __ or - between")


def _file(kind: Literal["layout", "archive"], text: str, rest: str) -> OciReference:
    path, colon, tag = rest.partition(":")
    if not path:
        raise _wrong(text, "it names no path")
    if "\0" in rest:
        raise _wrong(text, "its path has a zero byte in it")
    if not colon:
        return OciReference(kind=kind, path=path)
    if not tag or not tag.isprintable() or len(tag) > LONGEST_NAME + 130:
        raise _wrong(text, "behind its path there is a colon, and no name of an image")
    return OciReference(kind=kind, path=path, tag=tag)


def _wrong(text: str, why: str) -> Exception:
    return image_error("bad_reference", f"the image reference {quoted(text)} is wrong: {why}")
