"""`aviato attach`: the output and the status of a command that was begun elsewhere."""

from __future__ import annotations

import click

from aviato.cli import common, numbers
from aviato.cli.command_line import CommandLine


@click.command(name="attach", cls=CommandLine, context_settings={"allow_interspersed_args": True})
@common.base_url
@click.option(
    "--stdout-offset", type=numbers.BYTES, default=0, metavar="BYTES", help="Leave out so much of standard output. [0]"
)
@click.option(
    "--stderr-offset", type=numbers.BYTES, default=0, metavar="BYTES", help="Leave out so much of standard error. [0]"
)
@click.argument("sandbox")
@click.argument("exec_id", metavar="EXEC")
@common.coroutine
async def command(sandbox: str, exec_id: str, *, base_url: str | None, stdout_offset: int, stderr_offset: int) -> int:
    """Read the command EXEC of SANDBOX (their ids) to its end and exit with its status. Ctrl-C leaves it running."""
    from aviato.aio.async_client import AsyncClient
    from aviato.cli.relay import follow

    async with AsyncClient(base_url=base_url) as client:
        found = await client.from_id(sandbox)
        return await follow(found, exec_id, stdout_offset=stdout_offset, stderr_offset=stderr_offset)
