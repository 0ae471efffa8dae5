"""The rows of the store as frozen dataclasses."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SandboxRecord:
    """A sandbox on record. Times are seconds since the epoch.

    Attributes:
        body_hash: of the create, to tell a repeat from a conflict.
        body: the create itself as JSON, kept only until the sandbox has ended.
        owner: the tenant whose it is; None is the server's own user, and `EARLIER` whoever was there before there were tenants.
        begun: whether its start was begun, so that it cannot simply be queued again.
        let_go: whether its client has said that nobody can use it any more.
        ports: exposed port → port of this machine, as long as it has one; in the order of the create.
        egress: what it may connect to: `none`, `internet`, or the hosts of its allow-list.
        unkept_promises: of its backend, when it was accepted.
        for_one_run: it was made for one command, and ends with it.
        place_id: of the place that it is in, where that has not the sandbox's own id.
        image_id: of the image in use, whatever its name means since; None where nothing tells.
        first_image_id: of the one that it began with, before any reset.
        lies_over: the snapshot that its place lies over, where it has moved over one of its own.
        moving: while it does: which place it comes from, and how the snapshot is to be, as JSON.
        expires_at: when its lifetime is over, by the clock; a reset begins none anew.
    """

    sandbox_id: str
    created_at: float
    status_updated_at: float
    body_hash: str
    status: SandboxStatus = SandboxStatus.PENDING
    status_reason: str | None = None
    message: str | None = None
    is_infrastructure: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    startup_seconds: float | None = None
    returncode: int | None = None
    detached: bool = False
    lease_id: str | None = None
    owner: str | None = None
    begun: bool = False
    let_go: bool = False
    image: str | None = None
    image_note: str | None = None
    tags: tuple[str, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    ports: dict[int, int | None] = field(default_factory=dict)
    egress: str | list[str] = "none"
    unkept_promises: tuple[str, ...] = ()
    for_one_run: bool = False
    place_id: str | None = None
    image_id: str | None = None
    first_image_id: str | None = None
    lies_over: str | None = None
    moving: str | None = None
    expires_at: float | None = None
    body: str | None = None

    def but(self, **changes: Any) -> SandboxRecord:
        """The same record, but for these fields; a tenth of what `dataclasses.replace` takes for so many.

        Raises:
            TypeError: there is no such field.
        """
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"a sandbox's record has no {', '.join(changes.keys() - _FIELDS)}")
        other = object.__new__(SandboxRecord)
        other.__dict__.update(self.__dict__, **changes)
        return other


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecRecord:
    """A command on record.

    Attributes:
        started: whether it had begun to run.
        ended_at: None while it runs.
    """

    exec_id: str
    sandbox_id: str
    created_at: float
    started: bool = False
    ended_at: float | None = None
    returncode: int | None = None
    timed_out: bool = False
    duration_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRecord:
    """A lease on record. `pid` and `start_ticks` name a process of the boot `boot_id`; they are None for a heartbeat.

    Attributes:
        owner: the tenant whose it is; None is the server's own user.
    """

    lease_id: str
    kind: str
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    owner: str | None = None


SANDBOX_COLUMNS = tuple(item.name for item in fields(SandboxRecord))
_FIELDS = frozenset(SANDBOX_COLUMNS)
FIXED_COLUMNS = (
    *("sandbox_id", "created_at", "body_hash", "detached", "lease_id", "owner", "image_note", "tags", "annotations"),
    *("limits", "egress", "unkept_promises", "for_one_run"),
)
"""Of a sandbox, that stay as they were when it was accepted."""
EXEC_COLUMNS = tuple(item.name for item in fields(ExecRecord))
LEASE_COLUMNS = tuple(item.name for item in fields(LeaseRecord))


CHANGING_COLUMNS = tuple(name for name in SANDBOX_COLUMNS if name not in FIXED_COLUMNS)
_of_all, _of_changing = attrgetter(*SANDBOX_COLUMNS), attrgetter(*CHANGING_COLUMNS)
_AS_JSON = frozenset({"tags", "annotations", "ports", "egress", "unkept_promises"})
_JSON_PLACES, _PORTS_PLACE = (
    [place for place, name in enumerate(SANDBOX_COLUMNS) if name in _AS_JSON],
    CHANGING_COLUMNS.index("ports"),
)
_LIMITS_PLACE = SANDBOX_COLUMNS.index("limits")
_to_json = json.JSONEncoder().encode
_known_as_json = lru_cache(maxsize=256)(_to_json)
_last: tuple[object, str] = ({}, "{}")
"""The limits that were encoded last: sandboxes that are asked for alike have the same object."""


def sandbox_row(record: SandboxRecord) -> list[Any]:
    """The columns of a sandbox."""
    row = _plain(_of_all(record))
    for place in _JSON_PLACES:
        row[place] = _as_json(row[place])
    row[_LIMITS_PLACE] = _limits_as_json(record.limits)
    return row


def _as_json(value: Any) -> str:
    """What most sandboxes have in common is not encoded for each."""
    if isinstance(value, (str, tuple)):
        return _known_as_json(value)
    return _to_json(value) if value else "[]" if isinstance(value, list) else "{}"


def _limits_as_json(limits: dict[str, Any]) -> str:
    global _last
    if _last[0] is not limits:
        _last = limits, _to_json(limits)
    return _last[1]


def changed_row(record: SandboxRecord) -> list[Any]:
    """The columns that may have changed since it was accepted, and its id."""
    row = _plain(_of_changing(record))
    row[_PORTS_PLACE] = _as_json(row[_PORTS_PLACE])
    row.append(record.sandbox_id)
    return row


def _plain(row: tuple[Any, ...]) -> list[Any]:
    """For what is no `int` or `str` itself sqlite would look for an adapter each time."""
    return [int(one) if one is True or one is False else str(one) if isinstance(one, SandboxStatus) else one for one in row]


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "status": SandboxStatus,
    "is_infrastructure": bool,
    "detached": bool,
    "begun": bool,
    "let_go": bool,
    "for_one_run": bool,
    "tags": lambda text: tuple(json.loads(text)),
    "annotations": json.loads,
    "limits": json.loads,
    "ports": lambda text: {int(port): address for port, address in json.loads(text).items()},
    "egress": json.loads,
    "unkept_promises": lambda text: tuple(json.loads(text)),
}


def sandbox_record(row: Mapping[str, Any]) -> SandboxRecord:
    """The sandbox of a row.

    What cannot be read has its default, and the record has no body: nothing can be run by it, but it holds up no other.
    """
    values = {name: row[name] for name in SANDBOX_COLUMNS}
    unreadable = []
    for name, read in _READERS.items():
        try:
            values[name] = read(values[name])
        except (ValueError, TypeError, AttributeError):
            unreadable.append(name)
            del values[name]
    if unreadable:
        log.warning("the record of sandbox %s cannot be read: %s", values["sandbox_id"], ", ".join(unreadable))
        values["body"] = None
        if "status" in unreadable and values["ended_at"] is not None:
            values["status"] = SandboxStatus.FAILED
    return SandboxRecord(**values)
