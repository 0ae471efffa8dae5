"""Secrets: where the server finds their values. They are held in memory, and only until their sandbox runs."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.options import SECRET_PREFIX, Secret
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from aviato.wire.sandboxes import SecretReference

LARGEST_BYTES = 64 << 10
"""Of one value. The kernel takes twice that for one variable."""
LARGEST_TOTAL_BYTES = 256 << 10
"""Of all values of a sandbox: they and its other variables go to every command."""


def take_variables(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Take the secrets out of an environment, so that no process that is started from it has them.

    Returns:
        Their values by their names.
    """
    variables = [variable for variable in environment if variable.startswith(SECRET_PREFIX)]
    if environment is os.environ:
        wipe_variables(SECRET_PREFIX)
    return {variable.removeprefix(SECRET_PREFIX): environment.pop(variable) for variable in variables}


def wipe_variables(prefix: str) -> None:
    """Overwrite the values of variables where the kernel put them, which /proc/PID/environ goes on to show."""
    known = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    start = prefix.encode()
    for number in itertools.count():
        address = known[number] if known else None
        if address is None:
            return
        text = ctypes.string_at(address)
        if text.startswith(start):
            name, _, value = text.partition(b"=")
            ctypes.memset(address + len(name) + 1, 0, len(value))


class Secrets:
    """The secrets of one server.

    Args:
        variables: those of store `env`, by their names; None where each caller sends its own, as on the embedded server.
        directory: of store `file`; None is none.
        shared: directories that sandboxes see, in which secrets must not lie.

    Raises:
        AviatoValidationError: the directory is none, or sandboxes would see it.
    """

    def __init__(
        self, variables: Mapping[str, str] | None = None, directory: str | None = None, shared: Iterable[str] = ()
    ) -> None:
        self._variables = variables
        self._directory = None if directory is None else _checked(directory, shared)

    async def find(self, wanted: Sequence[SecretReference], given: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that a sandbox gets.

        Args:
            wanted: by their names.
            given: values of store `env` that the caller sent, by their names.

        Raises:
            AviatoValidationError: there is no such secret, or it cannot be a variable; the message says which, and no value.
        """
        if given and self._variables is not None:
            raise _wrong("only the embedded server takes their values from its callers; this one has its own")
        unknown = sorted(given.keys() - {one.name for one in wanted if one.store == "env"})
        if unknown:
            raise _wrong(f"a value was sent for {unknown[0]!r}, which is not asked for", "secret_values")
        found: dict[str, str] = {}
        for one in wanted:
            secret = Secret(store=one.store, name=one.name, env_var=one.env_var)
            value = self._variable(secret, given) if secret.store == "env" else await self._file(secret)
            found[one.env_var] = _sound(secret, value)
        total = sum(len(value.encode()) for value in found.values())
        if total > LARGEST_TOTAL_BYTES:
            raise _wrong(f"they have {total} bytes together; at most {LARGEST_TOTAL_BYTES} fit")
        return found

    async def find_again(self, wanted: Sequence[SecretReference]) -> dict[str, str]:
        """As `find`, for a sandbox that an earlier server accepted and never started.

        Raises:
            SandboxUnavailableError: they are gone.
        """
        if self._variables is None and any(one.store == "env" for one in wanted):
            raise _gone("its secrets were only in the memory of the server that has ended; make the sandbox again")
        try:
            return await self.find(wanted, {})
        except AviatoValidationError as error:
            raise _gone(f"after a restart of the server: {error}") from None

    def _variable(self, secret: Secret, given: Mapping[str, str]) -> str:
        variables = given if self._variables is None else self._variables
        if secret.name in variables:
            return variables[secret.name]
        variable = SECRET_PREFIX + secret.name
        if self._variables is None:
            raise _wrong(f"the embedded server has none of its own, and the caller sent no {variable}")
        raise _wrong(f"the server's environment has no {variable}")

    async def _file(self, secret: Secret) -> bytes:
        if self._directory is None:
            raise _wrong("this server has no --secrets-dir for those of store 'file'")
        try:
            return await in_thread(_read, self._directory, secret.name)
        except OSError as error:
            why = "there is none" if error.errno == errno.ENOENT else str(error.strerror)
            raise _wrong(f"file {secret.name!r} of the --secrets-dir: {why}") from None


def _read(directory: str, name: str) -> bytes:
    """A file of the directory. It may be a link to another in it, as Kubernetes makes them, and to nowhere else."""
    top = os.path.realpath(directory)
    path = os.path.realpath(os.path.join(top, name))
    if os.path.commonpath((top, path)) != top:
        raise PermissionError(errno.EPERM, "it leads out of there")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        pieces = []
        while piece := os.read(fd, LARGEST_BYTES + 2):
            pieces.append(piece)
            if sum(map(len, pieces)) > LARGEST_BYTES + 2:
                raise OSError(errno.EFBIG, f"it has more than {LARGEST_BYTES} bytes")
    finally:
        os.close(fd)
    data = b"".join(pieces)
    # What editors and `echo` put behind it.
    return data[: -2 if data.endswith(b"\r\n") else -1] if data.endswith(b"\n") else data


def _sound(secret: Secret, value: str | bytes) -> str:
    """A value that can be an environment variable."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        size = len(text.encode())
    except UnicodeError:
        # Without what the codec says: it quotes the value.
        raise _wrong(f"{secret.name!r} of store {secret.store!r} holds bytes that are no UTF-8") from None
    if "\0" in text:
        raise _wrong(f"{secret.name!r} of store {secret.store!r} holds a NUL, which no variable can")
    if size > LARGEST_BYTES:
        raise _wrong(f"{secret.name!r} of store {secret.store!r} has {size} bytes; a variable can have {LARGEST_BYTES}")
    return text


def _checked(directory: str, shared: Iterable[str]) -> str:
    if not os.path.isdir(directory):
        raise AviatoValidationError(
            f"--secrets-dir {directory!r} is no directory", field_violations={"secrets_dir": "no directory"}
        )
    real = os.path.realpath(directory)
    for seen in map(os.path.realpath, shared):
        if os.path.commonpath((seen, real)) == seen:
            raise AviatoValidationError(
                f"--secrets-dir {directory!r} lies in {seen!r}, which sandboxes can read; move it elsewhere",
                field_violations={"secrets_dir": "sandboxes see it"},
            )
    return directory


def _wrong(why: str, field: str = "secrets") -> AviatoValidationError:
    return AviatoValidationError(f"secrets: {why}", field_violations={field: why})


def _gone(why: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(why, reason="secrets_gone", retryable=False)
