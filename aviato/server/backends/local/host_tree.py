"""The names that `host` sandboxes begin with. Pure."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.server.backends.local import accounts, hardware, own_local, seen, tools, way_out

if TYPE_CHECKING:
    from aviato.server.backends.local.plan import HostFacts

LINKS_DIRECTORY = "/.aviato/bin"
"""Holds `python`, `python3` and `python3.N`, and what else would mean another interpreter's tools. A directory of its own,
first on PATH, because those of PATH are the machine's: /usr is read only, and a link in it would be the machine's too."""


ENVIRONMENT = os.path.dirname(LINKS_DIRECTORY)
"""Where the sandbox has packages of the caller's it is a virtual environment of that interpreter, one that sees those of the
machine too: they are found by whatever way the interpreter is started, and no variable, home or `pip install` changes that."""
CONFIGURATION = "pyvenv.cfg"
TOOL = ".tool"
"""Beside `python`: what the names of its tools lead to."""


USUAL = (
    *("/home", "/opt", "/mnt", "/srv", "/media", "/boot", "/var/cache", "/var/lib", "/var/local", "/var/log", "/var/mail"),
    *("/var/opt", "/var/spool", "/var/lock", "/var/lib/misc", "/var/lib/apt", "/var/lib/apt/lists", "/var/log/apt"),
    *("/var/cache/apt", "/var/cache/apt/archives", "/var/lib/apt/lists/partial", "/var/cache/apt/archives/partial"),
    *(f"/var/lib/dpkg{name}" for name in ("", "/info", "/updates", "/triggers", "/alternatives", "/parts")),
)
"""Directories that programs write to and that every Linux has. They begin empty: what the machine has there is its data."""

OWN = "/.aviato/own"
"""What is the sandbox's own and no part of its layer, in memory: links of /etc lead there, where /etc is shared."""
HOSTS = f"{OWN}/hosts"
"""What `/etc/hosts` leads to then."""


COPIES = "/etc/.machine"
"""Where what is shared of the machine's /etc and /sys is mounted in a sandbox that lies on no base root; links lead there."""


@dataclass(frozen=True, eq=False)
class BaseRoot:
    """What every `host` sandbox begins with: directories (parents first) with modes, links with targets, files with contents.

    `copies` are paths of files and directories that are like the machine's, `nodes` devices with their numbers.
    """

    directories: tuple[tuple[str, int], ...]
    links: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...] = ()
    copies: tuple[str, ...] = ()
    nodes: tuple[tuple[str, int, int], ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """What stands for it: it has thousands of names, and is asked for at each create."""
        content = self.directories, self.links, self.files, self.copies, self.nodes
        return hashlib.sha256(repr(content).encode("utf-8", "surrogateescape")).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseRoot) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def base_root(
    facts: HostFacts, interpreter: tuple[str, str, int] | None, packages: bool = False, proxy_port: int | None = None
) -> BaseRoot:
    """What `PlanOptions.base_root` has to hold.

    Args:
        facts: of the machine.
        interpreter: as of `PlanOptions`.
        packages: whether there is a place for packages of the caller's.
        proxy_port: where the way to the network is, for what does not read it from variables.
    """
    directories = [("/usr", 0o755), ("/etc", 0o755), ("/proc", 0o755), ("/dev", 0o755), ("/sys", 0o755), ("/run", 0o755)]
    directories += [("/tmp", 0o1777), ("/var", 0o755), ("/var/tmp", 0o1777), ("/root", 0o700), ("/workspace", 0o755)]
    directories += [(path, 0o755) for path in (accounts.CONVERSATIONS, *USUAL)]
    directories += [(os.path.dirname(OWN), 0o755), (OWN, 0o755)]
    directories += [(f"/{name}", 0o755) for name in facts.directories]
    directories += [(path, 0o755) for path in hardware.directories(facts.hardware)]
    directories += [(os.path.dirname(seen.GROUPS), 0o755), (seen.GROUPS, 0o755)]
    links = [*((f"/{name}", target) for name, target in facts.links), ("/var/run", "/run")]
    files = [*etc_files(has_bash=facts.has_bash), *facts.hardware]
    if proxy_port is not None:
        files += way_out.jvm_settings(facts.jvm_networks, proxy_port)
        directories += [(os.path.dirname(path), 0o755) for path, _ in facts.jvm_networks]
    if interpreter is not None:
        prefix, executable, minor = interpreter
        directories += [(LINKS_DIRECTORY, 0o755)]
        links += [(f"{LINKS_DIRECTORY}/{name}", executable) for name in ("python", "python3", f"python3.{minor}")]
        own_links, own_files = own_tools(LINKS_DIRECTORY, facts, interpreter, packages)
        links, files = [*links, *own_links], [*files, *own_files]
        if own_prefix(prefix):
            made = {path for path, _ in directories}
            ways = prefix.split("/")[1:]
            above = ("/" + "/".join(ways[: depth + 1]) for depth in range(len(ways)))
            directories += [(path, 0o755) for path in above if path not in made]
        if packages:
            made_for = packages_directory(minor)
            directories += [(os.path.dirname(os.path.dirname(made_for)), 0o755), (os.path.dirname(made_for), 0o755)]
            directories += [(made_for, 0o755)]
            files += [(f"{ENVIRONMENT}/{CONFIGURATION}", configuration(executable, minor))]
    links += [("/etc/hosts", HOSTS), *local_time(facts)]
    programs: list[str] = []
    if facts.local is not None:
        directories += [(path, 0o755) for path in (os.path.dirname(own_local.MACHINES), own_local.MACHINES)]
        directories += [(path, 0o755) for path in facts.local.directories]
        links, programs = [*links, *facts.local.links], facts.local.copies
    copied = (*shared_copies(facts), *facts.records, *programs)
    return BaseRoot(tuple(dict.fromkeys(directories)), tuple(links), tuple(files), copied)


def shared_copies(facts: HostFacts) -> tuple[str, ...]:
    """What is shared of the machine's /etc, by its paths."""
    return tuple(f"/etc/{name}" for name, _ in facts.etc_shared)


def copies(facts: HostFacts) -> BaseRoot:
    """What a sandbox that lies on no base root has a mount of."""
    of_hardware = ((path, 0o755) for path in hardware.directories(facts.hardware))
    return BaseRoot((("/etc", 0o755), ("/sys", 0o755), *of_hardware), (), facts.hardware, shared_copies(facts))


def links_to_copies(facts: HostFacts) -> list[tuple[str, str]]:
    """By which those are found."""
    paths = (*shared_copies(facts), *(path for path, _ in facts.hardware))
    tops = dict.fromkeys("/".join(path.split("/")[:3]) for path in paths)
    return [(top, COPIES + top) for top in tops]


def own_tools(
    directory: str, facts: HostFacts, interpreter: tuple[str, str, int], packages: bool
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Links and files by which the tools of an interpreter are its own.

    Args:
        directory: that has its `python`.
        facts: of the machine.
        interpreter: as of `PlanOptions`.
        packages: whether there are packages of the caller's, which the tools have to see.
    """
    prefix, executable, minor = interpreter
    strange = dict(facts.strange_tools).get(executable, ())
    names = [name for name in tools.names(minor) if name in strange or (packages and name in tools.installers(minor))]
    if not names:
        return [], []
    return [(f"{directory}/{name}", TOOL) for name in names], [(f"{directory}/{TOOL}", tools.script(directory, prefix, minor))]


def packages_directory(minor: int, environment: str = ENVIRONMENT) -> str:
    """Where the packages of a virtual environment are."""
    return f"{environment}/lib/python3.{minor}/site-packages"


def configuration(executable: str, minor: int) -> str:
    """What makes an environment of a directory that has links to an interpreter in its `bin`."""
    return f"home = {os.path.dirname(executable)}\ninclude-system-site-packages = true\nversion = 3.{minor}\n"


DEVICE_NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""Character devices that do no harm, with major and minor numbers, which are the same on every Linux."""
DEVICE_LINKS = (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"), ("ptmx", "pts/ptmx"))
DEVICE_DIRECTORIES = ("pts", "shm")


def devices() -> BaseRoot:
    """What /dev has, but for what is mounted on its directories: one for all sandboxes, where the server can make devices."""
    return BaseRoot(
        tuple((f"/{name}", 0o755) for name in DEVICE_DIRECTORIES),
        tuple((f"/{name}", target) for name, target in DEVICE_LINKS),
        nodes=tuple((f"/{name}", major, minor) for name, (major, minor) in DEVICE_NUMBERS.items()),
    )


def local_time(facts: HostFacts) -> list[tuple[str, str]]:
    """The link that says which time zone it is, where there are any."""
    return [] if facts.utc is None else [("/etc/localtime", facts.utc)]


def search_path(directory: str, prefix: str | None, path: str) -> str:
    """PATH, by which an interpreter is found first, and then what was installed for it.

    Args:
        directory: that has its `python`.
        prefix: of the interpreter; None: there is none.
        path: for all else.
    """
    if prefix is None:
        return path
    return ":".join([directory, *([f"{prefix}/bin"] if own_prefix(prefix) else []), path])


def own_prefix(prefix: str) -> bool:
    """Whether an interpreter lies outside /usr and has to be brought in."""
    return prefix != "/usr" and not prefix.startswith("/usr/")


def hosts(hostname: str) -> str:
    """The content of /etc/hosts."""
    return f"127.0.0.1 localhost localhost.localdomain\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {hostname}\n"


def etc_files(*, has_bash: bool) -> list[tuple[str, str]]:
    """What programs look up in /etc, beside `hosts`.

    Args:
        has_bash: see `accounts.files`.
    """
    return [
        *accounts.files(has_bash=has_bash),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
        ("/etc/resolv.conf", ""),
    ]
