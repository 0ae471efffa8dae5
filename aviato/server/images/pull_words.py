"""What an engine that pulls images by itself says when it cannot, by our reasons. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aviato.server.images.image_errors import Reason

_UNKNOWN = re.compile(r"not found|manifest unknown|no such image|does not exist|repository name not known", re.IGNORECASE)
_DENIED = re.compile(r"denied|unauthorized|authentication required|no basic auth|forbidden|403|401", re.IGNORECASE)
_MANY = re.compile(r"toomanyrequests|too many requests|rate limit", re.IGNORECASE)
_FULL = re.compile(r"no space left", re.IGNORECASE)
_PLATFORM = re.compile(r"no matching manifest|no match for platform|does not match the specified platform", re.IGNORECASE)


def reason_of(said: str, *, has_credentials: bool, is_unknown: bool = False) -> Reason:
    """The reason.

    Args:
        said: in the engine's words.
        has_credentials: it had some for the registry.
        is_unknown: it has said so by a status, too.
    """
    if _MANY.search(said):
        return "too_many_requests"
    if _FULL.search(said):
        return "disk_full"
    if _PLATFORM.search(said):
        return "wrong_platform"
    if _DENIED.search(said):
        return "denied" if has_credentials else "needs_credentials"
    return "unknown_name" if is_unknown or _UNKNOWN.search(said) else "registry_unreachable"
