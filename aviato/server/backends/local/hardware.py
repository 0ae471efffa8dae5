"""What of the machine's /sys `host` sandboxes see: how many processors there are and how memory is laid out, and no identity.

`lscpu`, JVMs, numerical libraries and allocators read it to choose how many threads, which code and which pages they use. It is
text that hardly ever changes, so sandboxes have it as files of theirs: nothing of the kernel's file system is inside. Not there
are names, serial and inventory numbers, devices, networks and firmware.
"""

from __future__ import annotations

import glob
import os
import stat
from pathlib import PurePosixPath

ROOT = "/sys"
_CPU, _NODE, _MEMORY, _PAGES = "devices/system/cpu", "devices/system/node", "kernel/mm", "kernel/mm/transparent_hugepage"
_ONE_CPU, _ONE_NODE = f"{_CPU}/cpu[0-9]*", f"{_NODE}/node[0-9]*"
PATTERNS = (
    *(f"{_CPU}/{name}" for name in ("possible", "present", "online", "offline", "kernel_max", "isolated")),
    *(f"{_CPU}/{name}" for name in ("smt/*", "vulnerabilities/*")),
    *(f"{_ONE_CPU}/{name}" for name in ("online", "cpu_capacity", "topology/*", "cache/index[0-9]*/*")),
    *(f"{_ONE_CPU}/cpufreq/{name}" for name in ("cpuinfo_m*_freq", "base_frequency", "scaling_m*_freq", "scaling_driver")),
    *(f"{_NODE}/{name}" for name in ("possible", "online", "has_*")),
    *(f"{_ONE_NODE}/{name}" for name in ("cpulist", "cpumap", "distance")),
    *(f"{_PAGES}/{name}" for name in ("enabled", "defrag", "shmem_enabled", "use_zero_page", "hpage_pmd_size")),
    f"{_MEMORY}/hugepages/hugepages-*/nr_hugepages",
)
"""Below /sys, as those of shells."""
NEVER = frozenset({"ppin", "uevent"})
"""The number of a processor that no other has."""
MOST_BYTES = 16 << 10
"""Of one file."""
MOST_PROCESSORS = 64
"""Of so many their own directories are there: a machine with 512 has 30,000 of these files."""


def find(root: str = ROOT) -> tuple[tuple[str, str], ...]:
    """The files, parents first, with what is in them.

    Args:
        root: where the machine has them.

    Returns:
        Paths as they are inside, below /sys.
    """
    paths = [path for pattern in PATTERNS for path in glob.glob(f"{root}/{pattern}")]
    found = {path: content for path in sorted(set(paths)) if (content := _content(root, path)) is not None}
    return tuple((ROOT + path.removeprefix(root), content) for path, content in found.items())


def directories(files: tuple[tuple[str, str], ...]) -> list[str]:
    """Those that they lie in, parents first, but for /sys itself."""
    return sorted({str(one) for path, _ in files for one in PurePosixPath(path).parents} - {"/", ROOT})


def _content(root: str, path: str) -> str | None:
    """What everybody may read of one of them."""
    number = path.removeprefix(f"{root}/{_CPU}/cpu").split("/")[0]
    if os.path.basename(path) in NEVER or (number.isdecimal() and int(number) >= MOST_PROCESSORS):
        return None
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
            return None
        with open(path, "rb") as file:
            return file.read(MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return None  # A cache that has no such property says so when it is read.
