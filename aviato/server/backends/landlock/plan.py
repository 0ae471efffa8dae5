"""What confines a sandbox without namespaces, as data. `init/src/confine.rs` executes it; nothing here does I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.server.backends.landlock.rules import supervisor_rules
from aviato.server.backends.local import landlock_calls as calls
from aviato.server.backends.local.bounds import LIMIT_FILE_BYTES
from aviato.server.backends.local.host_tree import (
    CONFIGURATION,
    configuration,
    own_prefix,
    own_tools,
    packages_directory,
    search_path,
)
from aviato.server.backends.local.plan import BASE_ENVIRONMENT, ONE_ID, HostFacts, Step
from aviato.server.backends.local.rules import families

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.images.interpreters import Interpreter

ROOT = "root"
"""The sandbox's own folder: all that it can write to."""
LINKS = "bin"
"""Beside it, `python` and its like."""
WORKSPACE, HOME, TEMPORARY = "workspace", "home", "tmp"

READ = calls.EXECUTE | calls.READ_FILE | calls.READ_DIR
LOOK = calls.READ_FILE | calls.READ_DIR
DEVICE = calls.READ_FILE | calls.WRITE_FILE | calls.TRUNCATE | calls.IOCTL_DEV
OWN = (1 << 13) - 1 & ~(calls.MAKE_CHAR | calls.MAKE_BLOCK) | calls.REFER | calls.TRUNCATE

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = ("group", "hosts", "localtime", "nsswitch.conf", "passwd", "resolv.conf", "timezone", "gitconfig")
"""What sandboxes read of /etc besides `HostFacts.etc_shared`: there is no root in which they could have their own."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts")
LOOKED_AT = ("/proc", "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/hugepages")
BADNESS = 500
"""Added for the kernel's choice of whom to kill, in thousandths of the machine's memory."""
INTERPRETER = ("bin", "lib", "lib64", "libexec", "include", "share", "ssl")
"""Parts of an interpreter's prefix: the prefix itself may be somebody's home."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What one sandbox is to be.

    Attributes:
        place: its directory on the machine.
        abi: the version of Landlock.
        facts: of the machine.
        interpreter: prefix, executable and minor version of the Python that `python` means.
        packages: a directory of packages for that Python, as of the local backend's plan.
        ids: the uid and gid of its own; None leaves it the server's.
        processes: how many may live at once; None where the kernel cannot tell a sandbox's from others.
        processors: those that its commands run on; empty: all.
        asks: see `supervisor_rules`.
    """

    place: str
    abi: int
    facts: HostFacts = field(default_factory=HostFacts)
    interpreter: tuple[str, str, int] | None = None
    packages: tuple[str, int, int] | None = None
    ids: tuple[int, int] | None = None
    processes: int | None = None
    processors: tuple[int, ...] = ()
    asks: bool = True


def make_plan(options: PlanOptions) -> tuple[Step, ...]:
    """The steps that the child takes, in order, from its fork to being process 1."""
    limits = {"nofile": options.facts.open_files, "fsize": LIMIT_FILE_BYTES, "core": 0}
    if options.processes is not None:
        limits["nproc"] = 2 * options.processes + 1
    return (
        Step("place", (options.place,), "go to the sandbox's directory"),
        Step("session", (), "no group of processes, and so no signal to one, has it together with anything outside"),
        *_links(options),
        Step("rules", (options.abi, access(options)), "what Landlock will leave open, while every path can be seen"),
        *_packages(options),
        Step("offer", (BADNESS,), "where the machine runs out of memory, sandboxes go before servers and trainers"),
        *([Step("ids", options.ids, "a uid that nothing else has, and with it no capability")] if options.ids else []),
        Step("directories", (tuple((f"{ROOT}/{name}", 0o755) for name in (WORKSPACE, HOME, TEMPORARY)),), "its own folders"),
        Step("keep_layer", (ROOT,), "a descriptor by which process 1 counts what is in them"),
        Step("limits", (tuple(limits.items()),), "each command has a subreaper, which is a process too"),
        *([Step("processors", (options.processors,), "as many as its limit")] if options.processors else []),
        Step("settle", (0o022,), "no new privileges, umask, undumpable"),
        Step("restrict", (), "from here on Landlock refuses all other files, TCP, signals to the outside and looking into it"),
        Step(
            "asking_filter" if options.asks else "filter",
            (families(supervisor_rules(options.abi)),),
            "system calls that nobody makes from here on, process 1 included",
        ),
    )


def access(options: PlanOptions) -> tuple[tuple[str, int], ...]:
    """What is left open of the machine's files: paths with the rights to them. Those that are not there are left out."""
    files, _, _ = calls.handled(options.abi)
    found = [(f"{options.place}/{ROOT}", OWN), (f"{options.place}/{LINKS}", READ)]
    if options.packages is not None:
        found += [(f"{options.place}/{CONFIGURATION}", READ), (f"{options.place}/lib", READ)]
    found += [(path, READ) for path in PROGRAMS]
    found += [(f"/etc/{name}", READ) for name in etc_names(options.facts)]
    found += [(path, LOOK) for path in LOOKED_AT]
    found += [(path, DEVICE | LOOK) for path in DEVICES]
    if options.interpreter is not None and own_prefix(options.interpreter[0]):
        found += [(f"{options.interpreter[0]}/{name}", READ) for name in INTERPRETER]
    return tuple((path, rights & files) for path, rights in found)


def readable(interpreters: Iterable[Interpreter]) -> list[str]:
    """The directories that sandboxes may read, whichever of these interpreters they have."""
    own = [f"{one.prefix}/{name}" for one in interpreters if own_prefix(one.prefix) for name in INTERPRETER]
    return [*PROGRAMS, "/etc", *LOOKED_AT, "/dev", *own]


def etc_names(facts: HostFacts) -> tuple[str, ...]:
    """What of /etc is left open."""
    return (*ETC, *(name for name, _ in facts.etc_shared))


def shared_paths(facts: HostFacts, interpreters: Iterable[Interpreter]) -> list[str]:
    """As `readable`, but only those names of /etc and /dev that are left open."""
    outside = [path for path in readable(interpreters) if path not in ("/etc", "/dev")]
    return [*outside, *(f"/etc/{name}" for name in etc_names(facts)), *DEVICES]


def environment(place: str, prefix: str | None) -> dict[str, str]:
    """What every command finds set, before what the sandbox and the command add; `prefix` is that of the interpreter."""
    root = f"{place}/{ROOT}"
    return {
        **BASE_ENVIRONMENT,
        # Looking for leaks is attaching to one's own parent by ptrace; where that is refused every such program fails.
        "LSAN_OPTIONS": "detect_leaks=0",
        **ONE_ID,
        "PATH": search_path(f"{place}/{LINKS}", prefix, f"{PATH}:{root}/{HOME}/.local/bin"),
        "HOME": f"{root}/{HOME}",
        "TMPDIR": f"{root}/{TEMPORARY}",
        "NPM_CONFIG_PREFIX": f"{root}/{HOME}/.local",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
    }


def _packages(options: PlanOptions) -> list[Step]:
    """What makes an environment of the interpreter's links: where the packages are, code inside is led by a link."""
    if options.packages is None:
        return []
    files, _, _ = calls.handled(options.abi)
    why = "the packages, if they are still the directory that was looked at"
    return [Step("rule_of_directory", (*options.packages, READ & files), why)]


def _links(options: PlanOptions) -> list[Step]:
    if options.interpreter is None:
        return []
    _, executable, minor = options.interpreter
    links = tuple((f"{LINKS}/{name}", executable) for name in ("python", "python3", f"python3.{minor}"))
    own_links, own_files = own_tools(
        f"{options.place}/{LINKS}", options.facts, options.interpreter, options.packages is not None
    )
    return [
        Step("directories", (((LINKS, 0o755),),), "for the links of the interpreter, where nobody inside can write"),
        Step("links", ((*links, *own_links),), "`python` and its like"),
        *([Step("files", (tuple(own_files),), "its tools, in place of another one's")] if own_files else []),
        *(_environment(options.packages[0], executable, minor) if options.packages is not None else []),
    ]


def _environment(packages: str, executable: str, minor: int) -> list[Step]:
    site = packages_directory(minor, ".")[2:]
    library = os.path.dirname(site)
    return [
        Step("directories", (((os.path.dirname(library), 0o755), (library, 0o755)),), "for the way to the packages"),
        Step("links", (((site, packages),),), "and that way"),
        Step("files", (((CONFIGURATION, configuration(executable, minor)),),), "what has the interpreter look there"),
    ]
