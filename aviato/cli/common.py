"""What the verbs that talk to a server share: options, the way in and out, text that is safe to print."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from aviato.exceptions import AviatoError, SandboxCommandTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

FAILED = 125
"""Exit status when aviato itself could not do it, as other container tools have it."""
TIMED_OUT = 124
"""Exit status when the command ran longer than `--timeout`, as timeout(1) has it."""
INTERRUPTED = 130

base_url = click.option("--base-url", metavar="URL", help="Server to talk to. [AVIATO_BASE_URL; else the embedded one]")
environment = click.option("-e", "--env", metavar="NAME=VALUE", multiple=True, help="Environment variable of the command.")
working_dir = click.option("-w", "--workdir", metavar="DIR", help="Directory in which the command starts.")
timeout = click.option("--timeout", type=float, metavar="S", help="Kill the command after so many seconds. [300]")
interactive = click.option("-i", "--interactive", is_flag=True, help="Pass standard input on to the command.")


def coroutine(function: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., NoReturn]:
    """A verb as a coroutine; what it returns is the exit status, and errors are one line."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> NoReturn:
        try:
            status = asyncio.run(function(*args, **kwargs))
        except SandboxCommandTimeoutError as error:
            click.echo(f"aviato: {error}", err=True)
            status = TIMED_OUT
        except (AviatoError, TypeError, ValueError) as error:
            click.echo(f"aviato: {printable(str(error))}", err=True)
            status = FAILED
        except KeyboardInterrupt:
            status = INTERRUPTED
        sys.exit(status)

    return run


def pairs(items: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` options as a mapping."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE", param_hint="--env")
        found[name] = value
    return found


def printable(text: str) -> str:
    """Text with control characters escaped: what code inside chose must not steer the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else repr(character)[1:-1] for character in text)
