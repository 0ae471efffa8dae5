"""What confines a sandbox, as data: a pure function from options to an ordered list of steps.

`init/src/confine.rs` takes the steps, `aviato doctor --plan` prints them, tables test them. Nothing here does I/O.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.server.backends.local import bounds, own_local, rules, seen
from aviato.server.backends.local.host_tree import (
    COPIES,
    DEVICE_DIRECTORIES,
    DEVICE_LINKS,
    DEVICE_NUMBERS,
    HOSTS,
    LINKS_DIRECTORY,
    OWN,
    base_root,
    hosts,
    links_to_copies,
    local_time,
    own_prefix,
    packages_directory,
    search_path,
    shared_copies,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.images.interpreters import Interpreter

RO = ("rdonly", "nosuid", "nodev")
SAFE = ("nosuid", "nodev")

CAPABILITIES = {"SYS_ADMIN": 21, "SYS_PTRACE": 19}
"""What process 1 keeps for itself, in its own user namespace: to mark commands with UTS namespaces, and to read the marks."""
RIGHTS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""What being root means inside, for process 1 and for commands: with files and processes of the sandbox's own ids, whoever they
belong to. The kernel takes them from whoever becomes another user."""

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/root/.local/bin"
BASE_ENVIRONMENT = {
    "PATH": BASE_PATH,
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "LANG": "C.UTF-8",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}

ONE_ID = {"TAR_OPTIONS": "--no-same-owner"}
"""Where all files have to belong to one user, an archive's owners are left out."""

DEVICES = tuple(DEVICE_NUMBERS)
PROC_READ_ONLY = ("bus", "driver", "fs", "irq", "pressure", "sys", "sysrq-trigger")
"""With everything else that `HostFacts.proc_writable` names. Nobody has to write there; kernel modules add to these."""
PROC_HIDDEN_FILES = ("kcore", "keys", "latency_stats", "sched_debug", "timer_list")
PROC_HIDDEN_DIRECTORIES = ("acpi", "asound", "scsi")

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PACKAGES = "packages"
"""The name of their mount until it is put in."""
MOUNTED_DIRECTORY = "mounted"
HOSTS_FILE = "/etc/hosts"
OWN_NAMES = {HOSTS_FILE: HOSTS, "/etc/hostname": f"{OWN}/hostname"}
"""Of a sandbox of an image, what is its own in /etc: links, so that all its sandboxes can have the same ones."""
ROOT = "root"
"""The writable root of a sandbox that has no layers."""


class Step(NamedTuple):
    """One step: which operation of `init/src/confine.rs`, with which arguments, and why."""

    operation: str
    arguments: tuple[Any, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What a plan has to know of the machine; gathered by `probe`.

    Attributes:
        links: names in / that are links there, with their targets (`bin` → `usr/bin`).
        directories: directories in / beside /usr that programs of /usr need, on machines without a merged /usr.
        etc_shared: names below /etc that sandboxes see, each with whether it is a directory; see `configuration`.
        etc_left_out: those that programs may look for and do not find, with the reason.
        hardware: what they see of /sys: files, by their paths inside, and what is in them.
        local: what of the machine's /usr/local sandboxes have in their own, where that can be theirs.
        jvm_networks: what JVMs read about networks: files, by their paths, and what is in them.
        records: files of the machine's that say what is installed in /usr.
        proc: names in /proc.
        proc_writable: those of them that somebody can write to, or that hold what somebody can.
        strange_tools: by the executable of an interpreter, the names of tools that mean another one's, see `facts.strangers`.
        has_bash: whether there is a /bin/bash.
        utc: the time zone file that /etc/localtime will mean, or None.
        open_files: the hard limit of open files.
        file_bytes: the largest file that somebody may write: the server's own hard limit, where that is less than ours.
        processes: what the server's own hard limit leaves for the commands of all its user's sandboxes, or None.
        address_bytes: the server's hard limit of the memory that one process may map, or None.
        watches: what the commands of a sandbox may wait for by epoll; None: the count is its own.
        sockets: what the commands of a sandbox may have of what the machine has for all sockets, see `watch.COUNTS`.
        limit_processes: whether RLIMIT_NPROC counts per user namespace (Linux 5.14), or the user's other processes too.
        memory_bytes: of the machine, or of the control group that the server is in, if that has less.
        processors: how many the server may run on.
        swap: whether pages can go where they are not resident.
        groups: control groups that the server can make some below, by controller, see `groups.find`.
        devices: a directory with what `host_tree.devices` names, if the server could make one.
    """

    links: tuple[tuple[str, str], ...] = (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("sbin", "usr/sbin"))
    directories: tuple[str, ...] = ()
    etc_shared: tuple[tuple[str, bool], ...] = ()
    etc_left_out: tuple[tuple[str, str], ...] = ()
    hardware: tuple[tuple[str, str], ...] = ()
    local: own_local.Local | None = None
    jvm_networks: tuple[tuple[str, str], ...] = ()
    records: tuple[str, ...] = ()
    proc: frozenset[str] = frozenset()
    proc_writable: frozenset[str] = frozenset()
    strange_tools: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_bash: bool = False
    utc: str | None = "/usr/share/zoneinfo/Etc/UTC"
    open_files: int = bounds.LIMIT_OPEN_FILES
    file_bytes: int = bounds.LIMIT_FILE_BYTES
    processes: int | None = None
    address_bytes: int | None = None
    watches: int | None = None
    sockets: tuple[tuple[str, int], ...] = ()
    limit_processes: bool = True
    memory_bytes: int = 16 << 30
    processors: int = 1
    swap: bool = False
    groups: tuple[tuple[str, str], ...] = ()
    devices: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What one sandbox is to be.

    Attributes:
        host_name: what the sandbox calls itself.
        place: its directory on the machine.
        facts: of the machine.
        interpreter: prefix, executable and minor version of the Python that `python` means; `host` images only.
        packages: of `host` images, a directory of packages for that Python: its path, and by which numbers of a file system
            and in it it is known.
        layers: root directories of an image, the uppermost first; without any it is `host`.
        above: of `host` images, root directories that lie over the base root, the uppermost first.
        working_dir: of an image.
        strange: of a `dir` image, see `ResolvedImage`.
        top: which of the layers says how the root itself is; None: it is as it is by itself.
        base root: of `host` images, a directory with `base root`'s names in it, to lie below their writable layer; None makes
            them anew in each sandbox, where the machine cannot put layers over one another.
        copies: of `host` images without a base root, a directory with what is shared of the machine's /etc and /sys.
        upper_in_memory: the place cannot carry an overlay's writable layer.
        merged: the root is that of an earlier sandbox, whose place and layers this one has, since nobody has changed them.
        lends: the root is sent to the zygote, so that a later sandbox can have it.
        root: whether the server is the real root; then what lies below arrives idmapped.
        mapped: its directory does so, too: what is in it has on the disk the ids that a store of images has.
        ids: how many users and groups there are inside, from 0 on.
        mounted: paths of the caller's own read-only files, with their sizes in bytes.
        processes: how many may live at once, process 1 not counted.
        memory_bytes: of all commands together.
        shared_bytes: of that, what shared memory can be.
        seen: what programs are to see of its limits; None: it was given none.
        groups: control groups that it will have and see, each with its place below `/sys/fs/cgroup` and its directory.
        disk_bytes: of the writable layer.
    """

    host_name: str
    place: str
    facts: HostFacts = field(default_factory=HostFacts)
    interpreter: tuple[str, str, int] | None = None
    packages: tuple[str, int, int] | None = None
    layers: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    working_dir: str | None = None
    strange: tuple[tuple[str, int], ...] = ()
    top: int | None = None
    base_root: str | None = None
    copies: str | None = None
    upper_in_memory: bool = False
    merged: bool = False
    lends: bool = False
    root: bool = False
    mapped: bool = False
    ids: int = 1
    mounted: tuple[tuple[str, int], ...] = ()
    processes: int = bounds.LIMIT_PROCESSES
    memory_bytes: int = bounds.LIMIT_MEMORY_BYTES
    shared_bytes: int = bounds.LIMIT_MEMORY_BYTES // 2
    seen: seen.Seen | None = None
    groups: tuple[tuple[str, str], ...] = ()
    disk_bytes: int = bounds.LIMIT_DISK_BYTES


def make_plan(options: PlanOptions) -> tuple[Step, ...]:
    """The steps that the child takes, in order, from its clone into new namespaces to being process 1."""
    return (
        *_sources(options),
        Step("identity", (), "wait until the zygote has mapped unprivileged ids, then be 0 inside"),
        *_own_place(options),
        Step("private_mounts", (), "no mount made from here on is seen outside, none made outside is seen here"),
        *_mounted_sources(options),
        *_root(options),
        Step("keep_layer", (_layer(options),), "a view of the writable layer alone, by which process 1 counts what is in it"),
        Step(
            "enter_root",
            (_mount_point(options),),
            "names are looked up in the sandbox's root from here on: links and `..` of an image end there",
        ),
        *(_image_tree(options) if options.layers else _host_tree(options)),
        *_kernel_trees(options),
        *_own_local(options),
        *_shared_parts(options),
        *_mounted(options),
        Step("pivot", (), "the sandbox's root is the uppermost mount; the machine's lies on it, to be let go"),
        Step("leave_old_root", (), "the machine's files are gone from here on"),
        *_closing(options),
    )


def below(options: PlanOptions) -> tuple[str, ...]:
    """What lies below the writable layer, the uppermost first."""
    return options.layers or (() if options.base_root is None else (*options.above, options.base_root))


def _in_memory(options: PlanOptions) -> bool:
    return bool(options.layers) and options.upper_in_memory


def _layer(options: PlanOptions) -> str:
    if not below(options):
        return ROOT
    return "layers/upper" if _in_memory(options) else "upper"


def _mount_point(options: PlanOptions) -> str:
    """Where its root is mounted: on its directory itself, seen from inside that. A name for it would be made and removed."""
    return f"../{os.path.basename(options.place)}" if below(options) else ROOT


def owned_directories(options: PlanOptions) -> list[str]:
    """What the zygote makes in the place and hands to the sandbox's id."""
    if options.merged:
        return []
    mounted = [MOUNTED_DIRECTORY] if options.mounted else []
    layers = [ROOT] if not below(options) else ["layers"] if _in_memory(options) else ["upper", "work"]
    return [*layers, *mounted]


def environment(prefix: str | None, local: str | None = None, ids: int = 1) -> dict[str, str]:
    """What every command finds set, before what the sandbox and the command add.

    Args:
        prefix: of the interpreter.
        local: where programs for everybody are installed, if that is not as `npm` has it: it takes the prefix of Node's own
            program, which is /usr.
        ids: as of `PlanOptions`.
    """
    own = {} if local is None else {"NPM_CONFIG_PREFIX": local}
    own |= ONE_ID if ids == 1 else {}
    return {**BASE_ENVIRONMENT, **own, "PATH": search_path(LINKS_DIRECTORY, prefix, BASE_PATH)}


def describe(steps: tuple[Step, ...]) -> list[str]:
    """A line a step, for people."""
    return [f"{step.operation} {' '.join(_short(argument) for argument in step.arguments)}".rstrip() for step in steps]


def _short(argument: Any) -> str:
    text = (
        ",".join(str(item[0] if isinstance(item, tuple) else item) for item in argument) if _many(argument) else str(argument)
    )
    return text if len(text) <= 140 else text[:137] + "…"


def _many(argument: Any) -> bool:
    return isinstance(argument, tuple)


def _sources(options: PlanOptions) -> list[Step]:
    steps = [Step("place", (options.place,), "go to the sandbox's directory; paths of the machine are counted from it")]
    take: list[tuple[str, str, tuple[str, ...]]] = [(f"/dev/{name}", f"device {name}", ()) for name in DEVICES]
    shared = options.facts.devices
    if shared is not None:
        take = [(shared, "devices", ("rdonly", "nosuid"))]
        take += [(f"{shared}/{DEVICE_DIRECTORIES[0]}", f"empty {path}", RO) for path in _hidden_directories(options.facts)]
    take += [(path, f"group {number}", RO) for number, (_, path) in enumerate(options.groups)]
    if _unified(options):
        take += [(options.groups[0][1], "covered group", RO)]
    if not options.layers:
        take += [("/usr", "usr", RO)]
        if _has_local(options):
            take += [(own_local.LOCAL, "machine's local", RO)]
        take += [(f"/{name}", name, RO) for name in options.facts.directories]
        if _has_copies(options):
            take += [(str(options.copies), "copies", RO)]
        if options.interpreter is not None and own_prefix(options.interpreter[0]):
            take += [(options.interpreter[0], "interpreter", RO)]
    steps.append(Step("take", (tuple(take),), "copies of the mounts that will be needed, while their paths can be seen"))
    if options.packages is not None:
        why = "the packages, if they are still the directory that was looked at; nothing mounted there later is seen here"
        steps.append(Step("take_directory", (*options.packages, PACKAGES, RO), why))
    return steps


def shared_paths(facts: HostFacts, interpreters: Iterable[Interpreter]) -> list[str]:
    """What `host` sandboxes can read of the machine, whichever of these interpreters they have."""
    own = [one.prefix for one in interpreters if own_prefix(one.prefix)]
    return ["/usr", *(f"/{name}" for name in facts.directories), *shared_copies(facts), *facts.records, *own]


def _root(options: PlanOptions) -> list[Step]:
    if not below(options):
        return [Step("bind_self", (ROOT, SAFE), "a directory of the sandbox's own is its writable /, on disk")]
    steps, target = [], _mount_point(options)
    lending = [Step("lend_root", (target,), "if nobody changes it, a later sandbox can have it")] if options.lends else []
    if options.merged:
        return [Step("put_merged", (target,), "the root of an earlier sandbox, in which nobody has changed anything"), *lending]
    if options.root:
        steps.append(Step("put_lower", (target,), "what lies below, its owners mapped to the sandbox's; made by the zygote"))
    layers = "."
    if _in_memory(options):
        layers = "layers"
        steps.append(
            Step(
                "tmpfs",
                ("layers", options.disk_bytes + bounds.UPPER_SLACK_BYTES, 0o700),
                "the place's file system cannot carry an upper layer",
            )
        )
    if options.strange:
        own = tuple((f"{layers}/upper{path}", mode) for path, mode in (("", 0o755), *options.strange) if path != "/")
        steps.append(Step("directories", (own,), "what is below belongs to a user that is not there"))
    lower = () if options.root else below(options)
    return [
        *steps,
        Step("overlay", (lower, layers, target, SAFE), "what is not the sandbox's own below, its writable layer above"),
        *lending,
    ]


def _own_place(options: PlanOptions) -> list[Step]:
    if not options.mapped:
        return []
    why = "its directory, seen by its ids: on the disk it belongs to the server, and what is left of it is a layer as it lies"
    return [Step("own_place", (), why)]


def _has_copies(options: PlanOptions) -> bool:
    """Whether what is shared of the machine's /etc and /sys has to be mounted: a base root has it."""
    return not options.layers and options.base_root is None and options.copies is not None


def _own_names(options: PlanOptions) -> dict[str, str]:
    """What of /etc are links to files of the sandbox's own, with these."""
    if options.layers:
        return OWN_NAMES
    return {HOSTS_FILE: HOSTS} if options.base_root is not None else {}


def _own_files(options: PlanOptions) -> list[Step]:
    own = tuple((path, _content_of(path, options)) for path in _own_names(options).values())
    if not own:
        return []
    why = "what is its own of /etc, in memory: its layer may lie below others"
    return [Step("tmpfs", (OWN, bounds.OWN_BYTES, 0o755), why), Step("files", (own,), "their contents")]


def _content_of(target: str, options: PlanOptions) -> str:
    return hosts(options.host_name) if target == HOSTS else f"{options.host_name}\n"


def _host_tree(options: PlanOptions) -> list[Step]:
    if options.base_root is not None:
        return _mount_points(options) if options.above else []
    # What it has of /sys and /etc of the machine is mounted, and its /usr/local is the machine's.
    made = base_root(replace(options.facts, hardware=(), local=None), options.interpreter, options.packages is not None)
    shared = links_to_copies(options.facts) if _has_copies(options) else []
    links = tuple(link for link in made.links if not link[0].startswith("/etc/"))
    top, below_etc = (
        tuple(one for one in made.directories if one[0].startswith("/etc/") == is_below) for is_below in (False, True)
    )
    return [
        Step("directories", (top,), "the top of the tree"),
        Step("links", (links,), "the machine's own, the interpreter's"),
        Step("tmpfs", ("/etc", bounds.ETC_BYTES, 0o755), "twenty small files and mount points cost next to nothing in memory"),
        Step("directories", (below_etc,), "what is in directories of it"),
        Step("links", ((*local_time(options.facts), *shared),), "the time zone, what is shared of the machine's"),
        Step(
            "files",
            ((*made.files, (HOSTS_FILE, hosts(options.host_name))),),
            "what programs look up in /etc, with nothing of the machine in it; what makes an environment of the interpreter",
        ),
    ]


def _image_tree(options: PlanOptions) -> list[Step]:
    directories = [
        ("/etc", 0o755),
        ("/tmp", 0o1777),
        ("/root", 0o700),
        ("/run", 0o755),
        ("/workspace", 0o755),
    ]
    names = (options.working_dir or "").strip("/").split("/")
    above = [f"/{'/'.join(names[:count])}" for count in range(1, len(names) + 1) if names != [""]]
    directories += [(path, 0o755) for path in above if path not in dict(directories)]
    return [
        *_mount_points(options),
        Step("directories", (tuple(directories),), "what every sandbox has, where the image lacks it"),
        Step("own_links", (tuple(OWN_NAMES.items()),), "to its own names, in place of the names of who made the image"),
        *([] if options.top is None else [Step("own_top", (options.top,), "the root is as the image says")]),
    ]


def _mount_points(options: PlanOptions) -> list[Step]:
    """Where something will be mounted once /proc is there, whose links lead to all that this process has open."""
    paths = ["/proc", "/dev", OWN]
    if options.layers:
        paths += ["/sys"]
    elif options.seen is not None:
        paths += ["/sys", "/sys/fs", seen.GROUPS]
    if not options.layers:
        paths += [target for target, _ in _shared_targets(options)]
    above = {str(one) for path in paths for one in (PurePosixPath(path), *PurePosixPath(path).parents)} - {"/"}
    made = tuple((path, 0o755) for path in sorted(above))
    return [Step("mount_points", (made,), "directories, whatever else the layers of an image have there")]


def _kernel_trees(options: PlanOptions) -> list[Step]:
    facts = options.facts
    return [
        Step("proc", (), "the processes of this sandbox"),
        Step("shared_devices", (), "a minimal /dev, one for all sandboxes: harmless devices, read only")
        if facts.devices is not None
        else Step("devices", (DEVICES, DEVICE_LINKS, DEVICE_DIRECTORIES), "a minimal /dev: harmless devices, read only"),
        Step("terminals", (bounds.LIMIT_TERMINALS,), "its own, so many at a time"),
        Step("tmpfs", ("/dev/shm", options.shared_bytes, 0o1777), "shared memory"),
        *_own_files(options),
        Step("no_more_namespaces", (), "1 into max_user_namespaces: the next user namespace is the last"),
        Step(
            "kernel_counts",
            (_kernel_counts(options),),
            "what the kernel keeps for the sandbox or counts for the server's user, as far as it lets a sandbox say so",
        ),
        Step(
            "cover_read_only",
            (_read_only(facts),),
            "kernel settings, and whatever else can be written to",
        ),
        Step("cover_file", (_in_proc(facts, PROC_HIDDEN_FILES),), "kernel memory, keys and addresses"),
        Step("cover_directory", (_hidden_directories(facts), facts.devices is not None), "hardware"),
        *_seen_limits(options),
    ]


def _unified(options: PlanOptions) -> bool:
    """Whether its control group is one of version 2: what the kernel calls it is a path."""
    return any("/" in place for place, _ in options.groups)


def _seen_limits(options: PlanOptions) -> list[Step]:
    """Where programs look for limits, those of the sandbox."""
    if options.seen is None:
        return []
    mounted = {place for place, _ in options.groups}
    own_sys = [
        Step("tmpfs", ("/sys", seen.ROOM_BYTES, 0o755), "an image has nothing there"),
    ]
    covered = (("covered group", seen.GROUPS, True),)
    put = tuple((f"group {number}", f"{seen.GROUPS}/{place}", True) for number, (place, _) in enumerate(options.groups))
    steps = [
        *(own_sys if options.layers else []),
        Step("directories", ((("/sys/fs", 0o755), (seen.GROUPS, 0o755)),), "where control groups are looked for"),
        # Some programs add what the kernel calls the group to where it is mounted, and others look there itself.
        *([Step("put", (covered,), "by which programs know where groups are mounted")] if _unified(options) else []),
        Step("tmpfs", (seen.GROUPS, seen.ROOM_BYTES, 0o755), "what is there is of this sandbox"),
        Step("directories", (tuple(seen.directories(mounted)),), "for controllers of version 1"),
        Step("files", (tuple(seen.files(options.seen, mounted)),), "its limits, as programs read them of either version"),
        *([Step("put", (put,), "its control groups, read only")] if put else []),
    ]
    has_online = not options.layers and seen.ONLINE in dict(options.facts.hardware)
    covers = seen.covers(options.seen, has_online)
    if covers:
        made = tuple((by, content) for _, by, content in covers)
        steps += [
            Step("files", (made,), "memory and processors of a machine that has no more than this sandbox"),
            Step("cover_with", (tuple((path, by) for path, by, _ in covers),), "what would tell of the whole machine"),
        ]
    return steps


def _kernel_counts(options: PlanOptions) -> tuple[tuple[str, str], ...]:
    """Watches on files are counted for the server's user as well: without these one sandbox could use up all that he may have.

    System V memory, semaphores and messages belong to no process. Linux 6.11 and newer let a sandbox bound its own.
    """
    return (
        ("user/max_inotify_instances", str(bounds.LIMIT_INOTIFY_INSTANCES)),
        ("user/max_inotify_watches", str(bounds.LIMIT_INOTIFY_WATCHES)),
        ("kernel/shmall", str(options.shared_bytes // PAGE_BYTES)),
        ("kernel/shmmni", "256"),
        ("kernel/sem", "250 4096 32 128"),
        ("kernel/msgmni", "64"),
        ("net/ipv4/ip_unprivileged_port_start", "0"),  # No port is for root alone, who has no capability for them either.
    )


def _read_only(facts: HostFacts) -> tuple[str, ...]:
    names = (facts.proc_writable | set(PROC_READ_ONLY)) - {*PROC_HIDDEN_FILES, *PROC_HIDDEN_DIRECTORIES}
    return _in_proc(facts, tuple(sorted(names)))


def _hidden_directories(facts: HostFacts) -> tuple[str, ...]:
    return _in_proc(facts, PROC_HIDDEN_DIRECTORIES)


def _in_proc(facts: HostFacts, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"/proc/{name}" for name in names if name in facts.proc)


def _has_local(options: PlanOptions) -> bool:
    """Whether /usr/local is the sandbox's own: it needs layers, in which what the machine has there has been made before."""
    return options.base_root is not None and options.facts.local is not None


def _own_local(options: PlanOptions) -> list[Step]:
    if not _has_local(options):
        return []
    return [Step("take", (((own_local.LOCAL, "own local", ()),),), "a part of the sandbox's own tree, which /usr will cover")]


def _shared_targets(options: PlanOptions) -> list[tuple[str, str]]:
    """Where what is shared of the machine goes, with what it is called until then."""
    targets = [("/usr", "usr")]
    if _has_local(options):
        targets += [(own_local.MACHINES, "machine's local"), (own_local.LOCAL, "own local")]
    targets += [(f"/{name}", name) for name in options.facts.directories]
    targets += [(COPIES, "copies")] if _has_copies(options) else []
    if options.interpreter is not None and own_prefix(options.interpreter[0]):
        targets += [(options.interpreter[0], "interpreter")]
    return targets


def _shared_parts(options: PlanOptions) -> list[Step]:
    if options.layers:
        return []
    put = [(name, target, True) for target, name in _shared_targets(options)]
    steps = [Step("put", (tuple(put),), "the machine's programs, read only, no set-uid, no devices")]
    if options.interpreter is not None and options.packages is not None:
        target = packages_directory(options.interpreter[2])
        steps.append(Step("put_directory", (PACKAGES, target), "the packages, where the interpreter looks for its own"))
    return steps


def unmountable(path: str, options: PlanOptions) -> str | None:
    """Why a file cannot be mounted at this path of a `host` sandbox, as far as that is known before; else None."""
    top = path.split("/")[1]
    if options.layers or top not in {"usr", *options.facts.directories, *(name for name, _ in options.facts.links)}:
        return None
    if _has_local(options) and path.startswith(f"{own_local.LOCAL}/"):
        return None
    return f"/{top} is the machine's own and read only"


def _mounted_sources(options: PlanOptions) -> list[Step]:
    if not options.mounted:
        return []
    sizes = tuple(size for _, size in options.mounted)
    return [Step("write_mounted", (sizes,), "the caller's read-only files, written where the sandbox cannot reach")]


def _mounted(options: PlanOptions) -> list[Step]:
    if not options.mounted:
        return []
    paths = tuple(path for path, _ in options.mounted)
    instead = tuple(path for path in paths if path in _own_names(options))
    return [
        *([Step("unlink", (instead,), "links to the sandbox's own, in whose place the caller's go")] if instead else []),
        Step("put_mounted", (paths,), "the caller's read-only files; the directories above them cannot be renamed"),
    ]


def _closing(options: PlanOptions) -> list[Step]:
    # Process 1 must be able to pass descriptors on where commands, which share its user's count, cannot any more.
    most_open = options.facts.open_files * (1 if options.root else bounds.OPEN_FILES_SHARE)
    limits = {"nofile": most_open, "fsize": bounds.LIMIT_FILE_BYTES, "core": 0}
    # These count for the server's user as well, who by default has as much as each of his processes.
    limits |= {"sigpending": bounds.LIMIT_SIGNALS, "msgqueue": bounds.LIMIT_QUEUE_BYTES, "memlock": bounds.LIMIT_LOCKED_BYTES}
    limits |= {"nice": 0, "rtprio": 0}  # Nobody goes before others, also where the server's user may.
    if options.facts.limit_processes:
        limits["nproc"] = options.processes + 1
    return [
        Step("loopback", (), "127.0.0.1 and ::1, the only network there is"),
        Step("watch_sockets", (), "process 1 can ask the kernel what they hold, which the filter lets nobody ask for"),
        Step("hostname", (options.host_name,), "its own name"),
        Step("limits", (tuple(limits.items()),), "of process 1 and of all users of the next namespace together"),
        *(
            [Step("processors", (options.seen.processors,), "as many as its limit")]
            if options.seen and options.seen.processors
            else []
        ),
        Step("last_user_namespace", (options.ids,), "the mounts belong to the outer namespace: nobody inside can change them"),
        Step(
            "capabilities",
            (tuple(sorted(CAPABILITIES.values())), tuple(sorted(RIGHTS.values()))),
            "process 1 keeps these for itself, root inside has those, nobody gains any",
        ),
        Step("settle", (0o022,), "no new privileges, umask, undumpable"),
        Step("filter", (rules.families(rules.RULES),), "system calls that nobody makes from here on, process 1 included"),
    ]
