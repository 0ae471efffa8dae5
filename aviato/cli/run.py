"""`aviato run`: a command in a new sandbox."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from aviato.cli import common, flags
from aviato.cli.command_line import CommandLine, check_named

if TYPE_CHECKING:
    from aviato.aio.async_client import AsyncClient

NOT_FOUND = 127
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9._-]+)*:[\w.-]+", re.ASCII)
"""What other tools take as an image, in front of the command."""


@click.command(name="run", cls=CommandLine)
@common.base_url
@click.option("-d", "--detach", is_flag=True, help="Leave a detached sandbox behind and print its id.")
@flags.new_sandbox
@flags.environment
@flags.working_dir
@flags.user
@flags.timeout
@flags.interactive
@flags.tty
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common.coroutine
async def command(
    command: tuple[str, ...],
    *,
    base_url: str | None,
    detach: bool,
    user: str | None,
    timeout_seconds: float | None,
    interactive: bool,
    tty: bool,
    **new: Any,
) -> int:
    """Run COMMAND in a new sandbox and exit with its status.

    Options behind COMMAND are its own. With --detach COMMAND becomes the sandbox's main command, whose end ends it; without a
    COMMAND the sandbox lives until it is stopped.
    """
    from aviato.aio.async_client import AsyncClient

    if not command and not detach:
        raise click.UsageError("give a COMMAND, or --detach for a sandbox to use later")
    if detach and (interactive or tty or timeout_seconds is not None):
        raise click.UsageError("--interactive, --tty and --timeout are for a command in the foreground")
    if detach and user is not None:
        raise click.UsageError("--user is for a command in the foreground; later ones take `aviato exec --user`")
    check_named(command)
    common.check_tty(interactive, tty, timeout_seconds)
    options = flags.sandbox_options(new)
    async with AsyncClient(base_url=base_url) as client:
        if detach:
            return await _leave(client, command, options)
        if tty:
            from aviato.cli.tty import in_new_sandbox

            return await in_new_sandbox(client, command, options, user=user)
        from aviato.cli.relay import relay

        async with await client.sandbox(**options) as sandbox:
            common.tell(sandbox)
            with common.waiting(sandbox):
                status = await relay(sandbox, command, interactive=interactive, timeout_seconds=timeout_seconds, user=user)
        if status == NOT_FOUND and _IMAGE.fullmatch(command[0]):
            click.echo(f"aviato: the first word is the COMMAND; an image is given by --image {command[0]}", err=True)
        return status


async def _leave(client: AsyncClient, command: tuple[str, ...], options: dict[str, Any]) -> int:
    if command:
        options |= {"command": command[0], "args": list(command[1:])}
    sandbox = await client.sandbox(**options, detached=True)
    common.tell(sandbox)
    click.echo(sandbox.sandbox_id)
    return 0
