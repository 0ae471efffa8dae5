"""Ids of their own for sandboxes of an ordinary user: who has a range of them can start the server in a namespace with it."""

from __future__ import annotations

import shutil

from aviato.server.backends.local import subordinate

FIRST_ID = 100_000
PACKAGE = "sudo apt install uidmap"
START = 'unshare --map-root-user --map-auto --mount aviato serve --state-dir "/var/tmp/aviato-$(id -u)-ids"'
"""util-linux 2.38 or newer. Mounts of its own, since packages and interpreters of the user's are copied from them."""


def repair() -> str:
    """The line after which sandboxes have ids of their own: what this user lacks for it, and how the server is started."""
    return " && ".join([*lacking(), START])


def lacking() -> list[str]:
    """Commands after which this user has ids that it may give out; none where it has."""
    commands = [] if all(map(shutil.which, subordinate.PROGRAMS)) else [PACKAGE]
    taken = [subordinate.ranges_in(path) for path in subordinate.FILES]
    names = subordinate.names()
    if not all(any(name in names and count > 1 for name, _, count in ranges) for ranges in taken):
        first = max([FIRST_ID, *(first + count for ranges in taken for _, first, count in ranges)])
        block = f"{first}-{first + subordinate.IDS - 1}"
        commands.append(f"sudo usermod --add-subuids {block} --add-subgids {block} {names[0]}")
    return commands
