"""The state directory: who may own it, what lies in it, and the lock that one server holds for life."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from dataclasses import dataclass

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError


def default_state_directory(uid: int | None = None) -> str:
    """`/var/lib/aviato` for root, else `/var/tmp/aviato-UID`: never a home directory, where NFS would break WAL and overlay."""
    uid = os.getuid() if uid is None else uid
    return "/var/lib/aviato" if uid == 0 else f"/var/tmp/aviato-{uid}"


def state_directory(configured: str | None, source: str = "AVIATO_STATE_DIR") -> str:
    """The state directory in use, made if it is missing.

    Args:
        configured: the path, or None for the default one.
        source: who gave it, a flag or a variable.

    Raises:
        AviatoValidationError: the path is relative, a symlink, belongs to someone else, cannot be made or not written to.
    """
    path = configured or default_state_directory()
    try:
        if not os.path.isabs(path):
            raise AviatoValidationError("it must be an absolute path")
        make_directory(path)
        if not os.access(path, os.W_OK | os.X_OK):
            raise _closed(path)
    except AviatoValidationError as error:
        raise bad_state_directory(path, str(error), source if configured else None) from None
    return path


def _closed(path: str) -> AviatoValidationError:
    """What to raise for a directory to which nothing can be written."""
    why = os.strerror(errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES)
    return AviatoValidationError(f"nothing can be written to {path!r}: {why}")


def bad_state_directory(path: str, why: str, source: str | None) -> AviatoValidationError:
    """What to raise for a state directory that cannot be used.

    Args:
        path: of it.
        why: it cannot.
        source: the flag or the variable that names it; None for the default one.
    """
    if source is None:
        text = f"{why}; set AVIATO_STATE_DIR to a directory of yours on a local disk"
    else:
        text = f"{source} is {path!r}: {why}"
    return AviatoValidationError(text, field_violations={"state_dir": why})


def make_directory(path: str, *, passed: bool = True) -> None:
    """Make a directory of the server's own, or check the one that is there.

    Its mode is 0700; where a server of root's has sandboxes below, whose uids pass through, 0711.

    Args:
        path: where it is.
        passed: whether sandboxes are below.

    Raises:
        AviatoValidationError: it is a symlink, not a directory, or belongs to another user.
    """
    mode = 0o711 if passed and os.getuid() == 0 else 0o700
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, mode)
    except FileExistsError:
        pass
    except OSError as error:
        raise AviatoValidationError(f"the state directory {path!r} cannot be made: {error.strerror}") from None
    try:
        info = os.lstat(path)
    except OSError as error:
        raise AviatoValidationError(f"the state directory {path!r} cannot be made: {error.strerror}") from None
    if stat.S_ISLNK(info.st_mode):
        raise AviatoValidationError(f"{path!r} is a symlink; the state directory must be a real directory")
    if not stat.S_ISDIR(info.st_mode):
        raise AviatoValidationError(f"{path!r} is not a directory")
    if info.st_uid != os.getuid():
        raise AviatoValidationError(f"{path!r} belongs to uid {info.st_uid}, not to {os.getuid()}")
    if stat.S_IMODE(info.st_mode) != mode:
        try:
            os.chmod(path, mode)
        except OSError:
            raise _closed(path) from None


@dataclass(frozen=True)
class StateDirectory:
    """The folder of one server, `serve/` or `embedded/KEY/` of the state directory, and the names in it."""

    path: str

    @property
    def state(self) -> str:
        """The state directory, which may have folders of other servers too."""
        above = os.path.dirname(self.path)
        return os.path.dirname(above) if os.path.basename(above) == "embedded" else above

    @property
    def lock(self) -> str:
        """Held by the server for life; its content is the server's pid."""
        return os.path.join(self.path, "lock")

    @property
    def store(self) -> str:
        """The database."""
        return os.path.join(self.path, "store.db")

    @property
    def sandboxes(self) -> str:
        """One directory a sandbox, made and removed by the backend."""
        return os.path.join(self.path, "sandboxes")

    @property
    def log(self) -> str:
        """The server's own log."""
        return os.path.join(self.path, "log")

    @property
    def output(self) -> str:
        """The output of main commands."""
        return os.path.join(self.path, "log", "main")

    @property
    def execs(self) -> str:
        """The output and results of detached commands."""
        return os.path.join(self.path, "log", "execs")

    @property
    def results(self) -> str:
        """Results of ended sandboxes that nobody has confirmed."""
        return os.path.join(self.path, "log", "results")

    @property
    def egress(self) -> str:
        """What sandboxes asked of the network."""
        return os.path.join(self.path, "log", "egress")

    @property
    def trash(self) -> str:
        """What could not be removed and is tried again."""
        return os.path.join(self.path, "trash")

    def make(self) -> None:
        """Make and check the folder and what belongs in it."""
        for path in (self.path, self.sandboxes):
            make_directory(path)
        for path in (self.log, self.output, self.execs, self.results, self.egress, self.trash):
            make_directory(path, passed=False)


def take_lock(folder: StateDirectory) -> int:
    """Take the lock of a folder and write this process's id into it.

    Returns:
        The descriptor that holds the lock until it is closed.

    Raises:
        SandboxUnavailableError: another server holds it; the message names its pid.
    """
    fd = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise SandboxUnavailableError(
            f"another server (pid {holder}) holds {folder.lock!r}; end it, or give another --state-dir",
            reason="lock_held",
            retryable=False,
        ) from None
    sign_lock(fd)
    return fd


def sign_lock(fd: int) -> None:
    """Write this process's id into the lock that it holds."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
