"""The client's logger. A program that does not ask hears what it must not miss, by Python's own default: warnings and errors.

At INFO the start of the embedded server, the start and the end of each sandbox, and what is tried again; at DEBUG each command.
No value of a variable and no secret is in it.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("aviato")
