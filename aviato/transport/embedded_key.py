"""Which embedded server is ours: its folder, named by everything that two clients must agree on to share one."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.options import SECRET_PREFIX
from aviato.system import inheritance
from aviato.wire.version import WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_SETTINGS = frozenset(
    f"AVIATO_{name}"
    for name in (
        *("API_KEY", "BASE_URL", "AUTH", "IMAGE_FALLBACK", "STATE_DIR", "PROGRESS"),
        *("SOCKET", "HOST", "PORT", "SOCKET_FD", "API_KEY_FILE", "RAISE_DESCRIPTOR_LIMIT"),
    )
)
"""Variables that say nothing about what an embedded server does."""


def directory() -> str:
    """`STATE/embedded/KEY` of this process: one server for each user, build, job, container, set of settings and of limits.

    Raises:
        SandboxUnavailableError: `AVIATO_STATE_DIR` is no absolute path.
    """
    root = os.environ.get("AVIATO_STATE_DIR") or default_state_directory()
    if not os.path.isabs(root):
        raise unusable(root, "it must be an absolute path")
    return os.path.join(root, "embedded", _key())


def default_state_directory() -> str:
    """`/var/lib/aviato` for root, else `/var/tmp/aviato-UID`."""
    uid = os.getuid()
    return "/var/lib/aviato" if uid == 0 else f"/var/tmp/aviato-{uid}"


def make_folder(folder: str) -> None:
    """Make the server's folder and those above it, or check the ones that are there.

    Raises:
        SandboxUnavailableError: one is a symlink, belongs to someone else, or cannot be made.
    """
    parent = os.path.dirname(folder)
    for path in (os.path.dirname(parent), parent, folder, os.path.join(folder, "log")):
        _make(path)


def package_home() -> str:
    """The directory from which `aviato` is imported."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _make(path: str) -> None:
    # As root the uids of the sandboxes pass through.
    mode = 0o711 if os.getuid() == 0 else 0o700
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode)
        os.chmod(path, mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise unusable(path, f"cannot be made: {error.strerror}") from error
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise unusable(path, "is a symlink" if stat.S_ISLNK(found.st_mode) else "is not a directory")
    if found.st_uid != os.getuid():
        raise unusable(path, f"belongs to uid {found.st_uid}, not to {os.getuid()}")


def _key() -> str:
    parts = [
        str(os.getuid()),
        str(WIRE_VERSION),
        _build(),
        os.environ.get("SLURM_JOB_ID", ""),
        *inheritance.what_stays(),
        *_settings(),
    ]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


@functools.cache
def _build() -> str:
    """Version, path and newest modification of the package: another build never shares a server with this one."""
    from aviato import __version__

    package = os.path.join(package_home(), "aviato")
    newest = max((entry.stat().st_mtime_ns for entry in _sources(package)), default=0)
    return f"{__version__} {package} {newest}"


def _sources(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield entry


def _settings() -> Iterator[str]:
    for name in sorted(os.environ):
        if name.startswith("AVIATO_") and name not in _NOT_SETTINGS and not name.startswith(SECRET_PREFIX):
            yield f"{name}={os.environ[name]}"
    if path := os.environ.get("AVIATO_SETTINGS_FILE"):
        try:
            yield str(os.stat(path).st_mtime_ns)
        except OSError:
            yield "missing"


def unusable(path: str, why: str) -> SandboxUnavailableError:
    """What to raise where the state directory cannot be used.

    Args:
        path: the state directory, or what lies in it.
        why: it cannot.
    """
    if given := os.environ.get("AVIATO_STATE_DIR"):
        text = f"AVIATO_STATE_DIR is {given!r}: {why if path == given else f'{path!r} {why}'}"
    else:
        text = f"the state directory {path!r} {why}; set AVIATO_STATE_DIR to a directory of yours on a local disk"
    return SandboxUnavailableError(text, reason="state_dir", retryable=False)
