"""The reward function for sandbox environments: all episodes of a batch graded at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aviato.bridge.operation import OperationRef
from aviato.exceptions import AviatoValidationError
from aviato.rl.trl.environment import SandboxEnvironment
from aviato.rl.trl.verdicts import OnInfrastructure, Scale, log_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.rl.outcome import Outcome


class EnvironmentReward:
    """What `environment_reward` returns: a blocking function for `reward_funcs=`, with a `__name__`, picklable."""

    def __init__(self, name: str, scale: Scale, on_outcomes: Callable[[list[Outcome]], object] | None) -> None:
        self.__name__ = name
        self._scale = scale
        self._on_outcomes = on_outcomes

    def __call__(self, *, environments: Sequence[Any] | None = None, **given: Any) -> list[float | None]:
        """One reward for each environment; one that is no sandbox environment gets None, which is no opinion."""
        if environments is None:
            raise AviatoValidationError(
                f"{self.__name__} needs the trainer's environments: pass environment_factory=SandboxEnvironment (TRL 0.29 or "
                "later). AsyncGRPO hands none over: use SelfGradingEnvironment there"
            )
        ours = [environment for environment in environments if isinstance(environment, SandboxEnvironment)]
        outcomes = OperationRef.start(_grade(ours), name=f"grade {len(ours)} episodes").result()
        if self._on_outcomes is not None:
            self._on_outcomes(outcomes)
        log_shares(self.__name__, outcomes, given.get("log_metric"))
        rewards = iter(self._scale.rewards(self.__name__, outcomes, given.get("log_metric")))
        return [next(rewards) if isinstance(each, SandboxEnvironment) else None for each in environments]

    def __repr__(self) -> str:
        return f"<reward function {self.__name__}>"


def environment_reward(
    *,
    name: str = "environment_reward",
    passed: float = 1.0,
    failed: float = 0.0,
    skipped: float = 0.0,
    on_infrastructure: OnInfrastructure = "auto",
    on_outcomes: Callable[[list[Outcome]], object] | None = None,
) -> EnvironmentReward:
    """Make the reward function for `SandboxEnvironment`: the episodes of a batch, graded at once.

    Args:
        name: under which the trainer logs it.
        passed: the reward of an episode that passes.
        failed: of one that does not.
        skipped: of one whose row has nothing to test with.
        on_infrastructure: as in `code_reward`.
        on_outcomes: called with the outcomes of each call, in order.
    """
    scale = Scale(passed=passed, failed=failed, skipped=skipped, on_infrastructure=on_infrastructure)
    return EnvironmentReward(name, scale, on_outcomes)


async def _grade(environments: list[SandboxEnvironment]) -> list[Outcome]:
    return list(await asyncio.gather(*(environment._grade() for environment in environments)))
