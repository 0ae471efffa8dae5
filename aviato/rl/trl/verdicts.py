"""From outcomes to what a TRL trainer takes: numbers, and no number where there is no verdict."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.log import logger
from aviato.rl.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OnInfrastructure = Literal["auto", "none", "raise"]
FIRST_TO_EXCLUDE = (1, 6)
_WORDS = ("auto", "none", "raise")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What verdicts are worth, and what becomes of those that are none."""

    passed: float = 1.0
    failed: float = 0.0
    skipped: float = 0.0
    on_infrastructure: OnInfrastructure = "auto"

    def __post_init__(self) -> None:
        if self.on_infrastructure not in _WORDS:
            raise AviatoValidationError(f"on_infrastructure must be one of {', '.join(_WORDS)}, got {self.on_infrastructure!r}")

    def rewards(self, name: str, outcomes: Sequence[Outcome], log_metric: Any = None) -> list[float | None]:
        """One reward for each outcome.

        Args:
            name: of the reward function.
            outcomes: of one call.
            log_metric: what the trainer handed over under this name; it leads to the trainer's other reward functions.

        Raises:
            AviatoError: what went wrong with the infrastructure, where the trainer would count None as a number.
        """
        lost = [outcome for outcome in outcomes if outcome.is_infrastructure]
        if lost:
            told = f"{name}: {len(lost)} of {len(outcomes)} completions have no verdict"
            reason = self._reason_to_raise(log_metric)
            if reason:
                error = lost[0].error or SandboxUnavailableError(lost[0].message)
                error.add_note(f"{told}. {reason}")
                raise error
            logger.warning("%s: %s", told, lost[0].message)
        return [outcome.reward(self.passed, self.failed, None, self.skipped) for outcome in outcomes]

    def _reason_to_raise(self, log_metric: Any) -> str:
        if self.on_infrastructure == "none":
            return ""
        if self.on_infrastructure == "raise":
            return "on_infrastructure is 'raise'."
        if not excludes_none():
            return f"{_trl()} would count a missing reward as 0, so this raises; TRL 1.6 and later leave such completions out."
        if others_beside(log_metric):
            return f"{_trl()} would count a missing reward as 0 beside other reward functions, so this raises."
        return ""


def excludes_none() -> bool:
    """Whether the TRL that is installed leaves a completion without reward out of its group; False if there is none."""
    found = _version()
    match = re.match(r"(\d+)\.(\d+)", found or "")
    if found is None or match is None:
        return False
    release = (int(match[1]), int(match[2]))
    return release > FIRST_TO_EXCLUDE or (release == FIRST_TO_EXCLUDE and re.search(r"dev|rc|a\d|b\d", found) is None)


def others_beside(log_metric: Any) -> bool:
    """Whether the trainer, where it can be told, has more reward functions than one: it adds up what is there."""
    trainer = getattr(log_metric, "__self__", None)
    functions = getattr(trainer, "reward_funcs", None)
    return isinstance(functions, list) and len(functions) > 1


def log_shares(name: str, outcomes: Sequence[Outcome], log_metric: Callable[[str, float], object] | None) -> None:
    """Tell the trainer, where it listens, how many completions ended in a way that the mean reward does not show."""
    if log_metric is None or not outcomes:
        return
    for verdict in (Verdict.INFRASTRUCTURE, Verdict.SKIPPED, Verdict.TIMED_OUT, Verdict.OUT_OF_MEMORY):
        log_metric(f"{name}/{verdict}", sum(outcome.verdict is verdict for outcome in outcomes) / len(outcomes))


def _version() -> str | None:
    try:
        return cast("str | None", importlib.metadata.version("trl"))
    except importlib.metadata.PackageNotFoundError:
        return None


def _trl() -> str:
    found = _version()
    return "A trainer that is not a known TRL" if found is None else f"TRL {found}"
