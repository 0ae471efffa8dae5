"""What a backend can do beyond carrying commands and files: declared by it, asked for by creates, refused by name."""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """One thing that sandboxes of a backend can have or do. What is not declared is refused before anything starts."""

    PORTS = "ports"
    EGRESS = "egress"
    INTERNET = "internet"
    PLACES = "places"
    LOCAL_SOCKETS = "local_sockets"
    MOUNTED_FILES = "mounted_files"
    WORKING_DIR = "working_dir"
    USERS = "users"
    PACKAGES = "packages"
    IMAGES = "images"
    IMAGE_STORE = "image_store"
    SNAPSHOTS = "snapshots"
    POOLS = "pools"


WITHOUT: dict[Capability, str] = {
    Capability.PORTS: "nothing outside can connect to what listens in its sandboxes",
    Capability.EGRESS: "it holds its sandboxes to no list of hosts",
    Capability.INTERNET: "its sandboxes have no way to public addresses",
    Capability.PLACES: "all of its sandboxes are in the pool and on the node 'local'",
    Capability.LOCAL_SOCKETS: "programs in its sandboxes cannot connect to each other",
    Capability.MOUNTED_FILES: "its sandboxes have no root directory of their own in which that path could be",
    Capability.WORKING_DIR: "in its sandboxes no directory can be made at any path",
    Capability.USERS: "commands of its sandboxes are all one user's; `aviato doctor` says whether more could be had",
    Capability.PACKAGES: "it brings none in",
    Capability.IMAGES: "its sandboxes begin as its default image alone",
    Capability.IMAGE_STORE: "it keeps no images, so that it pulls, builds and lists none",
    Capability.SNAPSHOTS: "it takes none of what a sandbox has written",
    Capability.POOLS: "it keeps no sandboxes ready",
}
"""Of each, what is so where a backend has not declared it."""


def lacks(backend: str, capability: Capability) -> str:
    """What is told to a caller who asks a backend of this name for something that it has not declared."""
    return f"the backend {backend!r} does not have {capability.value!r}: {WITHOUT[capability]}"
