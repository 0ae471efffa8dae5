"""The store: one sqlite file, one writer.

Writes run on the event loop: with WAL and `synchronous=NORMAL` a commit is a write into the page cache (0.02 ms), less than a
hop to a thread. What does wait for a disk or grows with the number of records (checkpoints, listings) runs in threads.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.server.store.listing import Query, page
from aviato.server.store.records import (
    CHANGING_COLUMNS,
    EXEC_COLUMNS,
    LEASE_COLUMNS,
    SANDBOX_COLUMNS,
    ExecRecord,
    LeaseRecord,
    SandboxRecord,
    changed_row,
    sandbox_record,
    sandbox_row,
)
from aviato.server.store.schema import MIGRATIONS, SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PURGE_BATCH = 200
LOG_BYTES = 8 << 20
"""To so many the log shrinks again after a time in which it could not be folded."""


def _insert(table: str, columns: tuple[str, ...], *, replace: bool = False) -> str:
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join(':' + name for name in columns)})"


_INSERT_SANDBOX = f"INSERT INTO sandboxes ({', '.join(SANDBOX_COLUMNS)}) VALUES ({', '.join('?' * len(SANDBOX_COLUMNS))})"
_UPDATE_SANDBOX = f"UPDATE sandboxes SET {', '.join(f'{name} = ?' for name in CHANGING_COLUMNS)} WHERE sandbox_id = ?"
_SAVE_EXEC = (
    f"{_insert('execs', EXEC_COLUMNS)} ON CONFLICT (exec_id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in EXEC_COLUMNS)} WHERE sandbox_id = excluded.sandbox_id"
)
_INSERT_LEASE = _insert("leases", LEASE_COLUMNS, replace=True)


class Store:
    """The records of one server.

    Args:
        path: of the database file; made with mode 0600 if it is missing.

    Raises:
        SandboxUnavailableError: the file was written by a newer version, or cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._db = self._connect()
            self._set_up()
        except (OSError, sqlite3.Error) as error:
            raise SandboxUnavailableError(f"the store {path!r} cannot be opened: {error}", reason="store") from error
        # These are used by worker threads only, under their lock.
        self._reader = self._connect()
        self._checkpointer = self._connect()
        self._reading = threading.Lock()
        self._folding = threading.Lock()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        return db

    def _set_up(self) -> None:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise SandboxUnavailableError(
                f"the store {self.path!r} has version {version}, this server knows {SCHEMA_VERSION}; use the newer aviato",
                reason="store",
                retryable=False,
            )
        if version == 0:
            db.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            return
        for older in range(version, SCHEMA_VERSION):
            db.executescript(f"BEGIN; {MIGRATIONS[older]} PRAGMA user_version = {older + 1}; COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. A commit that fails, as on a full disk, leaves no later write in a transaction that never ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Fold the log into the file and close; what a full disk does not take stays in the log."""
        for db in (self._reader, self._checkpointer):
            db.close()
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def checkpoint(self) -> None:
        """Fold the log into the file; for a worker thread, since it waits for the disk."""
        with self._folding:
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self) -> None:
        """Give back memory that only makes reading faster."""
        self._db.execute("PRAGMA shrink_memory")

    # Sandboxes

    def add_sandbox(self, record: SandboxRecord) -> None:
        """Put a new sandbox on record, before anything of it starts."""
        db = self._db
        if not record.tags:
            db.execute(_INSERT_SANDBOX, sandbox_row(record))
            return
        with self._transaction():
            number = db.execute(_INSERT_SANDBOX, sandbox_row(record)).lastrowid
            db.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(tag, number) for tag in record.tags])

    def save_sandbox(self, record: SandboxRecord) -> None:
        """Put a change of a sandbox on record."""
        self._db.execute(_UPDATE_SANDBOX, changed_row(record))

    def save_sandboxes(self, records: Iterable[SandboxRecord]) -> None:
        """Put a change of each of several sandboxes on record, in one commit."""
        with self._transaction():
            self._db.executemany(_UPDATE_SANDBOX, [changed_row(record) for record in records])

    def forget_sandbox(self, sandbox_id: str) -> None:
        """Another server has it on record."""
        self._db.execute("DELETE FROM sandboxes WHERE sandbox_id = ?", (sandbox_id,))

    def sandbox(self, sandbox_id: str) -> SandboxRecord | None:
        """The record of a sandbox."""
        row = self._db.execute("SELECT * FROM sandboxes WHERE sandbox_id = ?", (sandbox_id,)).fetchone()
        return None if row is None else sandbox_record(row)

    def living(self) -> list[SandboxRecord]:
        """The sandboxes that have not ended, in the order of their acceptance."""
        rows = self._db.execute("SELECT * FROM sandboxes WHERE ended_at IS NULL ORDER BY number")
        return [sandbox_record(row) for row in rows]

    def list_sandboxes(self, query: Query) -> tuple[list[SandboxRecord], str | None]:
        """One page of sandboxes and the cursor of the next; for a worker thread."""
        with self._reading:
            return page(self._reader, query)

    # Commands

    def save_execs(self, records: Iterable[ExecRecord]) -> None:
        """Put commands on record, in one commit; those of a sandbox that is not on record are left out.

        An id that another sandbox has used stays with it.
        """
        rows = [{name: getattr(record, name) for name in EXEC_COLUMNS} for record in records]
        with self._transaction():
            for row in rows:
                with suppress(sqlite3.IntegrityError):
                    self._db.execute(_SAVE_EXEC, row)

    def exec(self, exec_id: str) -> ExecRecord | None:
        """The record of a command."""
        row = self._db.execute("SELECT * FROM execs WHERE exec_id = ?", (exec_id,)).fetchone()
        if row is None:
            return None
        values = {name: row[name] for name in EXEC_COLUMNS}
        values.update(started=bool(values["started"]), timed_out=bool(values["timed_out"]))
        return ExecRecord(**values)

    # Leases

    def save_lease(self, record: LeaseRecord) -> None:
        """Put a lease on record."""
        self._db.execute(_INSERT_LEASE, {name: getattr(record, name) for name in LEASE_COLUMNS})

    def remove_lease(self, lease_id: str) -> None:
        """Forget a lease."""
        self._db.execute("DELETE FROM leases WHERE lease_id = ?", (lease_id,))

    def leases(self) -> list[LeaseRecord]:
        """All leases."""
        rows = self._db.execute("SELECT * FROM leases").fetchall()
        return [LeaseRecord(**{name: row[name] for name in LEASE_COLUMNS}) for row in rows]

    # Keys

    def add_key_hash(self, key_hash: str) -> None:
        """Remember the hash of an API key, and the routes behind it if it is not for all; what was known of it is replaced."""
        bare = key_hash.partition(" ")[0]
        self._db.execute("DELETE FROM api_keys WHERE hash != ? AND (hash = ? OR hash LIKE ? || ' %')", (key_hash, bare, bare))
        self._db.execute("INSERT OR IGNORE INTO api_keys VALUES (?, ?)", (key_hash, time.time()))

    def forget_key_hashes(self) -> None:
        """Forget all API keys."""
        self._db.execute("DELETE FROM api_keys")

    def key_hashes(self) -> list[str]:
        """The hashes of all API keys, as they were added."""
        return [row["hash"] for row in self._db.execute("SELECT hash FROM api_keys")]

    # Retention

    def purge(self, before: float) -> list[str]:
        """Forget a batch of sandboxes and commands that ended before a time.

        Returns:
            The ids of the sandboxes; call again while there are any.
        """
        rows = self._db.execute(
            "SELECT number, sandbox_id FROM sandboxes WHERE ended_at < ? LIMIT ?", (before, PURGE_BATCH)
        ).fetchall()
        if rows:
            # One statement whatever the number: each text that SQLite has seen it keeps a program for.
            with self._transaction():
                self._db.executemany("DELETE FROM sandboxes WHERE number = ?", [(row["number"],) for row in rows])
        self._db.execute(
            "DELETE FROM execs WHERE exec_id IN (SELECT exec_id FROM execs WHERE ended_at < ? LIMIT ?)", (before, PURGE_BATCH)
        )
        return [row["sandbox_id"] for row in rows]
