"""Reward functions: the code of each completion, in a sandbox of its own, against the tests of its row."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aviato.calls import sandbox_config
from aviato.exceptions import AviatoValidationError
from aviato.rl.evaluation import check_limits, evaluate
from aviato.rl.extraction import extract_code
from aviato.rl.trl.rows import Columns, ask
from aviato.rl.trl.sessions import options_without_session, shared_session
from aviato.rl.trl.verdicts import OnInfrastructure, Scale, log_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from aviato.api.session import Session
    from aviato.calls.sandbox_config import SandboxOptions
    from aviato.rl.evaluation import Evaluation
    from aviato.rl.outcome import Outcome
    from aviato.rl.task import Task
    from aviato.rl.trl.rows import Asked

    Rewards = list[float | None]


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Everything that makes a reward function what it is, as a pickle carries it."""

    name: str
    asynchronous: bool
    columns: Columns
    scale: Scale
    extract: Callable[[Any], str | None]
    on_outcomes: Callable[[list[Outcome]], object] | None
    timeout_seconds: float
    retry_budget_seconds: float
    max_concurrency: int | None
    session: Session | None
    options: SandboxOptions = field(repr=False)


class RewardFunction(functools.partial[Any]):
    """What `code_reward` returns: a function for `reward_funcs=` with a `__name__`, picklable also for spawned processes.

    It is a `functools.partial` of a plain function, `async def` or not, since that is the one form whose name and kind every
    version of TRL finds and whose pickle can carry a configuration.

    Attributes:
        config: how it was made.
    """

    config: RewardConfig
    __name__: str

    def __reduce__(self) -> tuple[Any, ...]:
        config = self.config
        options = options_without_session(config.session, config.options)
        return (_make, (replace(config, session=None, options=options),))

    def __repr__(self) -> str:
        return f"<reward function {self.__name__}>"


def code_reward(
    *,
    name: str = "code_reward",
    asynchronous: bool = False,
    tests_column: str | None = None,
    expected_output_column: str | None = None,
    make_task: Callable[[str | None, Mapping[str, Any]], Task | None] | None = None,
    dataset: str | None = None,
    row_column: str | None = None,
    grading: str = "in_process",
    extract: Callable[[Any], str | None] = extract_code,
    passed: float = 1.0,
    failed: float = 0.0,
    skipped: float = 0.0,
    on_infrastructure: OnInfrastructure = "auto",
    on_outcomes: Callable[[list[Outcome]], object] | None = None,
    timeout_seconds: float = 30.0,
    retry_budget_seconds: float = 60.0,
    max_concurrency: int | None = None,
    session: Session | None = None,
    **options: Unpack[SandboxOptions],
) -> RewardFunction:
    """Make a reward function for TRL: one value a completion, in order, each from a fresh sandbox.

    It takes completions as strings or as message lists, and the dataset's columns by keyword. A row with tests is judged by
    them; one without, by what the code prints, if there is an expected output; if the dataset has neither column, code passes
    that runs to its end. A row that has nothing to test with is skipped. Of a data set's row all cases count together, and
    those after one that failed are not run.

    An infrastructure failure is tried again within its budget. What then has no verdict never becomes a number: TRL from 1.6
    on gets None and leaves the completion out; for an older one, and where the trainer has other reward functions, beside
    which TRL of any version counts None as 0, the call raises.

    Args:
        name: under which the trainer logs it; an identifier, not that of another reward function.
        asynchronous: an `async def`, which TRL from 0.27 on runs beside other ones.
        tests_column: of test sources, a list or one text; None is `tests`, if the dataset has it.
        expected_output_column: of what the code must print; None is `expected_output`, if the dataset has it.
        make_task: in place of the columns: takes the code, or None, and the row, and returns the task, or None to skip it.
        dataset: a name of `aviato.rl.datasets.NAMES`, in place of these: the columns are a row of that data set, as the hub has
            it. A row of it that cannot be judged is skipped, with a warning.
        row_column: the column in which that row stands whole, as a dict or as JSON; for rows that have a `prompt` of their own,
            which a trainer does not hand over.
        grading: of test cases, as in `Task`.
        extract: the code of a completion, or None if it offers none. `extract_code` goes by the language of a data
            set's row.
        passed: the reward of code that passes.
        failed: of code that does not; running out of time or memory included.
        skipped: of a completion without code, and of a row without tests.
        on_infrastructure: `"none"` and `"raise"` force one of the two; `"auto"` goes by the TRL that is installed.
        on_outcomes: called with the outcomes of each call, in order, before its rewards are returned.
        timeout_seconds: of each completion, counted from its start inside.
        retry_budget_seconds: for how long a completion is tried again after infrastructure failures.
        max_concurrency: sandboxes at a time; None is as for `evaluate`.
        session: whose sandboxes they are, in this process; a pickle carries its defaults only. None is one a process.
        options: of the sandboxes, as the constructor of `Sandbox`.

    Functions given must be importable by name, for the trainers that pickle.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant.
    """
    if re.fullmatch(r"[^\W\d]\w*", name) is None:
        raise AviatoValidationError(f"name must be an identifier, got {name!r}")
    config = RewardConfig(
        name=name,
        asynchronous=bool(asynchronous),
        columns=Columns(
            tests=tests_column,
            expected_output=expected_output_column,
            make_task=make_task,
            dataset=dataset,
            row=row_column,
            grading=grading,
        ),
        scale=Scale(passed=passed, failed=failed, skipped=skipped, on_infrastructure=on_infrastructure),
        extract=extract,
        on_outcomes=on_outcomes,
        timeout_seconds=timeout_seconds,
        retry_budget_seconds=retry_budget_seconds,
        max_concurrency=max_concurrency,
        session=session,
        options=options,
    )
    check_limits(timeout_seconds, retry_budget_seconds, max_concurrency)
    sandbox_config.config(options)
    return _make(config)


def _make(config: RewardConfig) -> RewardFunction:
    if config.asynchronous:

        async def awaited(completions: Sequence[Any], **given: Any) -> Rewards:
            asked, evaluation = _begin(config, completions, given)
            return _end(config, asked, await evaluation, given)

        made = RewardFunction(awaited)
    else:

        def blocking(completions: Sequence[Any], **given: Any) -> Rewards:
            asked, evaluation = _begin(config, completions, given)
            return _end(config, asked, evaluation.result(), given)

        made = RewardFunction(blocking)
    # TRL up to 1.8 reads the name of what it was given, later ones that of the function inside.
    made.func.__name__ = made.func.__qualname__ = config.name
    made.__name__ = config.name
    made.config = config
    return made


def _begin(config: RewardConfig, completions: Sequence[Any], given: Mapping[str, Any]) -> tuple[list[Asked], Evaluation]:
    asked = ask(config.columns, completions, config.extract, given)
    evaluation = evaluate(
        [each.task for each in asked],
        session=config.session or shared_session(),
        timeout_seconds=config.timeout_seconds,
        retry_budget_seconds=config.retry_budget_seconds,
        max_concurrency=config.max_concurrency,
        progress=False,  # The terminal is the trainer's.
        **config.options,
    )
    return asked, evaluation


def _end(config: RewardConfig, asked: list[Asked], found: list[Outcome], given: Mapping[str, Any]) -> Rewards:
    outcomes = [each.settle(outcome) for each, outcome in zip(asked, found, strict=True)]
    if config.on_outcomes is not None:
        config.on_outcomes(outcomes)
    log_shares(config.name, outcomes, given.get("log_metric"))
    return config.scale.rewards(config.name, outcomes, given.get("log_metric"))
