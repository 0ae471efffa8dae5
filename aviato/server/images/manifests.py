"""Manifests and configurations of images, as OCI and Docker write them: read, and checked before anything is believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aviato.server.images.bounded_json import read_object, read_size
from aviato.server.images.image_config import ImageConfig
from aviato.server.images.image_errors import image_error, quoted
from aviato.server.images.oci_reference import is_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_BYTES = 4 << 20
"""Of a manifest, an index or a configuration."""
MOST_LAYERS = 500
MOST_MANIFESTS = 1000

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST)
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"

_OCI_LAYER = re.compile(r"application/vnd\.oci\.image\.layer\.(?:nondistributable\.)?v1\.tar(?:\+gzip|\+zstd)?")
_DOCKER_LAYER = re.compile(r"application/vnd\.docker\.image\.rootfs\.(?:foreign\.)?diff\.tar(?:\.gzip|\.zstd)?")
_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1+"
_ARTIFACT = "application/vnd.oci.artifact.manifest.v1+json"
_TEXT = re.compile(r"[A-Za-z0-9._+-]{0,64}")


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What a manifest says of something else: its bytes are these and no others.

    Attributes:
        digest: `sha256:HEX`.
        size_bytes: of it.
        media_type: what it is.
    """

    digest: str
    size_bytes: int
    media_type: str

    @property
    def hex(self) -> str:
        """The digits of its digest."""
        return self.digest.partition(":")[2]


@dataclass(frozen=True, order=True)
class Platform:
    """What an image runs on.

    Attributes:
        os: such as `linux`.
        architecture: as OCI names it.
        variant: of the architecture, or empty.
    """

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


@dataclass(frozen=True, kw_only=True)
class Index:
    """Images of one name for several platforms; where none is said of one, it is None."""

    manifests: tuple[tuple[Descriptor, Platform | None], ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One image: its configuration, and its layers, the lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, kw_only=True)
class ImageDetails:
    """The configuration of an image.

    Attributes:
        platform: what it runs on.
        diff_ids: `sha256:HEX` of each layer's tar, the lowest first.
        created_at: in seconds since the epoch, or None.
        config: what it says of commands.
    """

    platform: Platform
    diff_ids: tuple[str, ...]
    created_at: float | None
    config: ImageConfig


def read_manifest(data: bytes, media_type: str | None, what: str) -> Manifest | Index:
    """Read a manifest or an index.

    Args:
        data: its bytes.
        media_type: what whoever sent it says it is; what it says itself comes first.
        what: whose it is, for messages.

    Raises:
        SandboxImageError: it is damaged, or of a kind that no sandbox starts from.
    """
    document = read_object(data, f"the manifest of {what}")
    own = document.get("mediaType")
    kind = own if isinstance(own, str) else (media_type or "").partition(";")[0].strip()
    if document.get("schemaVersion") == 1 or kind.startswith(_SCHEMA_1):
        raise _unsupported(what, "a manifest of Docker's schema 1, which is long out of use; push the image anew")
    if kind == _ARTIFACT:
        raise _unsupported(what, "an OCI artifact and no image")
    if document.get("schemaVersion") != 2:
        raise image_error(
            "bad_manifest", f"the manifest of {what} has the version {quoted(document.get('schemaVersion'))}, not 2"
        )
    is_index = "manifests" in document
    if is_index == ("layers" in document or "config" in document):
        raise image_error("bad_manifest", f"the manifest of {what} is not one of an image or a list of such")
    if kind in ACCEPTED and (kind in (OCI_INDEX, DOCKER_LIST)) != is_index:
        raise image_error("bad_manifest", f"the manifest of {what} is not what its media type says: {quoted(kind)}")
    return _index(document, what) if is_index else _manifest(document, what)


def read_details(data: bytes, manifest: Manifest, what: str) -> ImageDetails:
    """Read the configuration that a manifest names.

    Raises:
        SandboxImageError: it is damaged, or does not belong to the manifest.
    """
    document = read_object(data, f"the configuration of {what}")
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if diff_ids is None and not manifest.layers:
        diff_ids = []
    if not isinstance(diff_ids, list) or not all(map(is_digest, diff_ids)):
        raise image_error("bad_manifest", f"the configuration of {what} does not name its layers by sha256")
    if len(diff_ids) != len(manifest.layers):
        raise image_error(
            "bad_manifest", f"the configuration of {what} names {len(diff_ids)} layers, its manifest {len(manifest.layers)}"
        )
    return ImageDetails(
        platform=_platform(document, what),
        diff_ids=tuple(diff_ids),
        created_at=_time(document.get("created")),
        config=ImageConfig.parse(data),
    )


def _index(document: Mapping[str, Any], what: str) -> Index:
    entries = _list(document, "manifests", MOST_MANIFESTS, what)
    found = []
    for entry in entries:
        descriptor = _descriptor(entry, what)
        platform = entry.get("platform")
        if platform is not None and not isinstance(platform, dict):
            raise image_error("bad_manifest", f"the index of {what} names a platform that is none")
        found.append((descriptor, None if platform is None else _platform(platform, what)))
    return Index(manifests=tuple(found))


def _manifest(document: Mapping[str, Any], what: str) -> Manifest:
    config = _descriptor(document.get("config"), what)
    if config.media_type not in (OCI_CONFIG, DOCKER_CONFIG):
        raise _unsupported(what, f"an artifact of the kind {quoted(config.media_type)} and no image")
    if config.size_bytes > LARGEST_BYTES:
        raise image_error("manifest_too_large", f"the configuration of {what} is larger than {LARGEST_BYTES >> 20} MiB")
    layers = tuple(_descriptor(one, what) for one in _list(document, "layers", MOST_LAYERS, what))
    for layer in layers:
        if not (_OCI_LAYER.fullmatch(layer.media_type) or _DOCKER_LAYER.fullmatch(layer.media_type)):
            raise _unsupported(what, f"an image with a layer of the kind {quoted(layer.media_type)}")
    return Manifest(config=config, layers=layers)


def _list(document: Mapping[str, Any], key: str, most: int, what: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise image_error("bad_manifest", f"the manifest of {what} is damaged: {key} is no list")
    if len(value) > most:
        raise image_error("bad_manifest", f"the manifest of {what} names {len(value)} {key}; {most} are allowed")
    return value


def _descriptor(value: object, what: str) -> Descriptor:
    if not isinstance(value, dict) or not isinstance(value.get("mediaType"), str):
        raise image_error("bad_manifest", f"the manifest of {what} is damaged: a descriptor is none")
    if not is_digest(value.get("digest")):
        raise image_error(
            "bad_manifest", f"the manifest of {what} has a digest that is none by sha256: {quoted(value.get('digest'))}"
        )
    size = read_size(value.get("size"), f"something in the manifest of {what}")
    return Descriptor(digest=value["digest"], size_bytes=size, media_type=value["mediaType"])


def _platform(document: Mapping[str, Any], what: str) -> Platform:
    found = [document.get(key) or "" for key in ("os", "architecture", "variant")]
    if not all(isinstance(one, str) and _TEXT.fullmatch(one) for one in found):
        raise image_error("bad_manifest", f"{what} names a platform that is none")
    return Platform(*found)


def _time(value: object) -> float | None:
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        moment = datetime.fromisoformat(value)
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _unsupported(what: str, why: str) -> Exception:
    return image_error("unsupported_manifest", f"{what} is {why}")
