"""`aviato exec`: a command in a sandbox that exists."""

from __future__ import annotations

from typing import Any

import click

from aviato.cli import common, flags
from aviato.cli.command_line import CommandLine


@click.command(name="exec", cls=CommandLine)
@common.base_url
@flags.environment
@flags.working_dir
@flags.user
@flags.timeout
@flags.interactive
@flags.tty
@click.option("-d", "--detach", is_flag=True, help="Leave the command running and print its id, for `aviato attach`.")
@click.argument("sandbox")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@common.coroutine
async def command(
    sandbox: str,
    words: tuple[str, ...],
    *,
    base_url: str | None,
    working_dir: str | None,
    user: str | None,
    timeout_seconds: float | None,
    interactive: bool,
    tty: bool,
    detach: bool,
    **given: Any,
) -> int:
    """Run COMMAND in SANDBOX (its id) and exit with its status."""
    from aviato.aio.async_client import AsyncClient

    program = CommandLine.program(words, behind="SANDBOX")
    if not program:
        raise click.UsageError("give a COMMAND behind SANDBOX")
    if detach and (interactive or tty):
        raise click.UsageError("--interactive and --tty are for a command in the foreground")
    common.check_tty(interactive, tty, timeout_seconds)
    options: dict[str, Any] = {"env": flags.variables(given), "cwd": working_dir, "user": user}
    async with AsyncClient(base_url=base_url) as client:
        found = await client.from_id(sandbox)
        if tty:
            from aviato.cli.tty import attach

            return await attach(found, program, **options)
        options["timeout_seconds"] = timeout_seconds
        if not detach:
            from aviato.cli.relay import relay

            return await relay(found, program, interactive=interactive, **options)
        process = found.spawn(program, detach=True, **options)
        if not await process.started():
            await process
        click.echo(process.exec_id)
        return 0
