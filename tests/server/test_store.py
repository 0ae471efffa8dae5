from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.options import SandboxStatus
from aviato.server.store import ExecRecord, LeaseRecord, SandboxRecord, Store
from aviato.server.store.listing import Query
from aviato.server.store.schema import SCHEMA_VERSION


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path / "store.db"))
    yield store
    store.close()


def record(name, **changes):
    return SandboxRecord(sandbox_id=name, created_at=1.0, status_updated_at=1.0, body_hash="h", **changes)


def test_what_is_stored_comes_back(store):
    first = record(
        "a",
        tags=("x", "y"),
        annotations={"k": "v"},
        limits={"cpu": {"value": None, "strength": "none"}},
        egress=["a.org"],
        unkept_promises=("names: they are the machine's",),
        body="{}",
    )
    store.add_sandbox(first)
    assert store.sandbox("a") == first and store.sandbox("b") is None
    ended = replace(first, status=SandboxStatus.FAILED, ended_at=2.0, returncode=3, is_infrastructure=True, body=None)
    store.save_sandbox(ended)
    assert store.sandbox("a") == ended and store.living() == []
    with pytest.raises(sqlite3.IntegrityError):
        store.add_sandbox(first)


def test_it_survives_being_opened_again(tmp_path):
    path = str(tmp_path / "store.db")
    store = Store(path)
    store.add_sandbox(record("a"))
    store.save_lease(LeaseRecord(lease_id="l", kind="process", pid=1, start_ticks=2, boot_id="b"))
    store.add_key_hash("k")
    store.close()
    again = Store(path)
    assert again.living() == [record("a")] and again.key_hashes() == ["k"]
    assert again.leases() == [LeaseRecord(lease_id="l", kind="process", pid=1, start_ticks=2, boot_id="b")]
    # The newest word on what a key is for holds.
    again.add_key_hash("k /run_code")
    again.add_key_hash("kk")
    again.add_key_hash("k /run_code /health")
    assert sorted(again.key_hashes()) == ["k /run_code /health", "kk"]
    again.forget_key_hashes()
    assert again.key_hashes() == []
    again.remove_lease("l")
    assert again.leases() == []
    assert again._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert again._db.execute("PRAGMA synchronous").fetchone()[0] == 1
    again.close()


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_store_of_an_older_version_is_brought_up_to_date(tmp_path, version):
    path = tmp_path / "store.db"
    Store(str(path)).close()
    db = sqlite3.connect(path)
    for column in ("let_go", "ports", "egress", "owner", "unkept_promises", "for_one_run", "place_id", "lies_over")[
        version - 1 :
    ]:
        db.execute(f"ALTER TABLE sandboxes DROP COLUMN {column}")
    if version < 8:
        db.execute("ALTER TABLE sandboxes DROP COLUMN expires_at")
    if version < 9:
        db.execute("ALTER TABLE sandboxes DROP COLUMN moving")
    db.execute("ALTER TABLE sandboxes DROP COLUMN image_id")
    db.execute("ALTER TABLE sandboxes DROP COLUMN first_image_id")
    if version < 5:
        db.execute("ALTER TABLE leases DROP COLUMN owner")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()
    for turn in range(2):
        store = Store(str(path))
        assert store.living() == []
        there = {row[1] for row in store._db.execute("PRAGMA table_info(sandboxes)")}
        assert {
            "let_go",
            "ports",
            "egress",
            "owner",
            "unkept_promises",
            "for_one_run",
            "place_id",
            "expires_at",
            "lies_over",
            "moving",
            "image_id",
            "first_image_id",
        } <= there
        store.add_sandbox(record(f"a{turn}", ended_at=1.0, ports={9000: None, 80: 40123}))
        assert list(store.sandbox(f"a{turn}").ports.items()) == [(9000, None), (80, 40123)]
        assert store.sandbox(f"a{turn}").egress == "none"
        store.close()


def test_a_newer_store_is_refused(tmp_path):
    path = tmp_path / "store.db"
    Store(str(path)).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SandboxUnavailableError, match="version 99"):
        Store(str(path))


def test_a_path_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(SandboxUnavailableError, match="cannot be opened"):
        Store(str(tmp_path))
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    with pytest.raises(SandboxUnavailableError, match="cannot be opened"):
        Store(str(tmp_path / "junk"))


def test_listing_filters_and_pages(store):
    for number in range(25):
        tags = ("all", "even" if number % 2 == 0 else "odd")
        store.add_sandbox(record(f"s{number:02}", tags=tags, lease_id="l1" if number < 5 else None))
    for number in range(0, 25, 5):
        done = store.sandbox(f"s{number:02}")
        store.save_sandbox(replace(done, status=SandboxStatus.COMPLETED, ended_at=2.0))

    def names(**query):
        found, cursor = [], None
        while True:
            page, cursor = store.list_sandboxes(Query(limit=4, cursor=cursor, **query))
            found += [item.sandbox_id for item in page]
            if cursor is None:
                return found

    every = [f"s{number:02}" for number in range(25)]
    assert names(include_stopped=True) == every
    assert names() == [name for number, name in enumerate(every) if number % 5]
    assert names(statuses=(SandboxStatus.COMPLETED,)) == every[::5]
    assert names(statuses=(SandboxStatus.COMPLETED, SandboxStatus.PENDING)) == every
    assert names(tags=("all", "even"), include_stopped=True) == every[::2]
    assert names(tags=("even", "odd"), include_stopped=True) == []
    assert names(lease_id="l1") == ["s01", "s02", "s03", "s04"]
    with pytest.raises(AviatoValidationError, match="cursor"):
        store.list_sandboxes(Query(cursor="x"))


def test_exec_records_come_in_batches_and_go_with_their_sandbox(store):
    store.add_sandbox(record("a"))
    first = ExecRecord(exec_id="e1", sandbox_id="a", created_at=1.0, started=True)
    orphan = ExecRecord(exec_id="e2", sandbox_id="gone", created_at=1.0)
    store.save_execs([first, orphan])
    assert store.exec("e1") == first and store.exec("e2") is None
    ended = replace(first, ended_at=2.0, returncode=0, duration_seconds=1.0)
    store.save_execs([ended])
    assert store.exec("e1") == ended
    store.save_sandbox(replace(store.sandbox("a"), status=SandboxStatus.COMPLETED, ended_at=2.0))
    assert store.purge(1.5) == []
    assert store.purge(3.0) == ["a"] and store.sandbox("a") is None and store.exec("e1") is None


def test_retention_forgets_old_commands_of_living_sandboxes(store):
    store.add_sandbox(record("a", tags=("t",)))
    store.save_execs([ExecRecord(exec_id="e1", sandbox_id="a", created_at=1.0, ended_at=2.0)])
    assert store.purge(3.0) == []
    assert store.exec("e1") is None and store.sandbox("a") is not None


def test_a_checkpoint_folds_the_log(store):
    store.add_sandbox(record("a"))
    store.checkpoint()
    assert store.sandbox("a") is not None


def test_a_commit_that_fails_leaves_nothing_open(store):
    """As on a full disk: later writes would be in a transaction that never ends."""

    class Full:
        def __init__(self, db):
            self._db = db

        def execute(self, statement, *values):
            if statement == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return self._db.execute(statement, *values)

        def __getattr__(self, name):
            return getattr(self._db, name)

    store.add_sandbox(record("sb-first"))
    real, store._db = store._db, Full(store._db)
    with pytest.raises(sqlite3.OperationalError):
        store.save_execs([ExecRecord(exec_id="e1", sandbox_id="sb-first", created_at=1.0)])
    with pytest.raises(sqlite3.OperationalError):
        store.add_sandbox(record("sb-tagged", tags=("t",)))
    store._db = real
    assert not real.in_transaction and store.exec("e1") is None and store.sandbox("sb-tagged") is None
    store.save_execs([ExecRecord(exec_id="e2", sandbox_id="sb-first", created_at=1.0)])
    store.add_sandbox(record("sb-second", tags=("t",)))
    other = sqlite3.connect(store.path)
    assert other.execute("SELECT count(*) FROM sandboxes").fetchone() == (2,)
    other.close()
