"""Ids that the client makes, which are the idempotency keys of what they name.

An id is a prefix and 26 lower-case base32 characters of a UUIDv7: sorted by time, and fit for a DNS label and a path.
"""

from __future__ import annotations

import os
import re
import time
from functools import partial

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base32 in lower case: its order is the order of the numbers."""
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]

_OF_PLACES = 31 << 125
"""Ids of places that are no sandbox's begin with the last letter, as no UUIDv7 of the next 6,000 years does."""

ID_PATTERN = r"[0-9a-hjkmnp-tv-z]{26}"
SANDBOX_ID_PATTERN = r"[0-9a-hjkmnp-tv-y][0-9a-hjkmnp-tv-z]{25}"
SANDBOX_ID = re.compile(f"sb-{ID_PATTERN}")
EXEC_ID = re.compile(f"ex-{ID_PATTERN}")
LEASE_ID = re.compile(f"ls-{ID_PATTERN}")
POOL_ID = re.compile(f"pl-{ID_PATTERN}")
RESET_ID = re.compile(f"rs-{ID_PATTERN}")
SNAPSHOT_ID = re.compile(f"sn-{ID_PATTERN}")


def _id(prefix: str, number: int | None = None) -> str:
    """The id of a number of 128 bits; without one, of a UUIDv7."""
    if number is None:
        milliseconds = time.time_ns() // 1_000_000
        random = int.from_bytes(os.urandom(10), "big")
        low = (random >> 68 & 0xFFF) << 64 | 2 << 62 | random & (1 << 62) - 1
        number = (milliseconds & (1 << 48) - 1) << 80 | 7 << 76 | low
    return prefix + "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


new_sandbox_id = partial(_id, "sb-")
"""A new sandbox id, `sb-…`."""
new_reset_id = partial(_id, "rs-")
"""A new id of a reset, `rs-…`."""
new_pool_id = partial(_id, "pl-")
"""A new id of a pool, `pl-…`."""
new_exec_id = partial(_id, "ex-")
"""A new exec id, `ex-…`."""
new_lease_id = partial(_id, "ls-")
"""A new lease id, `ls-…`."""
new_snapshot_id = partial(_id, "sn-")
"""A new snapshot id, `sn-…`."""


def derived_place_id(sandbox_id: str, reset_id: str) -> str:
    """The id of the place that this reset gives to this sandbox: the same each time, and never that of a sandbox."""
    import hashlib  # Of clients, which make none, each import costs time.

    number = int.from_bytes(hashlib.sha256(f"{sandbox_id}\0{reset_id}".encode()).digest()[:16], "big") | _OF_PLACES
    return _id("sb-", number)


def new_place_id() -> str:
    """A new id of a place that is made for no sandbox yet, and never that of a sandbox."""
    return _id("sb-", int.from_bytes(os.urandom(16), "big") | _OF_PLACES)
