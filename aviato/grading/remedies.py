"""What can be done about a module that is not in a sandbox, said wherever an import of one has failed."""

from __future__ import annotations

import re

PACKAGES = "packages get into a sandbox by packages=, by pip or in its image: 'Packages inside' in the guide to sandboxes"
_MISSING = re.compile(r"\bModuleNotFoundError: No module named '")


def with_remedy(message: str) -> str:
    """A message, and what can be done if it says that a module is missing."""
    return f"{message}; {PACKAGES}" if _MISSING.search(message) and not message.endswith(PACKAGES) else message
