"""Which of an image's platforms this machine runs."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from aviato.server.images.image_errors import image_error
from aviato.server.images.manifests import Platform

if TYPE_CHECKING:
    from aviato.server.images.manifests import Descriptor, Index

_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "i386": "386",
    "i686": "386",
    "ppc64le": "ppc64le",
    "riscv64": "riscv64",
    "s390x": "s390x",
    "loongarch64": "loong64",
}
_ARM = re.compile(r"armv([5-8])")
_VARIANTS = {"amd64": ("", "v1"), "arm64": ("v8", "")}
"""What every machine of an architecture runs, the best first."""


def this_platform(machine: str | None = None) -> Platform:
    """What this machine is, by its kernel's word for it."""
    machine = platform.machine() if machine is None else machine
    arm = _ARM.match(machine)
    if arm is not None:
        return Platform("linux", "arm", f"v{min(int(arm[1]), 7)}")
    return Platform("linux", _ARCHITECTURES.get(machine, machine))


def choose_manifest(index: Index, own: Platform, what: str) -> Descriptor:
    """The one image of an index that this machine runs.

    Raises:
        SandboxImageError: there is none; the message names those there are.
    """
    order = variants(own)
    fitting = [
        (order.index(one.variant), number)
        for number, (_, one) in enumerate(index.manifests)
        if one is not None and (one.os, one.architecture) == (own.os, own.architecture) and one.variant in order
    ]
    if fitting:
        return index.manifests[min(fitting)[1]][0]
    unsaid = [descriptor for descriptor, one in index.manifests if one is None]
    if len(unsaid) == 1:  # Its configuration says.
        return unsaid[0]
    # Signatures and other notes about an image are of the platform `unknown`.
    there = sorted({str(one) for _, one in index.manifests if one is not None and one.os != "unknown"})
    raise _wrong(own, what, ", ".join(there[:20]) or "none")


def check_platform(found: Platform, own: Platform, what: str) -> None:
    """See whether this machine runs an image; one that says nothing is taken.

    Raises:
        SandboxImageError: it does not.
    """
    if found.os not in ("", own.os) or found.architecture not in ("", own.architecture):
        raise _wrong(own, what, str(found))
    if found.architecture and found.variant not in variants(own):
        raise _wrong(own, what, str(found))


def variants(own: Platform) -> tuple[str, ...]:
    """The variants of an architecture that a machine runs, the best first."""
    if own.architecture == "arm":
        return (*(f"v{number}" for number in range(int(own.variant[1:] or 7), 4, -1)), "")
    return _VARIANTS.get(own.architecture, ("",))


def _wrong(own: Platform, what: str, there: str) -> Exception:
    return image_error("wrong_platform", f"{what} is not there for this machine ({own}); there are: {there}")
