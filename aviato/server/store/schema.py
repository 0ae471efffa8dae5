"""The tables, and their version."""

from __future__ import annotations

SCHEMA_VERSION = 10

SCHEMA = """
CREATE TABLE sandboxes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    status_reason TEXT,
    message TEXT,
    is_infrastructure INTEGER NOT NULL,
    status_updated_at REAL NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    startup_seconds REAL,
    returncode INTEGER,
    detached INTEGER NOT NULL,
    lease_id TEXT,
    owner TEXT,
    begun INTEGER NOT NULL,
    let_go INTEGER NOT NULL DEFAULT 0,
    image TEXT,
    image_note TEXT,
    tags TEXT NOT NULL,
    annotations TEXT NOT NULL,
    limits TEXT NOT NULL,
    ports TEXT NOT NULL DEFAULT '{}',
    egress TEXT NOT NULL DEFAULT '"none"',
    unkept_promises TEXT NOT NULL DEFAULT '[]',
    for_one_run INTEGER NOT NULL DEFAULT 0,
    place_id TEXT,
    image_id TEXT,
    first_image_id TEXT,
    lies_over TEXT,
    moving TEXT,
    expires_at REAL,
    body_hash TEXT NOT NULL,
    body TEXT
);
CREATE INDEX sandboxes_by_status ON sandboxes (status, number);
CREATE INDEX sandboxes_by_lease ON sandboxes (lease_id, number);
CREATE INDEX sandboxes_by_end ON sandboxes (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE tags (
    tag TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES sandboxes (number) ON DELETE CASCADE,
    PRIMARY KEY (tag, number)
) WITHOUT ROWID;
CREATE INDEX tags_by_sandbox ON tags (number);
CREATE TABLE execs (
    exec_id TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (sandbox_id) ON DELETE CASCADE,
    created_at REAL NOT NULL,
    started INTEGER NOT NULL,
    ended_at REAL,
    returncode INTEGER,
    timed_out INTEGER NOT NULL,
    duration_seconds REAL
) WITHOUT ROWID;
CREATE INDEX execs_by_sandbox ON execs (sandbox_id);
CREATE INDEX execs_by_end ON execs (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE leases (
    lease_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    pid INTEGER,
    start_ticks INTEGER,
    boot_id TEXT,
    owner TEXT
) WITHOUT ROWID;
CREATE TABLE api_keys (
    hash TEXT PRIMARY KEY,
    created_at REAL NOT NULL
) WITHOUT ROWID;
"""

MIGRATIONS = {
    1: "ALTER TABLE sandboxes ADD COLUMN let_go INTEGER NOT NULL DEFAULT 0;",
    2: "ALTER TABLE sandboxes ADD COLUMN ports TEXT NOT NULL DEFAULT '{}';",
    3: """ALTER TABLE sandboxes ADD COLUMN egress TEXT NOT NULL DEFAULT '"none"';""",
    4: """
        ALTER TABLE sandboxes ADD COLUMN owner TEXT; UPDATE sandboxes SET owner = '*';
        ALTER TABLE leases ADD COLUMN owner TEXT; UPDATE leases SET owner = '*';
    """,
    5: "ALTER TABLE sandboxes ADD COLUMN unkept_promises TEXT NOT NULL DEFAULT '[]';",
    6: "ALTER TABLE sandboxes ADD COLUMN for_one_run INTEGER NOT NULL DEFAULT 0;",
    7: """
    ALTER TABLE sandboxes ADD COLUMN place_id TEXT;
    ALTER TABLE sandboxes ADD COLUMN expires_at REAL;
    """,
    8: """
    ALTER TABLE sandboxes ADD COLUMN lies_over TEXT;
    ALTER TABLE sandboxes ADD COLUMN moving TEXT;
    """,
    9: "ALTER TABLE sandboxes ADD COLUMN image_id TEXT; ALTER TABLE sandboxes ADD COLUMN first_image_id TEXT;",
}
"""From each older version to the next."""
