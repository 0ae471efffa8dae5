"""Other tools that aviato speaks to; each module needs the package that it is named after only when it is used.

A module whose classes derive from a framework's is for that framework's users to import; it names the extra that brings it.
"""

from __future__ import annotations


def missing(package: str, extra: str, error: ImportError) -> ImportError:
    """What to raise where a framework cannot be imported.

    Args:
        package: as it is imported.
        extra: of aviato, that installs it.
        error: why it could not.
    """
    how = f"pip install 'aviato[{extra}]'"
    return ImportError(f"{package} cannot be imported ({error}); install it with {how}", name=error.name)
