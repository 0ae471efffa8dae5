"""Listing: filters and pages as one query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.server.store.records import SandboxRecord, sandbox_record

if TYPE_CHECKING:
    import sqlite3

    from aviato.options import SandboxStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What to list: sandboxes that have all `tags` and one of `statuses`, oldest first.

    Attributes:
        statuses: empty: any that has not ended, or any at all with `include_stopped`. A terminal one implies it.
        owners: whose they are; None is anybody.
        limit: sandboxes a page.
        cursor: of the page before; None: the first.
    """

    tags: tuple[str, ...] = ()
    statuses: tuple[SandboxStatus, ...] = ()
    include_stopped: bool = False
    lease_id: str | None = None
    owners: tuple[str, ...] | None = None
    limit: int = 100
    cursor: str | None = None


def page(db: sqlite3.Connection, query: Query) -> tuple[list[SandboxRecord], str | None]:
    """One page and the cursor of the next.

    Raises:
        AviatoValidationError: the cursor is not one of ours.
    """
    where, values = _conditions(query)
    rows = db.execute(
        f"SELECT * FROM sandboxes WHERE {' AND '.join(where)} ORDER BY number LIMIT ?", [*values, query.limit + 1]
    ).fetchall()
    more = len(rows) > query.limit
    rows = rows[: query.limit]
    return [sandbox_record(row) for row in rows], str(rows[-1]["number"]) if more else None


def _conditions(query: Query) -> tuple[list[str], list[Any]]:
    where, values = ["number > ?"], [_after(query.cursor)]
    if query.statuses:
        where.append(f"status IN ({','.join('?' * len(query.statuses))})")
        values.extend(str(status) for status in query.statuses)
    elif not query.include_stopped:
        where.append("ended_at IS NULL")
    if query.lease_id is not None:
        where.append("lease_id = ?")
        values.append(query.lease_id)
    if query.owners is not None:
        where.append(f"owner IN ({','.join('?' * len(query.owners))})")
        values.extend(query.owners)
    for tag in query.tags:
        where.append("number IN (SELECT number FROM tags WHERE tag = ?)")
        values.append(tag)
    return where, values


def _after(cursor: str | None) -> Any:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise AviatoValidationError(f"cursor is {cursor!r}; give the next_cursor of the page before it")
    return int(cursor)
