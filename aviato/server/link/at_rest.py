"""What a process 1 says of a sandbox that may go on in another place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What a process 1 has done, of which nothing is to happen again: the newest, in their order.

    Attributes:
        commands: ids of those that have run.
        calls: keys of others.
    """

    commands: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class AtRest:
    """What a process 1 says of its rest.

    Attributes:
        rests: whether there is nothing but files.
        done: what it knows.
    """

    rests: bool
    done: Done
