"""`aviato stop`: the end of sandboxes."""

from __future__ import annotations

import asyncio

import click

from aviato.cli import common, numbers
from aviato.exceptions import AviatoError


@click.command(name="stop")
@common.base_url
@click.option("--grace", type=numbers.SECONDS, default=10.0, metavar="S", help="Seconds between SIGTERM and SIGKILL. [10]")
@click.argument("sandboxes", nargs=-1, required=True, metavar="SANDBOX...")
@common.coroutine
async def command(sandboxes: tuple[str, ...], *, base_url: str | None, grace: float) -> int:
    """Stop sandboxes by their ids and print each that has ended."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:

        async def stop(sandbox_id: str) -> bool:
            try:
                await (await client.from_id(sandbox_id)).stop(grace)
            except AviatoError as error:
                click.echo(f"aviato: {common.printable(str(error))}", err=True)
                return False
            click.echo(sandbox_id)
            return True

        stopped = await asyncio.gather(*(stop(sandbox_id) for sandbox_id in sandboxes))
    return 0 if all(stopped) else common.FAILED
