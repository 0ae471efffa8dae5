"""A copy in memory of the program that the zygote runs, where code inside could change the file itself.

Whatever process 1 starts can run what process 1 runs, by `#!/proc/self/exe`, and then has it as a file of the machine's,
outside of the sandbox's root. Where the uid of sandboxes owns it, as an ordinary user his own installation, its mode could be
changed, and after its last process has ended its bytes.
"""

from __future__ import annotations

import fcntl
import os
import shutil

MFD_EXEC = 0x10
"""From Linux 6.3 on it has to be said that memory is to be run."""
F_SEAL_EXEC = 0x20
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MODE = 0o555


def copy_of(executable: str) -> int | None:
    """A descriptor of the copy, which takes as much memory as the file has bytes.

    Args:
        executable: its path.

    Returns:
        None where no sandbox could change the file, and where memory cannot be had or run.
    """
    try:
        if os.geteuid() == 0 or os.stat(executable).st_uid != os.geteuid():
            return None
        writable = _memory(os.path.basename(executable))
        try:
            with open(executable, "rb") as source, open(writable, "wb", closefd=False) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.fchmod(writable, MODE)
            _seal(writable)
            # To whoever has a program open for writing the kernel does not run it.
            return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(writable)
    except OSError:
        return None


def _memory(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | MFD_EXEC)
    except OSError:
        return os.memfd_create(name, flags)


def _seal(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | F_SEAL_EXEC)
    except OSError:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
