"""Starting one process: own lookup of the program, real pipes, a session of its own, clean signals. Standard library only."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

from aviato.server.supervisor.errors import file_error, os_file_error
from aviato.server.supervisor.paths import DIRECTORY, open_path

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESERVED_DESCRIPTORS = 32
"""Kept free for the supervisor itself: commands get none of the last ones below its limit."""

TERMINALS = "ptmx"
"""The device that gives new terminals."""

SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Those that can be handled and ignored."""


class Failure(NamedTuple):
    """A command that could not be started: a result, not an error."""

    returncode: int
    message: str
    for_now: bool = False
    """Too many processes: it may go once the dead are collected."""


class Ends(NamedTuple):
    """The supervisor's ends of a command's pipes, or of its terminal, which is stdin and stdout in one."""

    stdin: int | None
    stdout: int | None
    stderr: int | None


class CaseEnds(NamedTuple):
    """The same of a program that runs cases: also for its records, what it is told, and reports where they were asked for."""

    stdin: int
    stdout: int
    stderr: int
    record: int
    go: int
    report: int | None


class Spawned(NamedTuple):
    """A running process and how it is reached."""

    pid: int
    ends: Ends | CaseEnds


Connect = Callable[[list[int]], tuple[Ends | CaseEnds, list[tuple[Any, ...]]]]
"""Opens what a command is connected by, noting each descriptor in the list; gives our ends, and what the child does."""


def enter(path: str, name: str) -> Failure | None:
    """Make a directory the current one, for the lookup and for the command; a failure if nothing more can be opened.

    Args:
        path: of the directory.
        name: the command's first word.

    Raises:
        Refused: a `SandboxFileError`.
    """
    try:
        fd = open_path(path, DIRECTORY, kernel=True)
        try:
            os.fchdir(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return _failure(name, path, error)
        raise os_file_error(path, error) from None
    except ValueError:
        raise file_error(path, "no_such_file", "embedded null byte") from None
    return None


def find_program(name: str, path: str) -> str | Failure:
    """The file that a command's first word means, counted from the current directory."""
    if "/" in name:
        return _usable(name, name)
    folders = path.split(":") if name else []
    for folder in folders:
        candidate = f"{folder or '.'}/{name}"
        try:
            # Most have it not; asking first costs less than an exception.
            if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
                return candidate
        except ValueError:
            break
    failure = Failure(127, f"{name}: command not found")
    for folder in folders:
        found = _usable(f"{folder or '.'}/{name}", name)
        if isinstance(found, str):
            return found
        if found.returncode == 126:
            failure = found
    return failure if name else Failure(127, "'': command not found")


def _usable(candidate: str, name: str) -> str | Failure:
    try:
        mode = os.stat(candidate).st_mode
    except (OSError, ValueError) as error:
        refused = isinstance(error, PermissionError)
        reason = error.strerror if isinstance(error, OSError) else "No such file or directory"
        return Failure(126 if refused else 127, f"{name}: {reason}")
    if stat.S_ISDIR(mode):
        return Failure(126, f"{name}: Is a directory")
    return candidate if os.access(candidate, os.X_OK) else Failure(126, f"{name}: Permission denied")


def pipes(stdin: bool, null: int) -> Connect:
    """A pipe for each stream.

    Args:
        stdin: whether it gets one; else `null`.
        null: a descriptor of /dev/null, or of another file that it reads.
    """

    def connect(opened: list[int]) -> tuple[Ends | CaseEnds, list[tuple[Any, ...]]]:
        for _ in range(3 if stdin else 2):
            opened += os.pipe2(os.O_CLOEXEC)
        out_read, out_write, err_read, err_write, *rest = opened
        in_read, in_write = rest or (null, None)
        moves = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((in_read, out_write, err_write))]
        return Ends(in_write, out_read, err_read), moves

    return connect


def case_pipes(reports: bool) -> Connect:
    """What a program that runs cases is connected by; `reports`: whether it reports."""

    def connect(opened: list[int]) -> tuple[Ends | CaseEnds, list[tuple[Any, ...]]]:
        for _ in range(6 if reports else 5):
            opened += os.pipe2(os.O_CLOEXEC)
        in_read, in_write, go_read, go_write, *outward = opened
        fds = (in_read, outward[1], outward[3], outward[5], go_read, *outward[7:])
        moves = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        report = outward[6] if reports else None
        return CaseEnds(in_write, outward[0], outward[2], outward[4], go_write, report), moves

    return connect


Start = Callable[[str, list[str], dict[str, str], list[tuple[Any, ...]]], int]
"""Starts a program with arguments, an environment, and what is done to its descriptors; gives the number of its process."""


def child(program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
    """A child of this process, in a session of its own."""
    return os.posix_spawn(program, argv, environment, file_actions=moves, setsid=True, setsigmask=[], setsigdef=SIGNALS)


def spawn(argv: list[str], environment: dict[str, str], connect: Connect, start: Start = child) -> Spawned | Failure:
    """Start a process in the current directory.

    Args:
        argv: the command.
        environment: all of it.
        connect: `pipes`, or a terminal.
        start: what starts it.
    """
    program = find_program(argv[0], environment.get("PATH", DEFAULT_PATH))
    if isinstance(program, Failure):
        return program
    opened: list[int] = []
    try:
        ends, moves = connect(opened)
        _check_room(opened)
        pid = start(program, argv, environment, moves)
    except (OSError, ValueError) as error:
        for fd in opened:
            os.close(fd)
        return _failure(argv[0], program, error)
    for fd in opened:
        if fd in ends:
            os.set_blocking(fd, False)
        else:
            os.close(fd)
    return Spawned(pid, ends)


def _check_room(opened: list[int]) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and max(opened) >= limit - RESERVED_DESCRIPTORS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _failure(name: str, program: str, error: OSError | ValueError) -> Failure:
    number = error.errno if isinstance(error, OSError) else errno.EINVAL
    if number == errno.ENOENT:
        return Failure(127, f"{name}: its interpreter is missing: {_interpreter(program)}")
    if isinstance(error, OSError) and error.filename == TERMINALS:
        in_use = number == errno.ENOSPC
        why = "all terminals of the sandbox are in use" if in_use else f"no terminal: {os.strerror(error.errno or 0)}"
        return Failure(126, f"{name}: not started: {why}")
    if number == errno.EAGAIN:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0] - len(os.listdir("/proc/self/task"))
        return Failure(126, f"{name}: not started: the sandbox's limit of {limit} processes is reached", for_now=True)
    if number in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Failure(126, f"{name}: not started: the sandbox's limit of {limit} open files is reached")
    return Failure(126, f"{name}: {os.strerror(number or errno.EINVAL)}")


def _interpreter(program: str) -> str:
    try:
        with open(program, "rb") as file:
            line = file.readline(256)
    except OSError:
        return program
    return line[2:].decode(errors="replace").strip() if line.startswith(b"#!") else f"the loader of {program}"
