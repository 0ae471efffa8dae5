"""Option enums and classes that users pass in: frozen, keyword-only, checked when built."""

from __future__ import annotations

from enum import StrEnum


class SandboxStatus(StrEnum):
    """Where a sandbox is in its life. Members equal their lower-case names.

    `PENDING` covers everything from acceptance to `RUNNING`, a place in the queue included; our backends never report
    `CREATING`.
    """

    PENDING = "pending"
    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    TERMINATING = "terminating"
    COMPLETED = "completed"
    FAILED = "failed"
    TERMINATED = "terminated"
    UNSPECIFIED = "unspecified"

    @classmethod
    def _missing_(cls, value: object) -> SandboxStatus:
        raise ValueError(f"status {value!r} is none of {', '.join(cls)}")

    @property
    def is_terminal(self) -> bool:
        """Whether the sandbox has ended and will not run again."""
        return self in _TERMINAL


_TERMINAL = frozenset({SandboxStatus.COMPLETED, SandboxStatus.FAILED, SandboxStatus.TERMINATED})


class Serialization(StrEnum):
    """How a remote function's arguments and result cross.

    `JSON` as JSON has them: tuples become lists and the keys of dicts become text. `PICKLE` keeps Python's own data types; its
    results may hold those, `datetime`, `Decimal` and the classes named in `result_types`, and nothing else.
    """

    JSON = "json"
    PICKLE = "pickle"

    @classmethod
    def _missing_(cls, value: object) -> Serialization:
        raise ValueError(f"serialization {value!r} is none of {', '.join(cls)}")
