"""Limits under which no server can live: it has them from who starts it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Least(NamedTuple):
    limit: int
    least: int
    allows: str
    flag: str
    unit: int


_NEEDED = (
    _Least(resource.RLIMIT_NOFILE, 256, "has {} descriptors at most", "-n", 1),
    _Least(resource.RLIMIT_AS, 512 << 20, "may map {} KiB at most", "-v", 1024),
    _Least(resource.RLIMIT_FSIZE, 64 << 20, "may write files of {} KiB at most", "-f", 1024),
)


def too_low(limits: Mapping[int, tuple[int, int]] | None = None) -> str | None:
    """What is too low, what is needed, and what raises it; None where a server can live.

    Args:
        limits: soft and hard, by number; None is those of this process.
    """
    for needed in _NEEDED:
        soft, hard = limits[needed.limit] if limits is not None else resource.getrlimit(needed.limit)
        # A server raises the first one as far as it goes, and lives with the others as they are.
        given = hard if needed.limit == resource.RLIMIT_NOFILE else soft
        if given != resource.RLIM_INFINITY and given < needed.least:
            allows, least = needed.allows.format(given // needed.unit), needed.least // needed.unit
            where = "here" if hard == resource.RLIM_INFINITY or hard >= needed.least else "where this shell was started"
            return f"this process {allows}, and a server needs {least}: run `ulimit {needed.flag} {least}` {where}"
    return None
