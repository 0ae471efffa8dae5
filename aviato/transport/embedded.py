"""The embedded server: found by its folder, or started by whichever client wins the lock.

The winner binds and listens on the socket itself, then spawns the server with socket and lock inherited, so everybody can
connect at once and requests wait in the backlog while it starts. The server is born free of its parent. Standard library
only: the server is on its way before this process has loaded an HTTP client.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pwd
import random
import socket
import stat
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.log import logger
from aviato.options import SECRET_PREFIX
from aviato.system import inheritance, process_limits
from aviato.transport import embedded_key
from aviato.wire.embedded import REFUSAL
from aviato.wire.session import encode_opening

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS = 60.0
SLOW_SECONDS = 5.0
BACKLOG = 4096
SOCKET_PATH_LIMIT = 100

_inherited_by_accident: set[int] = set()
"""Lock descriptors open for the moment: a child forked right then would hold the lock for as long as it lives."""


def _close_in_child() -> None:
    for fd in _inherited_by_accident:
        with suppress(OSError):
            os.close(fd)
    _inherited_by_accident.clear()


os.register_at_fork(after_in_child=_close_in_child)


def socket_path() -> str:
    """The socket of the embedded server that belongs to this process's user, build and settings."""
    return os.path.join(embedded_key.directory(), "sock")


_started_early: dict[str, _Launcher] = {}


def start_early(path: str) -> None:
    """Start the server if nobody listens, without waiting: it comes up while this process loads its HTTP client."""
    connection = _connect(path)
    if connection is not None:
        connection.close()
    elif (launcher := _elect(os.path.dirname(path))) is not None:
        _started_early[path] = launcher


async def ensure(path: str) -> None:
    """Return once the embedded server on `path` has answered; start it if nobody has.

    Raises:
        SandboxUnavailableError: it died while starting (the message ends with its log), or 60 s were not enough.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + START_SECONDS
    folder = os.path.dirname(path)
    slow = loop.call_later(SLOW_SECONDS, logger.warning, "the embedded server is slow to start; its log is in %s/log", folder)
    launcher = _started_early.pop(path, None)
    try:
        while loop.time() < deadline:
            connection = _connect(path)
            if connection is not None:
                with closing(connection):
                    if await _answers(connection, deadline - loop.time()):
                        if launcher is not None:
                            _tell_of_start(path, folder, began)
                        return
            if launcher is not None:
                raise _died(folder, launcher.log_offset)
            if connection is None:
                launcher = _elect(folder)
            if launcher is None:
                await asyncio.sleep(random.uniform(0.005, 0.010))
        raise SandboxUnavailableError(
            f"the embedded server did not answer within {START_SECONDS:g} s{_end_of(*_log_tail(folder, 0))}",
            reason="embedded_start",
        )
    finally:
        slow.cancel()
        if launcher is not None:
            launcher.reap()


def _tell_of_start(path: str, folder: str, began: float) -> None:
    """Whoever looks for the server later finds it by this."""
    with suppress(OSError), open(os.path.join(folder, "lock")) as lock:
        pid, seconds = lock.read().strip(), asyncio.get_running_loop().time() - began
        logger.info(
            "the embedded server has started in %.2f s: pid %s, socket %s, log %s/log/server.log", seconds, pid, path, folder
        )


async def until_closed(path: str) -> None:
    """Connect, and return when the other side has closed the connection; at once if nobody listens."""
    connection = _connect(path)
    if connection is not None:
        with closing(connection), suppress(ConnectionError):
            await asyncio.get_running_loop().sock_recv(connection, 1)


def reachable_name(path: str) -> tuple[str, int | None]:
    """A name for a socket that fits the kernel's limit, and the descriptor that must stay open while it is used."""
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path, None
    fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{fd}/{os.path.basename(path)}", fd


_UNUSABLE = frozenset({errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EROFS})
"""What the path of a socket is refused with, where its directory is the reason."""


def _connect(path: str) -> socket.socket | None:
    """A connection, or None where nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name_fd = None
    try:
        connection.setblocking(False)
        name, name_fd = reachable_name(path)
        connection.connect(name)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        if error.errno in _UNUSABLE:
            raise embedded_key.unusable(os.path.dirname(path), f"cannot be used: {error.strerror}") from error
        raise SandboxUnavailableError(f"unix://{path}: {error.strerror}", reason="connect") from error
    finally:
        if name_fd is not None:
            os.close(name_fd)
    return connection


async def _answers(connection: socket.socket, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            await loop.sock_sendall(connection, encode_opening({}))
            return bool(await loop.sock_recv(connection, 1024))
    except (ConnectionError, TimeoutError):
        return False


class _Launcher:
    """The process that forks the server and ends."""

    def __init__(self, process: subprocess.Popen[bytes], log_offset: int) -> None:
        self._process = process
        self.log_offset = log_offset

    def reap(self) -> None:
        """It has ended by the time that the server answers; after a cancellation this waits some 50 ms for it."""
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _elect(folder: str) -> _Launcher | None:
    """Take the lock and start the server; None if someone else holds it.

    Raises:
        SandboxUnavailableError: no server can live here, or its folder cannot be used.
    """
    if (low := process_limits.too_low(inheritance.limits())) is not None:
        raise SandboxUnavailableError(f"the embedded server cannot start: {low}", reason="embedded_start", retryable=False)
    embedded_key.make_folder(folder)
    try:
        with _Lock(os.path.join(folder, "lock")) as lock_fd:
            if lock_fd is None:
                return None
            with closing(_listen(folder)) as listener:
                return _spawn(folder, lock_fd, listener.fileno())
    except OSError as error:
        raise embedded_key.unusable(folder, f"cannot be written: {error.strerror}") from error


class _Lock:
    """The lock's descriptor, or None if it is taken. The server's inherited copy keeps the lock; ours is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> int | None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _inherited_by_accident.add(self._fd)
        os.fchmod(self._fd, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return self._fd

    def __exit__(self, *_: object) -> None:
        _inherited_by_accident.discard(self._fd)
        os.close(self._fd)


def _listen(folder: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            os.unlink("sock", dir_fd=directory)
        # Before bind, so that the file is never there with wider permissions; the umask is the whole process's.
        os.fchmod(listener.fileno(), stat.S_IRUSR | stat.S_IWUSR)
        listener.bind(f"/proc/self/fd/{directory}/sock")
        os.chmod(f"/proc/self/fd/{directory}/sock", stat.S_IRUSR | stat.S_IWUSR)  # The umask may take them from its owner.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SandboxUnavailableError(
            f"the embedded server's socket in {folder} cannot be made: {error.strerror}", reason="embedded_start"
        ) from error
    finally:
        os.close(directory)
    return listener


def _spawn(folder: str, lock_fd: int, socket_fd: int) -> _Launcher:
    command = [sys.executable, "-m", "aviato.server.embedded", "--directory", folder]
    command += ["--lock-fd", str(lock_fd), "--socket-fd", str(socket_fd)]
    log = os.open(os.path.join(folder, "log", "server.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(log, 0o600)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(_environment()),
            pass_fds=(lock_fd, socket_fd),
            start_new_session=True,
        )
        return _Launcher(process, os.fstat(log).st_size)
    except OSError as error:
        why = f"{sys.executable!r}: {error.strerror}"
        if error.errno == errno.EAGAIN:
            why = "this user has as many processes as it may; end some, or raise `ulimit -u`"
        raise SandboxUnavailableError(f"the embedded server cannot be started: {why}", reason="embedded_start") from error
    finally:
        os.close(log)


_KEPT = frozenset({"LD_LIBRARY_PATH", "PYTHONHOME"})
"""Of what a process may have set for itself: what its Python may not start without."""
_IMPORTED = ("aiohttp", "pydantic", "pydantic_core", "uvloop", "typing_extensions.py")
"""What the server imports that is neither Python's nor ours."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _environment() -> Iterator[tuple[str, str]]:
    """What the server may know of this process: nothing that a sandbox or a log could spread, or that others have otherwise."""
    yield "PATH", f"{os.path.dirname(sys.executable)}:{_PATH}"
    yield "LANG", "C.UTF-8"
    yield "HOME", _home()
    for name, value in os.environ.items():
        wanted = name in _KEPT or name.startswith("AVIATO_")
        ours = name in ("AVIATO_API_KEY", "AVIATO_BASE_URL", "PYTHONPATH") or name.startswith(SECRET_PREFIX)
        if wanted and not ours:
            yield name, value
    # The server starts in `/`: what is importable here by a relative path must be importable there. Other folders may hold
    # modules that stand in for those of Python.
    python_path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if _is_needed(entry)]
    home = embedded_key.package_home()
    if os.path.basename(home) not in ("site-packages", "dist-packages") and home not in python_path:
        python_path.insert(0, home)
    if python_path:
        yield "PYTHONPATH", os.pathsep.join(python_path)


def _is_needed(folder: str) -> bool:
    return bool(folder) and any(os.path.exists(os.path.join(folder, name)) for name in _IMPORTED)


def _home() -> str:
    """As a login has it; a user without an account has what he says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")


def _died(folder: str, log_offset: int) -> SandboxUnavailableError:
    path, tail = _log_tail(folder, log_offset)
    told = [line for line in tail.splitlines() if line.startswith(REFUSAL)]
    if told:
        return SandboxUnavailableError(f"the embedded server {told[-1]}", reason="configuration", retryable=False)
    said = f"the embedded server ended while it was starting{_end_of(path, tail)}"
    return SandboxUnavailableError(said, reason="embedded_start", retryable=False)


def _log_tail(folder: str, offset: int) -> tuple[str, str]:
    """The server's log, and its end."""
    path = os.path.join(folder, "log", "server.log")
    try:
        with open(path, "rb") as file:
            file.seek(max(offset, os.fstat(file.fileno()).st_size - 4096))
            return path, file.read().decode(errors="replace").strip()
    except OSError:
        return path, ""


def _end_of(path: str, tail: str) -> str:
    return f"; the end of {path}:\n{tail}" if tail else f"; its log is {path}"
