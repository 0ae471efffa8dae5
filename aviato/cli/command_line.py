"""The command lines of the verbs that run a program: options of ours first, then the program, with options of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from aviato.cli import common
from aviato.values.suggestions import closest

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_PRIVILEGES = "a sandbox has no privileges and no devices of its machine; leave it out"
OWN_NETWORK = "a sandbox has a network of its own; --network NAME says what it may reach"
REFUSED = {
    "--name": "a sandbox has an id and tags; give --tag NAME, and find it by `aviato ls --tag NAME`",
    "--label": "give --tag TEXT",
    "--mount": "give -v FILE:PATH:ro for a file; of a directory -v says how to copy it in",
    "--volumes-from": "a sandbox shares no files with another",
    "--tmpfs": "all files of a sandbox are temporary; leave it out",
    "--entrypoint": "an entry point is not run; the COMMAND is what runs",
    "--privileged": NO_PRIVILEGES,
    "--cap-add": NO_PRIVILEGES,
    "--cap-drop": NO_PRIVILEGES,
    "--device": NO_PRIVILEGES,
    "--security-opt": NO_PRIVILEGES,
    "--gpus": "a sandbox has no GPU",
    "--runtime": "the server's backend decides how sandboxes are made; see `aviato serve --help`",
    "--hostname": OWN_NETWORK,
    "--add-host": OWN_NETWORK,
    "--dns": OWN_NETWORK,
    "--link": OWN_NETWORK,
    "--expose": "give -p PORT",
    "--publish-all": "give -p PORT for each port",
    "--memory-swap": "swap counts as memory; give --memory",
    "--cpu-shares": "give --cpus",
    "--cpuset-cpus": "give --cpus",
    "--stop-timeout": "give `aviato stop --grace S`",
    "--restart": "a sandbox whose main command has ended is over; leave it out",
    "--read-only": "what a sandbox writes ends with it; leave it out",
    "--init": "every sandbox has a process 1 that reaps; leave it out",
    "--pull": "name the image by --image",
    "--platform": "programs run as this machine's processor has them; leave it out",
    "--cidfile": "`aviato run -d` prints the id",
    "--detach-keys": "Enter, `~`, `.` ends a terminal; leave it out",
}
"""Options of docker's that there are not → what to do instead."""
SHORT = {"-l": "--label", "-P": "--publish-all", "-c": "--cpu-shares"}
SYNONYMS = {
    "--container-image": "--image",
    "--environment": "--env",
    "--environment-variables": "--env",
    "--envs": "--env",
    "--cwd": "--workdir",
    "--working-dir": "--workdir",
    "--dir": "--workdir",
    "--timeout-seconds": "--timeout",
    "--time-limit": "--timeout",
    "--max-lifetime": "--lifetime",
    "--ttl": "--lifetime",
    "--mem": "--memory",
    "--cpu": "--cpus",
    "--ports": "--publish",
    "--port": "--publish",
    "--internet": "--network",
    "--background": "--detach",
    "--stdin": "--interactive",
    "--terminal": "--tty",
    "--server": "--base-url",
    "--url": "--base-url",
    "--host": "--base-url",
}
"""Names that other tools, and our own API, have for an option."""


class WrongCommandLine(click.UsageError):
    """A command line that cannot be meant, of a verb whose exit status is a program's."""

    exit_code = common.FAILED


class CommandLine(click.Command):
    """A verb whose exit status is a program's, so that its own failures have 125, as other container tools have it.

    The first word that is no option begins the program, and everything behind it is the program's own; `--` does the same.
    """

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; an option that there is not is never taken for a program."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(self.unknown(error.option_name), ctx) from None

    def unknown(self, option: str) -> str:
        """What is wrong with an option that there is not, and what to do instead."""
        there = [name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)]
        if (instead := REFUSED.get(SHORT.get(option, option))) is not None:
            return f"{option} is not available: {instead}."
        meant = closest(option, (name for name in there if name.startswith("--")), SYNONYMS)
        hint = f"did you mean {meant}?" if meant else "a program whose name begins with - comes behind `--`."
        return f"there is no option {option}; {hint}"

    @staticmethod
    def program(words: tuple[str, ...], *, behind: str) -> tuple[str, ...]:
        """The words behind a SANDBOX as a program.

        Raises:
            click.UsageError: they begin with an option, which belongs before the SANDBOX.
        """
        if words[:1] == ("--",):
            words = words[1:]
        elif words and words[0].startswith("-"):
            why = f"{words[0]} stands behind {behind}, where the COMMAND begins; options come before {behind}, "
            raise click.UsageError(f"{why}and a program whose name begins with - behind `--`.")
        check_named(words)
        return words

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click's."""
        with _status():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's."""
        with _status():
            return super().invoke(ctx)


def check_named(words: tuple[str, ...]) -> None:
    """See whether a command line names a program at all.

    Raises:
        click.UsageError: its first word is empty, as of a variable that is not set.
    """
    if words[:1] == ("",):
        raise click.UsageError("the first word of the COMMAND, its program, is empty")


@contextmanager
def _status() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise WrongCommandLine(error.format_message(), error.ctx) from None
