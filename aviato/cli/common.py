"""What the verbs that talk to a server share: options, the way in and out, text that is safe to print."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import re
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click

from aviato.cli import descriptors
from aviato.exceptions import AviatoError, SandboxCommandTimeoutError
from aviato.log import logger
from aviato.policy import retry
from aviato.values.text import printable as printable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from aviato.aio.async_sandbox import AsyncSandbox

FAILED = descriptors.FAILED
"""Exit status when aviato itself could not do it, as other container tools have it."""
TIMED_OUT = 124
"""Exit status when the command ran longer than `--timeout`, as timeout(1) has it."""
INTERRUPTED = 130
SILENT_SECONDS = 1.0
"""So long a verb that tries again says nothing of it."""

_RESOURCE = re.compile(r"resources: (?:(?:limits|requests)\[)?'(\w+)'\]?")
_RESOURCE_FLAGS = {"memory": "--memory", "cpu": "--cpus", "processes": "--pids-limit"}
_SAME = {
    "cwd": "working_dir",
    "env": "environment_variables",
    "egress_mode": "network",
    "exec_timeout_seconds": "timeout_seconds",
}
"""Names that the API has for what another parameter of a verb means."""

base_url = click.option("--base-url", metavar="URL", help="Server to talk to. [AVIATO_BASE_URL; else the embedded one]")


class _Told(logging.Handler):
    """Says on standard error what a user must know while a verb works: warnings, and once that something is tried again."""

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = time.monotonic() + SILENT_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        """As logging has it."""
        trying = record.module == retry.__name__.rpartition(".")[2] and time.monotonic() > self._silent_until
        if trying:
            self._silent_until = math.inf
        if trying or record.levelno >= logging.WARNING:
            click.echo(f"aviato: {printable(record.getMessage())}", err=True)


def coroutine(function: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., NoReturn]:
    """A verb as a coroutine; what it returns is the exit status, and errors are one line."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> NoReturn:
        told, level = _Told(), logger.level
        logger.addHandler(told)
        logger.setLevel(logging.INFO)
        try:
            status = asyncio.run(function(*args, **kwargs))
        except SandboxCommandTimeoutError as error:
            click.echo(f"aviato: {printable(in_flags(str(error)))}", err=True)
            status = TIMED_OUT
        except (AviatoError, TypeError, ValueError) as error:
            click.echo(f"aviato: {printable(in_flags(str(error)))}", err=True)
            status = FAILED
        except descriptors.StreamError as error:
            descriptors.leave(error)
        except KeyboardInterrupt:
            status = INTERRUPTED
        finally:
            logger.removeHandler(told)
            logger.setLevel(level)
        sys.exit(status)

    return run


def in_flags(text: str) -> str:
    """What the API says of its parameters, said of the flags of the verb that runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return text
    flags = {str(one.name): max(one.opts, key=len) for one in context.command.params if one.opts[0].startswith("-")}
    flags |= {name: flags[same] for name, same in _SAME.items() if same in flags}
    text = _RESOURCE.sub(lambda found: _RESOURCE_FLAGS.get(found[1], found[0]), text)
    # Some parameters are ordinary words elsewhere in a sentence.
    any_of = "|".join(flags)
    named = re.compile(rf"^({any_of})\b=?|\b({any_of})=|\b((?={any_of})\w+_\w+)\b")
    return named.sub(lambda found: flags.get(found[1] or found[2] or found[3], found[0]), text)


def check_tty(interactive: bool, tty: bool, timeout_seconds: float | None) -> None:
    """See whether a command can have a terminal that asks for one.

    Raises:
        click.UsageError: it cannot have one like that.
        AviatoValidationError: there is none here.
    """
    if not tty:
        return
    from aviato.cli.descriptors import check_terminal

    if not interactive:
        raise click.UsageError("--tty is there only with --interactive: give -it, or leave -t out")
    if timeout_seconds is not None:
        raise click.UsageError("--timeout is for a command without a terminal; leave -t out")
    check_terminal("--tty", "in a pipe leave -t out")


def age(seconds: float) -> str:
    """How long ago, in one word of a table."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


@contextmanager
def waiting(sandbox: AsyncSandbox) -> Iterator[None]:
    """While a command is run in a new sandbox: where it waits for a place is said, once."""

    async def look() -> None:
        await asyncio.sleep(SILENT_SECONDS)
        with suppress(AviatoError):  # The command meets it, too.
            await sandbox.get_status()
        if sandbox.info is not None and sandbox.info.queue is not None:
            where = f"place {sandbox.info.queue.position} in the server's queue"
            click.echo(f"aviato: waiting for a sandbox: {where}", err=True)

    looking = asyncio.ensure_future(look())
    try:
        yield
    finally:
        looking.cancel()


def tell(sandbox: AsyncSandbox) -> None:
    """Say on standard error what a new sandbox has that its caller must know: where its ports are, which limit is not kept."""
    if (info := sandbox.info) is None:
        return
    for port, url in info.service_urls.items():
        click.echo(f"aviato: port {port} is at {url}", err=True)
    cpu = info.limits.get("cpu")
    if cpu is not None and cpu.value is not None and cpu.strength == "none":
        click.echo("aviato: --cpus is not kept on this machine; `aviato doctor` says why", err=True)
