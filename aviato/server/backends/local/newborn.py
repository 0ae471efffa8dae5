"""What a child of the template does until it is the supervisor. Standard library only."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import socket
from typing import Any, NoReturn

from aviato.server.backends.landlock.confine import Restriction
from aviato.server.backends.local import native, syscalls
from aviato.server.backends.local.confine import Confinement, StepError
from aviato.server.backends.local.kernel import Kernel
from aviato.server.backends.local.mounted import Unfit
from aviato.server.supervisor import program, takeover
from aviato.wire.frames import FrameType, encode

CONNECTION, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN, PORTS = 3, 4, 5, 6, 7, 8, 9
NAME = b"aviato-supervisor"
REPORT_SECONDS = 10
_ERROR = {"code": "UNAVAILABLE", "reason": "start_failed", "is_infrastructure": True, "retryable": False}
_UNFIT = {"code": "VALIDATION", "reason": "mounted_files", "is_infrastructure": False, "retryable": False}


def execute(
    request: dict[str, Any],
    arguments: tuple[int, int],
    sync: socket.socket,
    fds: list[int],
    children: int,
    trees: list[tuple[int, str, int]],
    content: int | None,
) -> NoReturn:
    """Execute the plan, then be the supervisor.

    Args:
        request: what the sandbox is to be.
        arguments: where the command line lies, and its size.
        sync: where the template tells that ids are mapped.
        fds: connection, listener, note, ports if there are any, and those of control groups.
        children: see `program.run`.
        trees: mounts that the template made: a number, a name and a descriptor.
        content: what the caller's read-only files hold.
    """
    try:
        # Everyone inside can read the command line of process 1, and this one tells where the server is installed.
        start, size = arguments
        ctypes.memmove(start, NAME[: size - 1].ljust(size, b"\0"), size)
        syscalls.prctl_name(NAME)
        compiled = bytes.fromhex(request["filter"])
        kernel = Kernel(lambda: _wait_for_maps(sync), compiled)
        for _, name, tree in trees:
            kernel.keep(name, tree)
        if request["descent"]:
            confinement: Confinement = Restriction(kernel, compiled)
        else:
            confinement = Confinement(kernel, modern=request["modern"], content=content)
        confinement.execute(request["plan"])
        connection, listener, note, *others = fds
        descent, asked = _descent(request["descent"]), [kernel.kept("asked")] if kernel.has("asked") else []
        _arrange([connection, listener, note, kernel.kept("layer"), kernel.kept("sockets"), children, *others, *asked])
        _supervise(request["ports"], len(others), descent, bytes.fromhex(request["born_filter"]))
    except Unfit as error:
        _report(fds[0], f"mounted_files: {error}", _UNFIT)
    except BaseException as error:
        _report(fds[0], _why(error))
    finally:
        os._exit(1)


def go_on(
    birth: native.Birth, connection: int, ports: bool, born_filter: bytes = b"", early: takeover.Early | None = None
) -> NoReturn:
    """Be the supervisor, in a child that compiled code has confined.

    Args:
        birth: what came of it.
        connection: where to say that nothing came of it.
        ports: whether there is a descriptor for them.
        born_filter: see `program.run`.
        early: what compiled code did after that, if it did.
    """
    try:
        if birth.error:
            raise StepError(f"{native.label(birth)}: {OSError(birth.error, os.strerror(birth.error))}")
        connection = CONNECTION
        if early is not None and early.state_size:
            program.take_over(connection, takeover.read(early))
        _supervise(ports, birth.kept - native.OTHERS, None, born_filter)
    except BaseException as error:
        _report(connection, _why(error))
    finally:
        os._exit(1)


def _descent(asked: dict[str, Any] | None) -> program.Descent | None:
    if asked is None:
        return None
    return program.Descent(bytes.fromhex(asked["filter"]), asked["exact"], (PORTS, asked["asks"]) if asked["asks"] else None)


def _supervise(ports: bool, others: int, descent: program.Descent | None, born_filter: bytes) -> None:
    groups = tuple(range(PORTS + ports, PORTS + others))
    number = PORTS if ports else None
    program.run(CONNECTION, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN, number, groups, descent, born_filter or None)


def _why(error: BaseException) -> str:
    return f"the sandbox could not be confined: {error if isinstance(error, StepError) else program._where(error)}"


def _wait_for_maps(sync: socket.socket) -> int | None:
    data, fds, _, _ = socket.recv_fds(sync, 1, 1, socket.MSG_CMSG_CLOEXEC)
    sync.close()
    if not data:
        raise StepError("the template died while it made this sandbox")
    return fds[0] if fds else None


def _arrange(fds: list[int]) -> None:
    """Bring the descriptors of a supervisor to their places, and close all others."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in fds]
    os.closerange(3, 64)
    for target, fd in enumerate(high, CONNECTION):
        os.dup2(fd, target, inheritable=False)
    os.closerange(CONNECTION + len(fds), 1 << 20)


def _report(fd: int, message: str, kind: dict[str, Any] = _ERROR) -> None:
    try:
        os.write(fd, encode(FrameType.ERROR, json.dumps({**kind, "message": message}).encode()))
        # The server speaks first. Gone before that, this process would be a broken pipe to it, and the report never read.
        if select.select([fd], [], [], REPORT_SECONDS)[0]:
            os.read(fd, 1 << 16)
    except OSError:
        pass
