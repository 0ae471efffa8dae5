"""Routes: HTTP in, a service call, HTTP out. One declarative table says all that is true of them."""

from aviato.server.routes import execs, files, leases, ports, run_code, run_stream, sandboxes, system
from aviato.server.routes.table import Route

ROUTES: tuple[Route, ...] = (
    *system.ROUTES,
    *sandboxes.ROUTES,
    *execs.ROUTES,
    *run_stream.ROUTES,
    *files.ROUTES,
    *ports.ROUTES,
    *leases.ROUTES,
    *run_code.ROUTES,
)
"""Every route but that of the description made from them."""

__all__ = ["ROUTES", "Route"]
