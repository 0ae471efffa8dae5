"""What the embedded server and the client that starts it agree on."""

from __future__ import annotations

REFUSAL = "cannot start: "
"""Begins the line of the server's log, in one sentence, that says why it ended before it served anybody."""
