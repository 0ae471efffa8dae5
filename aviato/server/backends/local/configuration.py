"""What of the machine's /etc `host` sandboxes see: the other half of programs in /usr, and nothing that is a secret.

Two things say what programs need: the links that lead from /usr into /etc, and a list of trees that programs open by their
names. Neither says that a file is harmless, so each is looked at by itself: everybody may read it on the machine, it belongs to
root or to the server's own user, no part of its name is that of a secret, and nothing in it looks like one.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ETC = "/etc"
NAMES = (
    # Which program a name means, where libraries are, whom to trust.
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ca-certificates", "ca-certificates.conf", "ssl/certs"),
    *("ssl/openssl.cnf", "ssl/cert.pem", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted"),
    *("pki/java", "crypto-policies", "gnutls"),
    # Names and numbers that are the same everywhere.
    *("services", "protocols", "rpc", "ethertypes", "bindresvport.blacklist", "netconfig", "host.conf", "gai.conf"),
    *("mime.types", "magic", "magic.mime", "mailcap", "locale.alias", "locale.conf", "papersize", "xattr.conf"),
    # Which system it is.
    *("os-release", "debian_version", "lsb-release", "redhat-release", "system-release", "alpine-release", "arch-release"),
    # Shells and terminals.
    *("profile", "profile.d", "bash.bashrc", "bash_completion.d", "bash_completion", "zsh", "inputrc", "shells", "skel"),
    *("terminfo", "screenrc", "tmux.conf", "login.defs", "adduser.conf", "deluser.conf", "default/useradd"),
    # Languages, tools, their defaults.
    *("java-*", ".java", "maven", "ant", "python*", "perl", "nodejs", "R", "php", "ghc", "julia", "octave", "dotnet", "mono"),
    *("gdb", "gprofng.rc", "vim", "nanorc", "emacs", "groff", "manpath.config", "texmf", "dictionaries-common", "xml", "sgml"),
    *("fonts", "ImageMagick-*", "glvnd", "OpenCL", "vulkan", "chromium", "chromium.d", "X11/rgb.txt", "X11/app-defaults"),
    *("dpkg", "postgresql-common", "iproute2", "mke2fs.conf", "ssh/ssh_config", "ssh/moduli", "nginx/mime.types"),
    *("nginx/*_params", "nginx/fastcgi.conf"),
)
"""What programs open by its name, with the patterns of shells."""

OWN = ("hosts", "hostname", "localtime", "timezone", "resolv.conf", "passwd", "group", "nsswitch.conf", "mtab")
"""Sandboxes have their own, so that nothing of the machine is in them."""
NEVER = (
    *("shadow*", "gshadow*", "passwd-", "group-", "sudoers*", "machine-id", "ssh_host_*", "private", "environment"),
    *("*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "id_rsa*", "id_ecdsa*", "id_ed25519*"),
    *("*password*", "*passwd*", "*secret*", "*credential*", "*token*", "netrc", ".netrc", "auth.conf*", "pip.conf"),
    *("npmrc", ".npmrc"),
)
"""Names of what is, or often holds, a secret or the machine's identity, wherever it lies. Lower case."""

REMEMBERED = 4096
"""Contents that were looked at: those of files that have not changed are not looked at again."""
MOST_BYTES = 8 << 20
"""Of one file."""
LINKS_DEPTH = 4
"""Directories below /usr in which links are looked for: a tenth of a second of /usr with 140,000 names."""
WITHOUT_LINKS = frozenset({"doc", "man", "info", "help", "locale", "icons", "zoneinfo", "include", "src", "games"})
"""Names of large directories that hold no other half of a program."""

_NEVER = re.compile("|".join(map(fnmatch.translate, NEVER)))
_EXAMPLES = (b"secret = pass:insta", b"secret = $insta::secret")
"""Lines of OpenSSL's own configuration, the same on every machine."""
_ASSIGNED = (
    *(b"password", b"passwd", b"passphrase", b"secret", b"token", b"auth", b"authtoken"),
    *(b"apikey", b"api_key", b"accesskey", b"access_key"),
)
"""Names of what a secret is assigned to, in lower case."""
_SECRETS = (
    (re.compile(rb"PRIVATE KEY(?: BLOCK)?-----"), "a private key"),
    (re.compile(rb"://(?<=\w://)[^/\s\"'<>@]+@"), "an address with a password"),  # What begins with `://` is found faster.
    (
        re.compile(
            rb"(?i)(?:\b|_)(?:" + b"|".join(_ASSIGNED) + rb")[\"']?"
            rb"[ \t]*[=:>][ \t]*[\"']?(?![\s\"'<$%{(]|(?:true|false|none|null|yes|no)\b)\S{4,}"
        ),
        "what looks like a password or a token",
    ),
)
_KEYWORDS = (b"private key", b"://", *_ASSIGNED)
"""One of these is in all of them, in lower case: few files have any, and looking for words is quick."""
_COMMENTS = re.compile(rb"(?s:<!--.*?-->)|^[ \t]*[#;!][^\n]*$", re.MULTILINE)


class Shared(NamedTuple):
    """What sandboxes see of /etc.

    Attributes:
        names: below /etc, each a file, a link or a directory all of which is shared, with whether it is a directory.
        left_out: paths below /etc that a program may look for, with the reason why they are not shared.
    """

    names: tuple[tuple[str, bool], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def find(etc: str = ETC, usr: str = "/usr") -> Shared:
    """What of it there is on this machine.

    Args:
        etc: the directory.
        usr: whose links say what else is needed.
    """
    wanted = sorted({*_named(etc), *_linked(usr, etc)})
    names: list[tuple[str, bool]] = []
    left_out: list[tuple[str, str]] = []
    for name in wanted:
        above = (name[:end] for end, letter in enumerate(name) if letter == "/")
        if not any((one, True) in names for one in above) and not any(one in dict(left_out) for one in (name, *above)):
            _look(etc, name, names, left_out)
    return Shared(tuple(dict.fromkeys(names)), tuple(dict(left_out).items()))


def refusal(path: str) -> str | None:
    """Why one file, link or directory is not to be seen, what is in the directory aside; None: it is harmless."""
    if _NEVER.match(os.path.basename(path).lower()):
        return "its name is that of a secret, or of what tells which machine this is"
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return None  # It is shared as a link. What it leads to is looked at by itself.
        if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            return "it is neither a file nor a directory"
        if found.st_uid not in (0, os.geteuid()):
            return "it belongs to another user"
        needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else stat.S_IROTH
        if found.st_mode & needed != needed:
            return "not everybody may read it"
        if not stat.S_ISREG(found.st_mode):
            return None
        return _content_refusal(path, found.st_size, (found.st_ino, found.st_mtime_ns, found.st_ctime_ns))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def files_of(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """A path and all that is shared below it, directories before what is in them."""
    if refusal(path) is not None:
        return
    found = os.lstat(path)
    yield path, found
    if stat.S_ISDIR(found.st_mode):
        for name in sorted(os.listdir(path)):
            yield from files_of(f"{path}/{name}")


def _named(etc: str) -> Iterator[str]:
    """Those of `NAMES` that are there."""
    for pattern in NAMES:
        directory, _, last = pattern.rpartition("/")
        if "*" not in last:
            if os.path.lexists(f"{etc}/{pattern}"):
                yield pattern
            continue
        try:
            found = sorted(fnmatch.filter(os.listdir(f"{etc}/{directory}"), last))
        except OSError:
            continue
        yield from (os.path.join(directory, name) for name in found)


def _linked(usr: str, etc: str) -> set[str]:
    """What links of /usr lead to in /etc."""
    found: set[str] = set()
    _follow(usr, LINKS_DEPTH, found)
    names = {target.removeprefix(f"{etc}/") for target in found if target.startswith(f"{etc}/")}
    return {name for name in names if name.split("/")[0] not in OWN}


def _follow(directory: str, depth: int, found: set[str]) -> None:
    try:
        entries = os.scandir(directory)
    except OSError:
        return
    with entries:
        for entry in entries:
            if entry.is_symlink():
                found.add(os.path.normpath(os.path.join(directory, os.readlink(entry.path))))
            elif depth and entry.name not in WITHOUT_LINKS and entry.is_dir(follow_symlinks=False):
                _follow(entry.path, depth - 1, found)


def _look(etc: str, name: str, names: list[tuple[str, bool]], left_out: list[tuple[str, str]]) -> None:
    """Add what of one name is shared: the whole, or what is harmless of it."""
    path = f"{etc}/{name}"
    if not os.path.lexists(path):
        return
    reason = refusal(path)
    if reason is None and os.path.islink(path):
        reason = _way_out(etc, path)
    if reason is not None:
        left_out.append((name, reason))
        return
    if not os.path.isdir(path) or os.path.islink(path):
        names.append((name, os.path.isdir(path)))
        return
    below: list[tuple[str, bool]] = []
    before = len(left_out)
    for one in sorted(os.listdir(path)):
        if os.path.islink(f"{path}/{one}"):
            below.append((f"{name}/{one}", False))
        else:
            _look(etc, f"{name}/{one}", below, left_out)
    names.extend([(name, True)] if len(left_out) == before else below)


def _way_out(etc: str, path: str) -> str | None:
    """Why what a link leads to is not to be seen by way of it."""
    real = os.path.realpath(path)
    if real.startswith("/usr/"):
        return None
    if not real.startswith(f"{os.path.realpath(etc)}/"):
        return f"it leads to {real}"
    parts = real.removeprefix(f"{os.path.realpath(etc)}/").split("/")
    above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return next((why for one in above if (why := refusal(os.path.join(os.path.realpath(etc), one))) is not None), None)


@functools.lru_cache(REMEMBERED)
def _content_refusal(path: str, size: int, version: tuple[int, ...]) -> str | None:
    """Why the content of a file, of this size and version, is not to be seen."""
    if size > MOST_BYTES:
        return f"it has more than {MOST_BYTES >> 20} MiB"
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES)
    lowered = content.lower()
    if not any(word in lowered for word in _KEYWORDS):
        return None
    content = _COMMENTS.sub(b"", content)
    for example in _EXAMPLES:
        content = content.replace(example, b"")
    return next((f"it holds {what}" for pattern, what in _SECRETS if pattern.search(content)), None)
