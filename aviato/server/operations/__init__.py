"""What can be asked of a server, and what is answered, whatever carries it. One table says all that is true of it."""

from aviato.server.operations import execs, files, images, leases, pools, ports, run_code, sandboxes, snapshots, system
from aviato.server.operations.table import Operation

OPERATIONS: tuple[Operation, ...] = (
    *system.OPERATIONS,
    *sandboxes.OPERATIONS,
    *execs.OPERATIONS,
    *files.OPERATIONS,
    *ports.OPERATIONS,
    *leases.OPERATIONS,
    *images.OPERATIONS,
    *snapshots.OPERATIONS,
    *pools.OPERATIONS,
    *run_code.OPERATIONS,
)
__all__ = ["OPERATIONS", "Operation"]
