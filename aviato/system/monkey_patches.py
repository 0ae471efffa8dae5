"""Programs whose standard library was replaced by greenlets: the client needs real threads, and sockets to wait for."""

from __future__ import annotations

import sys

from aviato.exceptions import SandboxUnavailableError

NEEDED = ("threading", "select", "socket")
"""Modules that must be as Python has them. A patched `threading` gives greenlets, whose loop nobody runs while somebody waits
for it; a patched `select` lacks epoll; patched sockets belong to the hub of the thread that made them."""
PATCHERS = frozenset({"gevent.monkey", "eventlet.patcher"})
"""Modules without which nothing is patched."""
_EVENTLET_NAMES = {"threading": "thread", "select": "select", "socket": "socket"}


def check() -> None:
    """Refuse to work in a program that gevent or eventlet has patched.

    Raises:
        SandboxUnavailableError: it has; the message says what to do.
    """
    modules = sys.modules
    if "gevent.monkey" in modules:
        is_patched = modules["gevent.monkey"].is_module_patched
        _refuse("gevent.monkey.patch_all()", [name for name in NEEDED if is_patched(name)])
    if "eventlet.patcher" in modules:
        is_patched = modules["eventlet.patcher"].is_monkey_patched
        _refuse("eventlet.monkey_patch()", [name for name in NEEDED if is_patched(_EVENTLET_NAMES[name])])


def _refuse(by: str, patched: list[str]) -> None:
    if not patched:
        return
    raise SandboxUnavailableError(
        f"aviato does not work in a process in which {by} has replaced {', '.join(patched)}: its calls would wait for ever. "
        "Use sandboxes in a process of their own, as subprocess starts one, or leave the "
        "patch out of this one",
        reason="configuration",
        retryable=False,
    )
