"""`python -m tests.vm [--user NAME] COMMAND…`: run a command in the virtual machine, in this directory.

It has Debian's kernel, control groups of version 2 that nobody else uses, and this machine's files: it sees them as they are,
and what it writes is lost. `--fetch` gets the kernel by apt, into a folder of the user's cache; `apt-get install
qemu-system-x86 busybox-static` the rest.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.vm import kernel, machine

KEPT = ("PYTHONPATH", "TERM", "LANG", "CI")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__, allow_abbrev=False)
    parser.add_argument("--fetch", action="store_true", help="have the kernel, and no more")
    parser.add_argument("--user", help="who runs the command, in a control group of the user's own; by default root")
    parser.add_argument("--systemd", action="store_true", help="have it start the machine, and delegate the user's group")
    parser.add_argument("--timeout", type=float, default=600, help="seconds until the machine is switched off")
    parser.add_argument("--memory", type=int, default=3072, help="MiB")
    parser.add_argument("--append", default="", help="more arguments of the kernel")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.fetch:
        print(kernel.fetch())
        return 0
    lacking = machine.missing()
    if lacking is not None:
        print(lacking, file=sys.stderr)
        return 125
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    return machine.run(
        given.command or ["sh", "-c", "uname -a; cat /proc/self/cgroup; ls /sys/fs/cgroup"],
        directory=os.getcwd(),
        environment=environment,
        user=given.user,
        timeout_seconds=given.timeout,
        memory_mib=given.memory,
        kernel_arguments=given.append,
        systemd=given.systemd,
    )


if __name__ == "__main__":
    sys.exit(main())
