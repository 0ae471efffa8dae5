"""The embedded server's process: `python -m aviato.server.embedded`, started by a client that has the lock and the socket.

It is born free of its parent before anything heavy is imported, so that nobody waits for it and no signal reaches it.
"""

from __future__ import annotations

import os
import sys

IDLE_EXIT_SECONDS = 60.0


def main(arguments: list[str]) -> None:
    """Detach, then serve until idle.

    Args:
        arguments: `--directory DIR --lock-fd N --socket-fd M`.
    """
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    directory, lock_fd, socket_fd = given["--directory"], int(given["--lock-fd"]), int(given["--socket-fd"])
    from aviato.server import login

    login.begin()
    _detach(directory, keep={lock_fd, socket_fd})
    os.set_inheritable(lock_fd, False)
    os.set_inheritable(socket_fd, False)
    from aviato.exceptions import AviatoError
    from aviato.wire.embedded import REFUSAL

    try:
        _serve(directory, lock_fd, socket_fd)
    except AviatoError as error:
        # The client that waits reads this line out of the log.
        sys.stderr.write(f"{REFUSAL}{' '.join(str(error).split())}\n")
        sys.exit(1)


def _detach(directory: str, keep: set[int]) -> None:
    """Fork twice into a session of its own; stdio to the log, no other descriptor, cwd at the root."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    log_directory = os.path.join(directory, "log")
    os.makedirs(log_directory, mode=0o700, exist_ok=True)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(log_directory, "server.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    low = 3
    for fd in sorted(keep):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _serve(directory: str, lock_fd: int, socket_fd: int) -> None:
    from aviato.system.imports import lasting_imports

    with lasting_imports():  # A client waits.
        import logging
        import socket

        from aviato.server.configured_backend import configured_backend
        from aviato.server.connections.listening import Listeners
        from aviato.server.serve import serve
        from aviato.server.settings import load
        from aviato.server.state_dir import StateDirectory, sign_lock
        from aviato.system import event_loop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    settings = load({}, os.environ, embedded=True)
    if settings.idle_exit is None:
        settings = settings.model_copy(update={"idle_exit": IDLE_EXIT_SECONDS})
    sign_lock(lock_fd)
    folder = StateDirectory(directory)
    folder.make()
    listener = socket.socket(fileno=socket_fd)
    listeners = Listeners(sockets=[listener], path=os.path.join(directory, "sock"))
    logging.info("the embedded server starts in %s", directory)
    with lasting_imports():  # Of the backend's modules.
        backend = configured_backend(settings, folder, embedded=True)
    event_loop.run(serve(settings, folder, backend, listeners, embedded=True))


if __name__ == "__main__":
    main(sys.argv[1:])
