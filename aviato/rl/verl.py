"""A reward function for verl: `reward.custom_reward_function.path` is `pkg://aviato.rl.verl`, `name` is `compute_score`.

verl itself is never imported here. Its other way in, `reward.sandbox_fusion.url`, is served by `aviato serve` at `/run_code`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.rl import datasets
from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import Problem, items, plain
from aviato.rl.evaluation import evaluate
from aviato.rl.extraction import extract_code
from aviato.rl.outcome import Verdict
from aviato.rl.task import Task

_VERLS_OWN = ("reward_router_address", "reward_model_tokenizer", "reward_model_name")
_SHOWN_CHARACTERS = 100


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    timeout_seconds: float = 10.0,
    retry_budget_seconds: float = 60.0,
    continuous: bool = False,
    grading: str = "in_process",
    on_infrastructure: Literal["raise", "score"] = "raise",
    infrastructure_score: float = 0.0,
    **options: Any,
) -> dict[str, float]:
    """The score of one response. Every sample has the same keys: `score`, `pass_rate`, `timed_out`, `no_code`, `infra_error`.

    Args:
        data_source: a data set by its name here or on the hub, such as `openai/openai_humaneval`; where it is none that is
            known, or its fields are not there, the fields of the ground truth tell.
        solution_str: the response; its code, in the language that the ground truth asks for, is taken out as `extract_code`
            does.
        ground_truth: a row of a data set of `aviato.rl.datasets`, as a dict or as JSON; or what PRIME and verl have, such as
            `{"inputs": [...], "outputs": [...]}` for programs that read stdin, with `"fn_name"` for functions, or
            `{"assert_case": [...]}`; or Python source that asserts; or a list of such sources. Anything else is refused.
        extra_info: not used.
        timeout_seconds: of each test case whose data set has no limit of its own.
        retry_budget_seconds: for how long infrastructure failures are tried again; less than verl's own limit (300 s), after
            which its rate-limited manager gives a 0.
        continuous: the score is the share of the cases that passed; otherwise 1.0 if all did.
        grading: of tests that assert, as in `Task`.
        on_infrastructure: verl has no "no score". `"raise"` raises what is left after the retries; `"score"` gives
            `infrastructure_score` with `infra_error` 1, for the run to filter on.
        infrastructure_score: see above.
        options: of the sandboxes, as the constructor of `Sandbox`.

    Raises:
        AviatoError: the infrastructure failed, with `on_infrastructure="raise"`.
        AviatoValidationError: a ground truth without a test, or of a form that is not known; or an argument that cannot be
            meant.
    """
    if on_infrastructure not in ("raise", "score"):
        raise AviatoValidationError(f"on_infrastructure must be 'raise' or 'score', got {on_infrastructure!r}")
    for name in _VERLS_OWN:
        options.pop(name, None)
    problem = problem_of(data_source, ground_truth)
    code = extract_code(solution_str, language=problem.code_language)
    task = problem.with_code(code)
    if code is None:
        return _scores(0.0, 0.0, no_code=1.0)
    task = _limited(task, timeout_seconds, grading, continuous)
    limit = timeout_seconds * len(task.cases) + 5.0
    [outcome] = await evaluate([task], timeout_seconds=limit, retry_budget_seconds=retry_budget_seconds, **options)
    if outcome.is_infrastructure:
        if on_infrastructure == "raise":
            raise outcome.error or AviatoError(outcome.message, is_infrastructure=True)
        return _scores(infrastructure_score, 0.0, infra_error=1.0)
    rate = float(outcome.passed) if outcome.pass_rate is None else outcome.pass_rate
    late = outcome.verdict is Verdict.TIMED_OUT
    return _scores(rate if continuous else float(outcome.passed), rate, timed_out=float(late))


def problem_of(data_source: str, ground_truth: Any) -> Problem:
    """What a ground truth asks for.

    Args:
        data_source: names a data set, or not.
        ground_truth: see `compute_score`.

    Raises:
        AviatoValidationError: it has no test, or its form is not known.
    """
    truth = _parsed(ground_truth)
    if isinstance(truth, Mapping):
        name = _name(data_source, truth)
        problem = datasets.problem_of(name, truth)
        # In verl's own form nothing but the caller says how long a case may take.
        own = replace(problem.task, case_timeout_seconds=None, timeout_seconds=None)
        return replace(problem, task=own) if name == "prime" else problem
    sources = [truth] if isinstance(truth, str) else items(truth)
    if sources is None or not all(isinstance(source, str) for source in sources):
        raise _unknown(ground_truth, f"it is {type(ground_truth).__name__}")
    tests = [source for source in sources if source.strip()]
    if not tests:
        raise AviatoValidationError("ground_truth has no test")
    try:
        return Problem(Task(tests=[TestCase(source=source) for source in tests]))
    except AviatoValidationError as error:
        raise _unknown(ground_truth, str(error)) from None


def _scores(
    score: float, pass_rate: float, *, timed_out: float = 0.0, no_code: float = 0.0, infra_error: float = 0.0
) -> dict[str, float]:
    return {"score": score, "pass_rate": pass_rate, "timed_out": timed_out, "no_code": no_code, "infra_error": infra_error}


def _name(data_source: str, truth: Mapping[str, Any]) -> str:
    named = datasets.named(data_source)
    if named is not None and not datasets.fields_missing(named, truth):
        return named
    found = datasets.recognise(truth)
    if found is None:
        raise _unknown(truth, f"its fields are {', '.join(sorted(map(str, truth))) or 'none'}")
    return found


def _parsed(truth: Any) -> Any:
    """A dict or a list, as it is or as JSON, of which the text may be JSON again; or text."""
    truth = plain(truth)
    for _ in range(2):
        if not isinstance(truth, (str, bytes)):
            break
        text = truth.decode(errors="replace") if isinstance(truth, bytes) else truth
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        truth = found if isinstance(found, (dict, list, str)) else text
    return truth


def _limited(task: Task, timeout_seconds: float, grading: str, continuous: bool) -> Task:
    """The task with what the caller asks for and its data set leaves open."""
    return replace(
        task,
        case_timeout_seconds=task.case_timeout_seconds or timeout_seconds,
        grading=grading if task.kind == "test" else task.grading,
        stop_at_first_failure=task.stop_at_first_failure and not continuous,
    )


def _unknown(truth: Any, why: str) -> AviatoValidationError:
    shown = repr(truth)
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"
    message = (
        f"ground_truth is of no form that is known ({why}): {shown}. It may be a row of {', '.join(datasets.NAMES)}, Python "
        "source that asserts, or a list of such sources"
    )
    return AviatoValidationError(message, field_violations={"ground_truth": message})
