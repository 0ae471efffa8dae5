"""What the threat model promises of sandboxes and those without namespaces do not keep, depending on the machine. Pure."""

from __future__ import annotations

from aviato.server.backends.local import landlock_calls as calls


def unkept(abi: int, own_ids: bool) -> dict[str, str]:
    """By name, what is not promised.

    Args:
        abi: the version of Landlock.
        own_ids: whether each sandbox has a uid of its own, or all have the server's.
    """
    found = {
        "processes": "/proc shows every process of the machine, with its command line",
        "files": "whether a file exists, its size, owner and times can be asked for anywhere; programs and settings in "
        "/usr and /etc are the machine's own",
        "paths": "there is no root directory of its own: outside of its own folder no path can be written to, /tmp included",
        "names": "host name, user names, processors and load are the machine's; commands are not uid 0, whatever exec(user=) "
        "says",
        "supervisor": "commands have the uid of their process 1; filters of system calls and Landlock keep them from it, and "
        "no namespace",
        "ends": "what commands leave behind is found by descent: where both process 1 and the server's zygote process "
        "are killed, it can live on",
        "memory": "memory and the number of processes are watched and never kept by the kernel; what pairs of sockets hold is "
        "not counted, and CPU time is not shared out",
        "sockets": "there is no network of its own: sockets are refused, but for pairs, so that not even programs inside can "
        "connect to each other; shared memory and semaphores by name are refused too",
    }
    if not own_ids:
        found |= {
            "uid": "all sandboxes have the server's uid: modes, times and attributes of that user's files anywhere can be "
            "changed, though their contents can be neither read nor written; so code can take the server's own folder from it, "
            "which then counts as a failure of the machine",
            "terminals": "terminals that this user has open elsewhere can be read and written to",
            "counts": "what the kernel counts by user (pipes, watches, pending signals, locked memory) is shared with the "
            "server",
        }
        if abi < calls.SCOPES_ABI:
            found["signals"] = (
                "every process of the server's user can be signalled and killed, the server and other sandboxes included; that "
                "needs Linux 6.12"
            )
    if abi < calls.REFER_ABI:
        found["renames"] = "files cannot be renamed or linked from one directory to another; that needs Linux 5.19"
    return found
