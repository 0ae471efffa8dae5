"""`aviato exec`: a command in a sandbox that exists."""

from __future__ import annotations

from typing import Any

import click

from aviato.cli import common


@click.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@common.base_url
@common.environment
@common.working_dir
@common.timeout
@common.interactive
@click.option("-d", "--detach", is_flag=True, help="Leave the command running and print its id, for `aviato attach`.")
@click.argument("sandbox")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@common.coroutine
async def command(
    sandbox: str,
    command: tuple[str, ...],
    *,
    base_url: str | None,
    env: tuple[str, ...],
    workdir: str | None,
    timeout: float | None,
    interactive: bool,
    detach: bool,
) -> int:
    """Run COMMAND in SANDBOX (its id) and exit with its status."""
    from aviato.async_client import AsyncClient
    from aviato.cli.relay import relay

    if command[0] == "--":
        command = command[1:]
    if detach and interactive:
        raise click.UsageError("--interactive is for a command in the foreground")
    options: dict[str, Any] = {"env": common.pairs(env), "cwd": workdir, "timeout_seconds": timeout}
    async with AsyncClient(base_url=base_url) as client:
        found = await client.from_id(sandbox)
        if not detach:
            return await relay(found, command, interactive=interactive, **options)
        process = found.spawn(command, detach=True, **options)
        if not await process.started():
            await process
        click.echo(process.exec_id)
        return 0
