"""The client's logger: what it says is shown where a program asks for it, and nowhere else.

At INFO the start of the embedded server, the start and the end of each sandbox, and what is tried again; at DEBUG each command.
No value of a variable and no secret is in it.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("aviato")
logger.addHandler(logging.NullHandler())
