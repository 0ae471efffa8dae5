"""Ids of their own for sandboxes of an ordinary user: who has a range of them can start the server in a namespace with it."""

from __future__ import annotations

import os
import pwd
import shutil

RANGES = ("/etc/subuid", "/etc/subgid")
PROGRAMS = ("newuidmap", "newgidmap")
FIRST_ID = 100_000
IDS = 65_536
PACKAGE = "sudo apt install uidmap"
START = 'unshare --map-root-user --map-auto --mount aviato serve --state-dir "/var/tmp/aviato-$(id -u)-ids"'
"""util-linux 2.38 or newer. Mounts of its own, since packages and interpreters of the user's are copied from them."""


def repair() -> str:
    """The line after which sandboxes have ids of their own: what this user lacks for it, and how the server is started."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    missing = [] if all(map(shutil.which, PROGRAMS)) else [PACKAGE]
    taken = [ranges_of(path) for path in RANGES]
    if not all(any(name in (user, str(os.getuid())) and count > 1 for name, _, count in ranges) for ranges in taken):
        first = max([FIRST_ID, *(first + count for ranges in taken for _, first, count in ranges)])
        block = f"{first}-{first + IDS - 1}"
        missing.append(f"sudo usermod --add-subuids {block} --add-subgids {block} {user}")
    return " && ".join([*missing, START])


def ranges_of(path: str) -> list[tuple[str, int, int]]:
    """Who has which ids: a name, the first and how many."""
    try:
        with open(path) as file:
            fields = [line.strip().split(":") for line in file]
    except OSError:
        return []
    whole = (one for one in fields if len(one) == 3 and one[1].isdecimal() and one[2].isdecimal())
    return [(name, int(first), int(count)) for name, first, count in whole]
