"""`aviato sh`: a shell in a sandbox, on this terminal."""

from __future__ import annotations

from typing import Any

import click

from aviato.cli import common, flags
from aviato.cli.command_line import CommandLine, check_named

ID_PREFIX = "sb-"
SHELL = ("/bin/bash",)


@click.command(name="sh", cls=CommandLine)
@common.base_url
@flags.new_sandbox
@flags.environment
@flags.working_dir
@flags.user
@click.option("-i", "--interactive", is_flag=True, help="A shell reads what is typed: this is always so.")
@click.option("-t", "--tty", is_flag=True, help="A shell has a terminal: this is always so.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SANDBOX] [--] [COMMAND]...")
@common.coroutine
async def command(
    words: tuple[str, ...], *, base_url: str | None, user: str | None, interactive: bool, tty: bool, **new: Any
) -> int:
    """Open a shell, or COMMAND, on this terminal, in SANDBOX (its id) or in a new sandbox that ends with it.

    Keys go to the sandbox, Ctrl-C and Ctrl-Z too. Enter, `~`, `.` one after the other ends it in any case. The exit status is
    the shell's. TERM is this terminal's, unless -e says otherwise.
    """
    from aviato.aio.async_client import AsyncClient
    from aviato.cli.descriptors import check_terminal
    from aviato.cli.tty import attach, in_new_sandbox

    sandbox_id = words[0] if words and words[0].startswith(ID_PREFIX) else None
    program = words if sandbox_id is None else CommandLine.program(words[1:], behind="SANDBOX")
    check_named(program)
    options = flags.sandbox_options(new)
    cwd, env = options.get("working_dir"), options.get("environment_variables", {})
    if sandbox_id is not None and options.keys() - {"working_dir", "environment_variables"}:
        raise click.UsageError(
            "--image, --tag and limits are for a new sandbox; of one that exists only -e, --env-file, -u and -w"
        )
    check_terminal("`aviato sh`", "in a pipe use `aviato run -i` or `aviato exec -i`")
    async with AsyncClient(base_url=base_url) as client:
        if sandbox_id is None:
            return await in_new_sandbox(client, program or SHELL, options, user=user)
        return await attach(await client.from_id(sandbox_id), program or SHELL, cwd=cwd, env=env, user=user)
