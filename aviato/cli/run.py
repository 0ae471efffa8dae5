"""`aviato run`: a command in a new sandbox."""

from __future__ import annotations

from typing import Any

import click

from aviato.cli import common


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@common.base_url
@click.option("-d", "--detach", is_flag=True, help="Leave a detached sandbox behind and print its id.")
@click.option("--image", metavar="IMAGE", help="host, python:3.N or dir:PATH. [the machine's own programs]")
@click.option("--tag", metavar="TAG", multiple=True, help="Tag of the sandbox; may be repeated.")
@click.option("--lifetime", type=float, metavar="S", help="End the sandbox after so many seconds.")
@common.environment
@common.working_dir
@common.timeout
@common.interactive
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common.coroutine
async def command(
    command: tuple[str, ...],
    *,
    base_url: str | None,
    detach: bool,
    image: str | None,
    tag: tuple[str, ...],
    lifetime: float | None,
    env: tuple[str, ...],
    workdir: str | None,
    timeout: float | None,
    interactive: bool,
) -> int:
    """Run COMMAND in a new sandbox and exit with its status.

    With --detach COMMAND becomes the sandbox's main command, whose end ends it; without a COMMAND the sandbox lives until it
    is stopped.
    """
    from aviato.async_client import AsyncClient

    if not command and not detach:
        raise click.UsageError("give a COMMAND, or --detach for a sandbox to use later")
    if detach and (interactive or timeout is not None):
        raise click.UsageError("--interactive and --timeout are for a command in the foreground")
    options: dict[str, Any] = {"container_image": image, "tags": tag, "max_lifetime_seconds": lifetime}
    options |= {"environment_variables": common.pairs(env), "working_dir": workdir}
    async with AsyncClient(base_url=base_url) as client:
        if detach:
            if command:
                options |= {"command": command[0], "args": list(command[1:])}
            sandbox = await client.sandbox(**options, detached=True)
            click.echo(sandbox.sandbox_id)
            return 0
        from aviato.cli.relay import relay

        async with await client.sandbox(**options) as sandbox:
            return await relay(sandbox, command, interactive=interactive, timeout_seconds=timeout)
