"""The version of the client wire. A server serves its own and the one before."""

from __future__ import annotations

WIRE_VERSION = 1
OLDEST_WIRE_VERSION = 1
WIRE_HEADER = "Aviato-Wire"
"""Request header with the client's version, and response header with the server's."""

KEY_HEADER = "Idempotency-Key"
"""Request header of calls that write, remove or signal: a repeat with the same key has no further effect."""

PID_HEADER = "Aviato-Server-Pid"
"""Response header that lets a refused client say which process to end."""
