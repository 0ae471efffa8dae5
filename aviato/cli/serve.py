"""`aviato serve`: a server for others, in the foreground."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from aviato.exceptions import AviatoError
from aviato.server.settings import ServerSettings, load
from aviato.system import process_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aviato.server.connections.listening import Listeners
    from aviato.server.connections.tls import Tls
    from aviato.server.state_dir import StateDirectory

_METAVARS = {
    "socket": "PATH", "host": "H", "port": "N", "state_dir": "DIR", "backend": "NAME", "api_key_file": "F", "image": "NAME=DIR",
    "packages": "NAME=DIR",
    "secrets_dir": "DIR", "auth": "wandb", "tls_cert": "F", "tls_key": "F", "allowed_host": "NAME", "wandb_entity": "NAME",
    "max_sandboxes": "N", "sandbox_uid_base": "N", "socket_fd": "N", "egress_allow_cidr": "CIDR", "run_code_concurrency": "N",
    "max_queued_sandboxes": "N", "image_cache_bytes": "N", "warm": "IMAGE=N", "registry_mirror": "HOST=HOST2",
}  # fmt: skip


_REPEATED = ("image", "packages", "warm", "registry_mirror", "egress_allow_cidr", "allowed_host", "wandb_entity")


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """A flag for every setting."""
    for name, field in reversed(ServerSettings.model_fields.items()):
        help_text = f"{field.description} [AVIATO_{name.upper()}]"
        option = click.option(
            f"--{name.replace('_', '-')}", name, metavar=_METAVARS.get(name, "S"), multiple=name in _REPEATED, help=help_text
        )
        function = option(function)
    return click.option("--settings-file", metavar="F", help="TOML file with the same names. [AVIATO_SETTINGS_FILE]")(function)


@click.command(name="serve")
@_options
def command(**flags: Any) -> None:
    """Serve sandboxes over a Unix socket, and over TCP with --port.

    Each setting is taken from its flag, else its variable, else the settings file.
    """
    try:
        _serve(load(flags, os.environ))
    except AviatoError as error:
        raise click.ClickException(str(error)) from None


def _serve(settings: ServerSettings) -> None:
    from aviato.system.imports import lasting_imports

    with lasting_imports():
        import logging

        from aviato.server import login
        from aviato.server.configured_backend import configured_backend
        from aviato.server.connections.tls import tls_of
        from aviato.server.serve import serve
        from aviato.server.state_dir import StateDirectory, make_directory, state_directory, take_lock
        from aviato.system import event_loop

    if "host" in settings.model_fields_set and settings.port is None:
        given = f"{settings.source('host')} {settings.host}"
        raise click.ClickException(f"{given} says where to listen, but no port is given: give --port N, or AVIATO_PORT")
    if (low := process_limits.too_low()) is not None:
        raise click.ClickException(low)
    login.hear_of_children()
    os.umask(0o022)  # What is private says so by itself; the sandboxes' ids pass through the rest.
    tls = tls_of(settings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    source = settings.source("state_dir")
    state = state_directory(settings.state_dir, source)
    folder = StateDirectory(os.path.join(state, "serve"))
    try:
        make_directory(folder.path)
        take_lock(folder)
        folder.make()
    except OSError as error:
        raise click.ClickException(f"the server cannot keep its state in {state!r} ({source}): {error.strerror}") from None
    with lasting_imports():  # Of the backend's modules.
        backend = configured_backend(settings, folder)
    hashes, made = _keys(settings, folder)
    listeners, lines = _listen(settings, folder, tls)
    if made is not None:
        lines.insert(0, f"export AVIATO_API_KEY={made}")

    def ready() -> None:
        for line in lines:
            click.echo(line)

    event_loop.run(serve(settings, folder, backend, listeners, key_hashes=hashes, on_ready=ready))


def _keys(settings: ServerSettings, folder: StateDirectory) -> tuple[list[str], str | None]:
    """Hashes of the keys that are new to the store, and the key that was made, to be shown once."""
    from aviato.server.connections.guard import hash_key
    from aviato.server.store import Store

    if settings.api_key_file is not None:
        read = _read_keys(settings.api_key_file, settings.source("api_key_file"))
        return [" ".join([hash_key(key), *routes]) for key, *routes in read], None
    if settings.port is None or settings.auth is not None:
        return [], None
    store = Store(folder.store)
    try:
        if store.key_hashes():
            return [], None
    finally:
        store.close()
    key = f"av-{secrets.token_urlsafe(32)}"
    return [hash_key(key)], key


def _read_keys(path: str, source: str) -> list[list[str]]:
    """Each key, and behind it what it is limited to.

    Args:
        path: of their file.
        source: the flag or the variable that names it.
    """
    from aviato.server.callers import parse_key
    from aviato.server.operations import OPERATIONS

    try:
        # Some editors put a byte order mark before the first key.
        with open(path, encoding="utf-8-sig") as file:
            keys = [line.split() for line in file if line.strip() and not line.startswith("#")]
    except OSError as error:
        raise click.ClickException(f"{source} {path!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.ClickException(f"{source} {path!r} is no text in UTF-8") from None
    if not keys:
        raise click.ClickException(f"{source} {path!r} holds no key")
    known = {operation.path for operation in OPERATIONS}
    for number, (_, *limits) in enumerate(keys, 1):
        try:
            routes = parse_key(" ".join(["hash", *limits])).routes
        except ValueError as error:
            raise click.ClickException(f"{source} {path!r}: key {number} {error}") from None
        for route in sorted(routes - known):
            raise click.ClickException(f"{source} {path!r}: key {number} is limited to {route!r}, which is no route")
    return keys


def _listen(settings: ServerSettings, folder: StateDirectory, tls: Tls | None) -> tuple[Listeners, list[str]]:
    """The sockets, and the lines that tell how to reach them."""
    from aviato.server.connections.listening import Listeners, listen_tcp, listen_unix

    sockets: list[socket.socket] = []
    lines: list[str] = []
    path: str | None = None
    scheme = "http" if tls is None else "https"
    with ExitStack() as undo:
        if settings.socket_fd is not None:
            with _named(f"{settings.source('socket_fd')} {settings.socket_fd}"):
                sockets.append(undo.enter_context(socket.socket(fileno=settings.socket_fd)))
                if not sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    raise OSError(errno.EINVAL, "this socket does not listen")
            is_unix = sockets[0].family == socket.AF_UNIX
            lines.append(_url("unix", sockets[0].getsockname()) if is_unix else _tcp_url(scheme, sockets[0]))
        elif settings.port is None or settings.socket is not None:
            path = os.path.abspath(settings.socket or os.path.join(folder.path, "aviato.sock"))
            with _named(f"{settings.source('socket')} {path!r}"):
                sockets.append(undo.enter_context(listen_unix(path, locked=settings.socket is None)))
            undo.callback(os.unlink, path)
            lines.append(_url("unix", path))
        if settings.port is not None:
            with _named(f"{settings.source('host')} {settings.host} {settings.source('port')} {settings.port}"):
                sockets.append(undo.enter_context(listen_tcp(settings.host, settings.port)))
            lines.append(_tcp_url(scheme, sockets[-1], settings.host))
        undo.pop_all()
    return Listeners(sockets=sockets, path=path, tls=tls), lines


@contextmanager
def _named(flags: str) -> Iterator[None]:
    """Say which flags ask for a socket that cannot be had."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{flags}: the server cannot listen there: {error.strerror or error}") from None
    except UnicodeError:
        raise click.ClickException(f"{flags}: the server cannot listen there: that is no host name") from None


def _tcp_url(scheme: str, listener: socket.socket, host: str | None = None) -> str:
    address, port = listener.getsockname()[:2]
    host = host or address
    return _url(scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _url(scheme: str, where: str) -> str:
    return f"export AVIATO_BASE_URL={scheme}://{where}"
