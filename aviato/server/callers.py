"""Who calls, what they see, and how much they may use. Pure rules."""

from __future__ import annotations

import hashlib
import math
import re
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError
from aviato.wire.images import BUILT

if TYPE_CHECKING:
    from collections.abc import Iterable

EARLIER = "*"
"""Owner of what was made before keys had tenants: every API key saw it then, and does until it ends."""
_SECRETS = re.compile(r"((env:|file:)?[A-Za-z0-9_.*-]{1,128})?")
ENTITY = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""What W&B calls users and teams."""
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class BodyTooLargeError(AviatoValidationError):
    """The body of a request is larger than its caller may send."""

    default_reason = "too_large"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        tenant: whose sandboxes and leases it sees, and whose its new ones are. None sees all: the server's own user, who
            comes over the Unix socket.
        sees_earlier: whether it sees what was made before there were tenants, as the keys of that time did.
        max_sandboxes: how many of the tenant may live at once, those that wait for a place included.
        max_body_bytes: how large a request may be.
        secrets: the names that it may give to its sandboxes, where `*` stands for anything and `env:` or `file:` before a name
            for that store alone; None is every name.
    """

    tenant: str | None = None
    sees_earlier: bool = False
    max_sandboxes: int | None = None
    max_body_bytes: int | None = None
    secrets: tuple[str, ...] | None = None

    def sees(self, owner: str | None) -> bool:
        """Whether what belongs to this tenant is there for the caller."""
        owners = self.owners
        return owners is None or owner in owners

    @property
    def owners(self) -> tuple[str, ...] | None:
        """Whose the sandboxes are that the caller sees; None is anybody's."""
        if self.tenant is None:
            return None
        return (self.tenant, EARLIER) if self.sees_earlier else (self.tenant,)

    def image(self, reference: str) -> str:
        """What a reference means of theirs: steps of builds are called the same by all who build the same, and are their own.

        Whoever could give such a name for others would have them go on with what they have not made.
        """
        if self.tenant is None or not reference.startswith(f"{BUILT}/"):
            return reference
        return f"{BUILT}/{hashlib.sha256(self.tenant.encode()).hexdigest()[:32]}/{reference.removeprefix(f'{BUILT}/')}"

    def check_secrets(self, wanted: Iterable[tuple[str, str]]) -> None:
        """See whether these secrets may be given to a sandbox. Whether there are any such plays no part.

        Args:
            wanted: store and name of each.

        Raises:
            AviatoValidationError: one may not.
        """
        if self.secrets is None:
            return
        for store, name in wanted:
            if not any(fnmatchcase(f"{store}:{name}" if ":" in one else name, one) for one in self.secrets):
                why = f"this caller may not use the secret {name!r} of store {store!r}; the server's operator can allow it"
                raise AviatoValidationError(f"secrets: {why}", field_violations={"secrets": why})

    def check_size(self, size_bytes: int) -> None:
        """See whether so much of a body may come in.

        Raises:
            BodyTooLargeError: it may not.
        """
        if self.max_body_bytes is not None and size_bytes > self.max_body_bytes:
            raise BodyTooLargeError(f"the body is too large: this key may send {self.max_body_bytes} bytes in one request")


OPERATOR = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller")
"""Who has sent the request that is being answered."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """An API key as the server knows it.

    Attributes:
        hash: of the key itself, which is not kept.
        routes: that it is for; empty is all.
        requests_per_second: on average; None is any number.
    """

    hash: str
    caller: Caller
    routes: frozenset[str] = frozenset()
    requests_per_second: float | None = None


def parse_key(line: str) -> Key:
    """The key of a line: its hash, and what it is limited to.

    Raises:
        ValueError: something behind the hash cannot be meant.
    """
    key_hash, *parts = line.split()
    routes = frozenset(part for part in parts if part.startswith("/"))
    given: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if part in routes:
            continue
        if not equals or name not in _OPTIONS:
            # Not shown: it may be another key.
            raise ValueError(f"holds what is neither a route nor one of {', '.join(f'{name}=' for name in _OPTIONS)}")
        if name in given:
            raise ValueError(f"says {name}= twice")
        given[name] = value
    tenant = given.get("tenant", f"key:{key_hash[:32]}")
    if "tenant" in given and _TENANT.fullmatch(tenant) is None:
        raise ValueError("has a tenant= that is not 1 to 64 letters, digits, '_', '.' and '-'")
    caller = Caller(
        tenant=tenant,
        sees_earlier=True,
        max_sandboxes=_count(given, "max-sandboxes"),
        max_body_bytes=_count(given, "max-body-bytes"),
        secrets=_secrets(given),
    )
    return Key(hash=key_hash, caller=caller, routes=routes, requests_per_second=_rate(given))


_OPTIONS = ("tenant", "max-sandboxes", "requests-per-second", "max-body-bytes", "secrets")


def _count(given: dict[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text[:18]) > 0 or len(text) > 18:
        raise ValueError(f"has {name}={text!r}, which is no number of 1 or more")
    return int(text)


def _secrets(given: dict[str, str]) -> tuple[str, ...] | None:
    text = given.get("secrets")
    if text is None:
        return None
    names = text.split(",")
    if not all(map(_SECRETS.fullmatch, names)):
        # Not shown: someone may have put values there.
        raise ValueError("has a secrets= that is no list of names of secrets, with commas between and * for anything")
    return tuple(filter(None, names))


def _rate(given: dict[str, str]) -> float | None:
    text = given.get("requests-per-second")
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ValueError(f"has requests-per-second={text!r}, which is no number above 0")
    return rate
