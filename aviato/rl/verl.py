"""A reward function for verl: `reward.custom_reward_function.path` is `pkg://aviato.rl.verl`, `name` is `compute_score`.

verl itself is never imported here. Its other way in, `reward.sandbox_fusion.url`, is served by `aviato serve` at `/run_code`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.rl.evaluation import evaluate
from aviato.rl.extraction import extract_code
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.task import Task

_VERLS_OWN = ("reward_router_address", "reward_model_tokenizer", "reward_model_name")
_PROGRAM = "main.py"


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    *,
    timeout_seconds: float = 10.0,
    retry_budget_seconds: float = 60.0,
    continuous: bool = False,
    on_infrastructure: Literal["raise", "score"] = "raise",
    infrastructure_score: float = 0.0,
    **options: Any,
) -> dict[str, float]:
    """The score of one response. Every sample has the same keys: `score`, `pass_rate`, `timed_out`, `no_code`, `infra_error`.

    Args:
        data_source: not used.
        solution_str: the response; its code is taken out as `extract_code` does.
        ground_truth: a test's source; a list of them; or `{"inputs": [...], "outputs": [...]}` for programs that read stdin,
            or with `"fn_name"` for functions, or `{"assert_case": [...]}`. Text that is JSON is read as such.
        extra_info: not used.
        timeout_seconds: of each test case.
        retry_budget_seconds: for how long infrastructure failures are tried again; less than verl's own limit (300 s), after
            which its rate-limited manager gives a 0.
        continuous: the score is the share of the cases that passed; otherwise 1.0 if all did.
        on_infrastructure: verl has no "no score". `"raise"` raises what is left after the retries; `"score"` gives
            `infrastructure_score` with `infra_error` 1, for the run to filter on.
        infrastructure_score: see above.
        options: of the sandboxes, as the constructor of `Sandbox`.

    Raises:
        AviatoError: the infrastructure failed, with `on_infrastructure="raise"`.
        AviatoValidationError: a ground truth without a test, or an argument that cannot be meant.
    """
    if on_infrastructure not in ("raise", "score"):
        raise AviatoValidationError(f"on_infrastructure must be 'raise' or 'score', got {on_infrastructure!r}")
    for name in _VERLS_OWN:
        options.pop(name, None)
    truth = _parsed(ground_truth)
    code = extract_code(solution_str)
    tasks, expected = _tasks(code or "", truth, timeout_seconds)
    if code is None:
        return _scores(0.0, 0.0, no_code=1.0)
    limit = timeout_seconds * (1 if expected else max(1, len(tasks[0].tests))) + 5.0
    outcomes = await evaluate(tasks, timeout_seconds=limit, retry_budget_seconds=retry_budget_seconds, **options)
    broken = next((outcome for outcome in outcomes if outcome.is_infrastructure), None)
    if broken is not None:
        if on_infrastructure == "raise":
            raise broken.error or AviatoError(broken.message, is_infrastructure=True)
        return _scores(infrastructure_score, 0.0, infra_error=1.0)
    passed = _passed(outcomes, expected)
    rate = sum(passed) / len(passed)
    late = any(outcome.verdict is Verdict.TIMED_OUT for outcome in outcomes)
    return _scores(rate if continuous else float(all(passed)), rate, timed_out=float(late))


def _scores(
    score: float, pass_rate: float, *, timed_out: float = 0.0, no_code: float = 0.0, infra_error: float = 0.0
) -> dict[str, float]:
    return {"score": score, "pass_rate": pass_rate, "timed_out": timed_out, "no_code": no_code, "infra_error": infra_error}


def _parsed(truth: Any) -> Any:
    if isinstance(truth, str):
        try:
            found = json.loads(truth)
        except ValueError:
            return [truth]
        return found if isinstance(found, (dict, list)) else [truth]
    return truth


def _tasks(code: str, truth: Any, timeout_seconds: float) -> tuple[list[Task], list[str]]:
    """What to run, and for programs what each of them must print."""
    if isinstance(truth, dict) and truth.get("assert_case"):
        truth = truth["assert_case"]
    if isinstance(truth, dict):
        inputs, outputs = list(truth.get("inputs") or []), list(truth.get("outputs") or [])
        if not inputs or len(inputs) != len(outputs):
            raise AviatoValidationError(f"ground_truth has {len(inputs)} inputs and {len(outputs)} outputs")
        if not truth.get("fn_name"):
            files = {_PROGRAM: code.encode(errors="replace")}
            command = ["python3", _PROGRAM]
            return [
                Task(command=command, stdin=str(given), files=files, timeout_seconds=timeout_seconds) for given in inputs
            ], [str(output) for output in outputs]
        pairs = zip(inputs, outputs, strict=True)
        truth = [_call(str(truth["fn_name"]), str(given), str(output)) for given, output in pairs]
    tests = [str(test) for test in truth or () if str(test).strip()]
    if not tests:
        raise AviatoValidationError("ground_truth has no test")
    return [Task(code=code or None, tests=tests, case_timeout_seconds=timeout_seconds)], []


def _call(name: str, given: str, output: str) -> str:
    """A test as verl's wrapper of functions has it: an argument a line of the input, as JSON, and the printed result."""
    return (
        f"import json as _json\n_f = globals().get({name!r}) or getattr(Solution(), {name!r})\n"
        f"_r = _f(*[_json.loads(line) for line in {given!r}.split('\\n')] if {given!r}.strip() else [])\n"
        "_r = _json.dumps(_r) if _r is None or isinstance(_r, (dict, list, tuple, bool)) else str(_r)\n"
        f"assert _r.rstrip('\\n') == {output!r}.rstrip('\\n'), _r"
    )


def _passed(outcomes: list[Outcome], expected: list[str]) -> list[bool]:
    if not expected:
        return [case.passed for case in outcomes[0].cases] or [outcomes[0].passed]
    return [
        outcome.passed and outcome.result is not None and outcome.result.stdout.rstrip("\n") == output.rstrip("\n")
        for outcome, output in zip(outcomes, expected, strict=True)
    ]
