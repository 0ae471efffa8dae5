"""`aviato`: the group of verbs. A verb's module is imported when the verb is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "run": "Run a command in a new sandbox.",
    "exec": "Run a command in a sandbox that exists.",
    "attach": "Read a command that was left running in a sandbox.",
    "sh": "Open a shell in a sandbox.",
    "ls": "List sandboxes.",
    "stop": "Stop sandboxes.",
    "serve": "Serve sandboxes to others.",
    "bench": "Measure how fast sandboxes are on this machine.",
    "doctor": "Say what this machine gives, and how to repair what is missing.",
}
"""Verb → its line of help. The verb `x` is the command `command` of `aviato.cli.x`."""


class Verbs(click.Group):
    """A group that knows its verbs without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"aviato.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing a verb."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aviato", prog_name="aviato")
def cli() -> None:
    """Run code that a model wrote in real sandboxes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point."""
    cli(arguments, prog_name="aviato")
