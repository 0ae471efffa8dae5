"""`aviato ls`: the sandboxes of a server."""

from __future__ import annotations

import json
import time

import click

from aviato.cli import common
from aviato.values.text import line


@click.command(name="ls")
@common.base_url
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only sandboxes with this tag; all of several must match.")
@click.option("--status", metavar="STATUS", multiple=True, help="Only sandboxes in this status; any of several.")
@click.option("-a", "--all", "everything", is_flag=True, help="Ended ones too.")
@click.option("-q", "--quiet", is_flag=True, help="Ids only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@common.coroutine
async def command(
    *, base_url: str | None, tags: tuple[str, ...], status: tuple[str, ...], everything: bool, quiet: bool, as_json: bool
) -> int:
    """List sandboxes, oldest first."""
    from aviato.aio.async_client import AsyncClient

    async with AsyncClient(base_url=base_url) as client:
        infos = [sandbox.info for sandbox in await client.list(tags=tags, status=status, include_stopped=everything)]
    found = [info for info in infos if info is not None]
    if quiet:
        for info in found:
            click.echo(line(info.sandbox_id))
    elif as_json:
        for info in found:
            click.echo(json.dumps(info.model_dump(mode="json")))
    else:
        rows: list[tuple[str, ...]] = [("SANDBOX", "STATUS", "AGE", "IMAGE", "TAGS")]
        for info in found:
            why = info.status_reason if info.queue is None else f"place {info.queue.position} in the queue"
            state = f"{info.status} ({why})" if why else str(info.status)
            cells = (info.sandbox_id, state, common.age(time.time() - info.created_at), info.image or "", ", ".join(info.tags))
            rows.append(tuple(map(line, cells)))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            click.echo("  ".join([*padded, row[4]]).rstrip())
    return 0
