"""What is known of a sandbox without a call: as the server said last."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from datetime import datetime

    from aviato.calls.sandbox_state import SandboxState


class Limit(NamedTuple):
    """A limit of a sandbox: None is unlimited; strength is `hard`, `watched` or `none`."""

    value: float | None
    strength: str


class SandboxProperties:
    """The properties of a sandbox; before the server has said anything they are empty."""

    _state: SandboxState

    @property
    def sandbox_id(self) -> str:
        """Known from construction: the client makes it."""
        return self._state.sandbox_id

    @property
    def status(self) -> SandboxStatus:
        """As last seen; `get_status()` asks.

        It follows by itself that the sandbox runs, and that it has ended by its main command, its lifetime or its idle timeout,
        or while a call was under way; of any other end the next call tells.
        """
        info = self._state.last_seen
        if info is None:
            is_pending = self._state.on_its_way or self._state.waits_for is not None
            return SandboxStatus.PENDING if is_pending else SandboxStatus.UNSPECIFIED
        return info.status

    @property
    def status_reason(self) -> str | None:
        """Why it ended, such as `stopped`, `exited` or `lifetime`; of one that waits for what: `pulling` or `building` of its
        image, or `queued: place 3 …`.
        """
        return self._state.status_reason

    @property
    def status_updated_at(self) -> datetime | None:
        """When the status changed last."""
        info = self._state.last_seen
        return None if info is None else _moment(info.status_updated_at)

    @property
    def created_at(self) -> datetime | None:
        """When the server accepted it."""
        info = self._state.last_seen
        return None if info is None else _moment(info.created_at)

    @property
    def started_at(self) -> datetime | None:
        """When it began to run."""
        info = self._state.last_seen
        return None if info is None else _moment(info.started_at)

    @property
    def returncode(self) -> int | None:
        """Of the main command, once that has ended."""
        info = self._state.last_seen
        return None if info is None else info.returncode

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, those of the defaults first."""
        info, create = self._state.last_seen, self._state.config.create
        return tuple(info.tags if info is not None else (create or {}).get("tags", ()))

    @property
    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        info, create = self._state.last_seen, self._state.config.create
        return dict(info.annotations if info is not None else (create or {}).get("annotations", {}))

    @property
    def limits(self) -> dict[str, Limit]:
        """Each limit that holds for it, with its strength."""
        info = self._state.last_seen
        return {} if info is None else {name: Limit(limit.value, limit.strength) for name, limit in info.limits.items()}

    @property
    def unkept_promises(self) -> tuple[str, ...]:
        """What the threat model promises and this sandbox's backend does not keep; empty on the local backend."""
        info = self._state.last_seen
        return () if info is None else tuple(info.unkept_promises)

    @property
    def exec_stats(self) -> dict[str, int]:
        """`exec_count`, `completed_ok`, `completed_nonzero`, `failures`, as counted by this object."""
        return self._state.stats.exec_stats

    @property
    def execution_stats(self) -> dict[str, int]:
        """`total`, `successes`, `failures`, `errors`: the same counts by their other names."""
        return self._state.stats.execution_stats

    @property
    def runway_id(self) -> str | None:
        """The pool that it was placed in."""
        info = self._state.last_seen
        return None if info is None else info.runway_id

    @property
    def tower_id(self) -> str | None:
        """The node that it was placed on."""
        info = self._state.last_seen
        return None if info is None else info.tower_id

    @property
    def tower_group_id(self) -> str | None:
        """The group of the node that it was placed on."""
        info = self._state.last_seen
        return None if info is None else info.tower_group_id


def _moment(seconds: float | None) -> datetime | None:
    from datetime import UTC, datetime

    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
