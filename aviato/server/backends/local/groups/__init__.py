"""Control groups: what the kernel keeps of a sandbox's memory, processor time and processes, and where some can be made.

Two versions, `v1` and `v2`. A sandbox's group has its commands and not its process 1, which must be able to look, and to kill,
when the group is full. How commands come into it differs: see `init/src/spawn.rs`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local.groups import v1, v2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

UNIFIED = v2.UNIFIED
REMOVE_SECONDS = 2.0


def find() -> tuple[tuple[str, str], ...]:
    """The controllers whose groups can be used here, each with the directory that sandboxes' groups lie in.

    In version 2 there is one directory for all, which is made, and named a second time as `UNIFIED`.
    """
    return v1.find() or v2.find()


def settings(
    sandbox_id: str,
    groups: Mapping[str, str],
    memory_bytes: int,
    cpu: float | None,
    cpu_request: float | None,
    processes: int | None,
) -> list[dict[str, Any]]:
    """What the zygote is to make for a sandbox: directories, and what is written to their files, in order.

    Args:
        sandbox_id: names them.
        groups: controllers, with the directories that they lie in.
        memory_bytes: the limit of all commands.
        cpu: the limit in processors, if there is one.
        cpu_request: how many it wants to be sure of.
        processes: how many commands may have, if that is limited.
    """
    if "memory" not in groups:
        return []
    make = v2.settings if UNIFIED in groups else v1.settings
    return make(f"aviato-{sandbox_id}", groups, memory_bytes, cpu, cpu_request, processes)


def shown(made: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Where below `/sys/fs/cgroup` a sandbox's programs look for each of its groups, with its directory.

    By controller in version 1, and in version 2 by the path that `/proc/self/cgroup` says.

    Args:
        made: what `settings` says.
    """
    return tuple((group["shown"], group["path"]) for group in made)


def remove(sandbox_id: str, directories: Iterable[str]) -> None:
    """Take a sandbox's groups away once its processes have been killed. Blocking.

    Args:
        sandbox_id: whose.
        directories: where they may lie.

    Raises:
        OSError: one of them resists.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    for directory in directories:
        while True:
            try:
                os.rmdir(f"{directory}/aviato-{sandbox_id}")
            except OSError as error:
                # Only the last of its processes are waited for. What cannot be removed for another reason never will be.
                if error.errno != errno.EBUSY:
                    break
                if time.monotonic() > deadline:
                    raise
                with contextlib.suppress(OSError):
                    v2.kill(f"{directory}/aviato-{sandbox_id}")
                time.sleep(0.01)
            else:
                break


def remember(record: Path, groups: Mapping[str, str]) -> list[str]:
    """Where groups of this server's sandboxes may lie: here, and wherever an earlier server of the same folder was.

    Args:
        record: the file that keeps it.
        groups: controllers, with the directories that new ones lie in.
    """
    known = record.read_text().splitlines() if record.exists() else []
    missing = [directory for directory in dict.fromkeys(groups.values()) if directory not in known]
    if missing:
        written = record.with_suffix(".new")
        written.touch(0o600)
        written.write_text("".join(f"{directory}\n" for directory in [*known, *missing]))
        written.replace(record)
    return [*known, *missing]
