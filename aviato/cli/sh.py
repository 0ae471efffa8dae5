"""`aviato sh`: a shell in a sandbox, on this terminal."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from aviato.cli import common

if TYPE_CHECKING:
    from aviato.async_client import AsyncClient, AsyncSandbox

ID_PREFIX = "sb-"
STOP_SECONDS = 3.0


@click.command(name="sh", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@common.base_url
@click.option("--image", metavar="IMAGE", help="Of a new sandbox: host, python:3.N or dir:PATH.")
@click.option("--tag", metavar="TAG", multiple=True, help="Tag of a new sandbox; may be repeated.")
@common.environment
@common.working_dir
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SANDBOX] [--] [COMMAND]...")
@common.coroutine
async def command(
    words: tuple[str, ...],
    *,
    base_url: str | None,
    image: str | None,
    tag: tuple[str, ...],
    env: tuple[str, ...],
    workdir: str | None,
) -> int:
    """Open a shell, or COMMAND, on this terminal, in SANDBOX (its id) or in a new sandbox that ends with it.

    Keys go to the sandbox, Ctrl-C and Ctrl-Z too. Enter, `~`, `.` one after the other ends it in any case. The exit status is
    the shell's. TERM is this terminal's, unless -e says otherwise.
    """
    from aviato.async_client import AsyncClient
    from aviato.cli.tty import attach, check_terminal

    check_terminal()
    sandbox_id = words[0] if words and words[0].startswith(ID_PREFIX) else None
    rest = words[1:] if sandbox_id is not None else words
    rest = rest[1:] if rest[:1] == ("--",) else rest
    options: dict[str, Any] = {"env": {**_kind(), **common.pairs(env)}, "cwd": workdir}
    if sandbox_id is not None and (image is not None or tag):
        raise click.UsageError("--image and --tag are for a new sandbox")
    async with AsyncClient(base_url=base_url) as client:
        sandbox = await _sandbox(client, sandbox_id, image, tag)
        try:
            return await attach(sandbox, rest or ("/bin/bash",), **options)
        finally:
            if sandbox_id is None:
                with suppress(TimeoutError):  # the client's own end says what becomes of it
                    async with asyncio.timeout(STOP_SECONDS):
                        await sandbox.stop(0, missing_ok=True)


def _kind() -> dict[str, str]:
    """What our terminal understands is what programs may send."""
    kind = os.environ.get("TERM")
    return {"TERM": kind} if kind else {}


async def _sandbox(client: AsyncClient, sandbox_id: str | None, image: str | None, tag: tuple[str, ...]) -> AsyncSandbox:
    if sandbox_id is not None:
        return await client.from_id(sandbox_id)
    return await client.sandbox(container_image=image, tags=tag)
