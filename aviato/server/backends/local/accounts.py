"""The users and groups of a `host` sandbox, as a new Debian system has them, and who may become whom. Pure."""

from __future__ import annotations

NOBODY = 65_534
NOLOGIN = "/usr/sbin/nologin"

_USERS = (
    *(("root", 0, 0, "/root", "/bin/sh"), ("daemon", 1, 1, "/usr/sbin", NOLOGIN), ("bin", 2, 2, "/bin", NOLOGIN)),
    *(("sys", 3, 3, "/dev", NOLOGIN), ("sync", 4, NOBODY, "/bin", "/bin/sync"), ("games", 5, 60, "/usr/games", NOLOGIN)),
    *(("man", 6, 12, "/var/cache/man", NOLOGIN), ("lp", 7, 7, "/var/spool/lpd", NOLOGIN), ("mail", 8, 8, "/var/mail", NOLOGIN)),
    *(("news", 9, 9, "/var/spool/news", NOLOGIN), ("uucp", 10, 10, "/var/spool/uucp", NOLOGIN)),
    *(("proxy", 13, 13, "/bin", NOLOGIN), ("www-data", 33, 33, "/var/www", NOLOGIN)),
    *(
        ("backup", 34, 34, "/var/backups", NOLOGIN),
        ("list", 38, 38, "/var/list", NOLOGIN),
        ("irc", 39, 39, "/run/ircd", NOLOGIN),
    ),
    *(("_apt", 42, NOBODY, "/nonexistent", NOLOGIN), ("nobody", NOBODY, NOBODY, "/nonexistent", NOLOGIN)),
)
_GROUPS = (
    *(("root", 0), ("daemon", 1), ("bin", 2), ("sys", 3), ("adm", 4), ("tty", 5), ("disk", 6), ("lp", 7), ("mail", 8)),
    *(("news", 9), ("uucp", 10), ("man", 12), ("proxy", 13), ("kmem", 15), ("dialout", 20), ("fax", 21), ("voice", 22)),
    *(("cdrom", 24), ("floppy", 25), ("tape", 26), ("sudo", 27), ("audio", 29), ("dip", 30), ("www-data", 33)),
    *(("backup", 34), ("operator", 37), ("list", 38), ("irc", 39), ("src", 40), ("shadow", 42), ("utmp", 43)),
    *(("video", 44), ("sasl", 45), ("plugdev", 46), ("staff", 50), ("games", 60), ("users", 100), ("nogroup", NOBODY)),
)
# Root may become anybody, and nobody else anyone: set-uid programs have no effect inside.
_CONVERSATIONS = """\
auth sufficient pam_rootok.so
auth required pam_unix.so
account required pam_permit.so
password required pam_unix.so
session required pam_permit.so
"""
CONVERSATIONS = "/etc/pam.d"
"""The directory of PAM."""
PRIVATE = ("/etc/shadow", "/etc/gshadow")
"""Files that only root reads."""


def files(*, has_bash: bool) -> list[tuple[str, str]]:
    """Paths in /etc with contents. No account has a password.

    Args:
        has_bash: whether there is a /bin/bash, which is root's shell then.
    """
    users = "".join(f"{name}:x:{uid}:{gid}:{name}:{home}:{shell}\n" for name, uid, gid, home, shell in _USERS)
    return [
        ("/etc/passwd", users.replace("/root:/bin/sh", "/root:/bin/bash") if has_bash else users),
        ("/etc/group", "".join(f"{name}:x:{gid}:\n" for name, gid in _GROUPS)),
        ("/etc/shadow", "".join(f"{name}:*:20000:0:99999:7:::\n" for name, *_ in _USERS)),
        ("/etc/gshadow", "".join(f"{name}:*::\n" for name, _ in _GROUPS)),
        (f"{CONVERSATIONS}/other", _CONVERSATIONS),
    ]
