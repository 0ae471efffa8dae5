"""What goes wrong with an image of a registry, by stable reasons."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Literal

from aviato.exceptions import SandboxImageError
from aviato.values.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

Reason = Literal[
    "base_of_this_machine",  # What lies below its layers are this machine's own files.
    "bad_manifest",  # A manifest or a configuration that is none, or says impossible things.
    "bad_reference",  # The reference itself is wrong.
    "damaged_layer",  # A layer that cannot be decompressed.
    "damaged_layout",  # A directory or an archive that is no image.
    "damaged_store",  # The store's own files are.
    "denied",  # The credentials are known, and not enough.
    "disk_full",
    "image_gone",  # It was removed meanwhile.
    "image_in_use",
    "image_not_here",
    "layers",
    "interrupted",  # The connection was cut again and again.
    "manifest_too_large",
    "needs_credentials",
    "no_such_repository",  # The registry makes none for a push.
    "no_such_file",
    "not_a_registry",  # Somebody answers, and not as registries do.
    "oversized_layer",  # More bytes than the manifest says.
    "push_refused",  # The registry takes no such images.
    "registry_failed",  # 5xx, again and again.
    "registry_unreachable",
    "stalled",
    "store_failed",  # The disk of the store fails in another way.
    "too_large",  # Larger than this server unpacks.
    "too_many_requests",
    "truncated_layer",  # Fewer bytes than the manifest says.
    "unknown_name",
    "unknown_tag",
    "unsupported_manifest",
    "wrong_digest",
    "wrong_platform",
]

_PASSING = ("interrupted", "registry_failed", "registry_unreachable", "stalled", "too_many_requests")
LONGEST_SHOWN = 200


def image_error(reason: Reason, message: str, *, retry_delay_seconds: float | None = None) -> SandboxImageError:
    """The error of a reason; those that pass by themselves may be retried."""
    retryable = reason in _PASSING
    return SandboxImageError(message, reason=reason, retryable=retryable, retry_delay_seconds=retry_delay_seconds)


def disk_error(error: OSError, what: str) -> SandboxImageError:
    """A failure of the disk that the store is on."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return image_error("disk_full", f"{what}: the disk of the image store is full; free some of it, or prune images")
    return image_error("store_failed", f"{what}: the image store failed: {error.strerror or error}")


def quoted(text: object) -> str:
    """What somebody else wrote, for a message: one line of bounded length."""
    return repr(shown(str(text), LONGEST_SHOWN))


def there_are(names: Mapping[str, object]) -> str:
    """The end of a message: what there is instead."""
    some = sorted(names)[:5]
    more = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
    return f"there are {', '.join(map(quoted, some))}{more}" if some else "there are none"
