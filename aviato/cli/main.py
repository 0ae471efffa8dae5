"""`aviato`: the group of verbs. A verb's module is imported when the verb is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from aviato import __version__
from aviato.cli import descriptors
from aviato.system import standard_streams
from aviato.values.suggestions import closest

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "run": "Run a command in a new sandbox.",
    "exec": "Run a command in a sandbox that exists.",
    "attach": "Read a command that was left running in a sandbox.",
    "sh": "Open a shell in a sandbox.",
    "ls": "List sandboxes.",
    "stop": "Stop sandboxes.",
    "image": "Pull, build, list and remove images.",
    "serve": "Serve sandboxes to others.",
    "kubernetes": "Print manifests of a cluster that fit a server.",
    "bench": "Measure how fast sandboxes are on this machine.",
    "doctor": "Say what this machine gives, and how to repair what is missing.",
}
"""Verb → its line of help. The verb `x` is the command `command` of `aviato.cli.x`."""

SYNONYMS = {
    "ps": "ls",
    "list": "ls",
    "status": "ls",
    "inspect": "ls",
    "rm": "stop",
    "remove": "stop",
    "delete": "stop",
    "kill": "stop",
    "terminate": "stop",
    "shell": "sh",
    "ssh": "sh",
    "bash": "sh",
    "connect": "sh",
    "logs": "attach",
    "images": "image ls",
    "pull": "image pull",
    "prefetch": "image prefetch",
    "load": "image import",
    "build": "image build",
    "push": "image push",
    "export": "image export",
    "save": "image export",
    "rmi": "image rm",
    "prune": "image prune",
    "create": "run -d",
    "start": "run -d",
    "spawn": "run -d",
    "launch": "run -d",
    "server": "serve",
    "daemon": "serve",
    "up": "serve",
    "benchmark": "bench",
    "info": "doctor",
    "check": "doctor",
    "version": "--version",
}
"""Verbs of other tools → what they are here."""


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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb of a command line, or what was meant in its place."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            meant = SYNONYMS.get(name) or closest(name, VERBS)
            hint = f"did you mean `aviato {meant}`?" if meant else f"there are {', '.join(VERBS)}."
            raise click.UsageError(f"there is no verb {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing a verb."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aviato")
def cli() -> None:
    """Run code that a model wrote in real sandboxes."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point."""
    standard_streams.hold()
    descriptors.be_patient()
    try:
        cli(arguments, prog_name="aviato")
    except OSError as error:  # All others are some verb's, and told there.
        descriptors.leave(error)
