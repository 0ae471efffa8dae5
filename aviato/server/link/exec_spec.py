"""A command as process 1 is asked to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LATER_FIELDS = ("terminal", "input", "cases", "user")
"""Of a command, that came after the first version; each is also the name of a feature."""


@dataclass(frozen=True, kw_only=True)
class ExecSpec:
    """A command to run.

    Attributes:
        exec_id: at most one run ever per id.
        command: argv as given.
        environment: added to the sandbox's own; wins over it.
        working_dir: absolute, or counted from the sandbox's directory; None is the sandbox's directory.
        stdin: False is /dev/null, True a pipe.
        input: all that stdin gives, in base64; None is what comes by `write_stdin`.
        timeout_seconds: None is no limit.
        main: its exit ends the sandbox.
        terminal: width and height of a terminal of its own, which is its stdin, stdout and stderr; None is pipes.
        cases: what is asked of a program that runs cases, as `wire.execution.Cases` has it; None is any other command.
        user: a name or number, or two with a colon, the second of a group; None is who commands of the sandbox are.
    """

    exec_id: str
    command: list[str]
    environment: dict[str, str]
    working_dir: str | None
    stdin: bool
    timeout_seconds: float | None
    main: bool = False
    terminal: tuple[int, int] | None = None
    input: str | None = None
    cases: dict[str, Any] | None = None
    user: str | None = None

    def fields(self) -> dict[str, Any]:
        """For process 1; an earlier one is not asked for what it does not know."""
        return {name: value for name, value in vars(self).items() if name not in LATER_FIELDS or value is not None}
