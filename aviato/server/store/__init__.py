"""What a server remembers: sandboxes, commands, leases and key hashes, in one sqlite file."""

from aviato.server.store.database import Store
from aviato.server.store.records import ExecRecord, LeaseRecord, SandboxRecord

__all__ = ["ExecRecord", "LeaseRecord", "SandboxRecord", "Store"]
