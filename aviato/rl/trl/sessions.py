"""The session of reward functions and environments that were given none: one a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.api.session import Session

if TYPE_CHECKING:
    from aviato.calls.sandbox_config import SandboxOptions

_shared: Session | None = None


def shared_session() -> Session:
    """Made at its first use, closed with the process. A forked child that uses it owns what it makes itself."""
    global _shared
    if _shared is None:
        _shared = Session()
    return _shared


def options_without_session(session: Session | None, options: SandboxOptions) -> SandboxOptions:
    """What is left of a session in another process: the defaults of its sandboxes."""
    if session is None or options.get("defaults") is not None:
        return options
    travelling: Any = {**options, "defaults": session._defaults}
    return travelling  # type: ignore[no-any-return]
