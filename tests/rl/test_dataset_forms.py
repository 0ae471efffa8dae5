"""Rows as what reads files hands them over, and ground truths as trainers do: the task is always the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.rl import datasets
from aviato.rl.datasets.rows import plain_row
from aviato.rl.verl import problem_of
from tests.rl.dataset_rows import EXAMPLES


def _arrays(value: Any) -> Any:
    """As verl has it: pandas' rows of a parquet file, in which lists are arrays of objects and numbers are numpy's."""
    numpy = pytest.importorskip("numpy")
    if isinstance(value, list):
        found = numpy.empty(len(value), dtype=object)
        found[:] = [_arrays(one) for one in value]
        return found
    if isinstance(value, dict):
        return {name: _arrays(one) for name, one in value.items()}
    kind = {bool: numpy.bool_, int: numpy.int64, float: numpy.float64, str: numpy.str_}.get(type(value))
    return value if kind is None else kind(value)


def _table(row: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist([row])


def _series(row: dict[str, Any]) -> Any:
    pytest.importorskip("pandas")
    return _table(row).to_pandas().iloc[0]


def _scalar(row: dict[str, Any]) -> Any:
    found = pytest.importorskip("numpy").empty((), dtype=object)
    found[()] = row
    return found


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a dict": dict,
    "JSON": json.dumps,
    "JSON of JSON": lambda row: json.dumps(json.dumps(row)),
    "bytes": lambda row: json.dumps(row).encode(),
    "arrays": _arrays,
    "an array of no dimension": _scalar,
    "numpy's text": lambda row: _arrays(json.dumps(row)),
    "pyarrow's scalars": lambda row: {name: _table(row).column(name)[0] for name in row},
    "pyarrow's struct": lambda row: _table(row).to_struct_array()[0],
    "pyarrow's rows": lambda row: _table(row).to_pylist()[0],
    "a row of pandas": _series,
    "a dict of pandas": lambda row: _series(row).to_dict(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_ground_truth_is_the_same_in_every_form(form: str) -> None:
    for name, example in EXAMPLES.items():
        plain = json.loads(json.dumps(dict(example.row)))
        for source in (example.dataset, "my/own"):
            wanted = problem_of(source, plain).task
            assert problem_of(source, FORMS[form](plain)).task == wanted, (name, source)
            assert problem_of(source, FORMS[form](plain)).task.tests, (name, source)


@pytest.mark.parametrize("form", ["arrays", "pyarrow's scalars", "a row of pandas"])
def test_a_row_is_the_same_in_every_form(form: str) -> None:
    for name, example in EXAMPLES.items():
        plain = json.loads(json.dumps(dict(example.row)))
        row = FORMS[form](plain)
        assert getattr(datasets, example.dataset)(row, "x = 1") == getattr(datasets, example.dataset)(plain, "x = 1"), name
        assert datasets.recognise(row) == example.dataset, name


def test_nan_is_a_field_that_is_missing() -> None:
    """As pandas has it for numbers, and for everything that it reads from CSV or JSON."""
    nan = float("nan")
    row = {**EXAMPLES["codeforces"].row, "generated_checker": nan, "interaction_format": nan, "time_limit": nan}
    task = datasets.codeforces({**row, "memory_limit": nan, "official_tests_complete": nan, "input_mode": nan})
    assert (task.case_timeout_seconds, task.tests[0].memory_limit_bytes) == (10.0, None)  # type: ignore[union-attr]
    assert datasets.recognise({"test_list": nan, "test": "assert True"}) is None
    with pytest.raises(AviatoValidationError, match="'test' is missing"):
        datasets.humaneval({**EXAMPLES["humaneval"].row, "test": nan})
    outputs = plain_row({"inputs": ["1"], "outputs": [nan]})["outputs"]
    assert outputs[0] != outputs[0], "what is expected is as it stands"


OF_TWO = {
    # Rows that could be one or another: by which fields they are told.
    "mbpp": {"test_list": ["assert f() == 1"], "prompt": "Write f.", "test": "assert f() == 1", "question_id": 1},
    "bigcodebench": dict(EXAMPLES["bigcodebench"].row),
    "humaneval": {**EXAMPLES["humaneval"].row, "question_id": "1", "test_info": []},
    "taco": {**EXAMPLES["taco"].row, "problem_id": 1},
    "livecodebench": {**EXAMPLES["livecodebench"].row, "input_output": "{}"},
    "code_contests": {**EXAMPLES["code_contests"].row, "test": "assert True", "question": "?"},
    "synthetic1": {**EXAMPLES["synthetic1"].row, "inputs": [], "outputs": []},
    "apps": {**EXAMPLES["apps"].row, "raw_tags": None, "skill_types": None},
}


@pytest.mark.parametrize("name", OF_TWO)
def test_a_row_that_could_be_two_is_the_one_that_more_tells(name: str) -> None:
    assert datasets.recognise(OF_TWO[name]) == name


UNKNOWN = {
    "rows of another data set": {"task_id": 1, "question": "?", "test_cases": ["assert f() == 1"]},
    "tests of another form": [{"input": "1", "output": "2", "testtype": "stdin"}],
    "a method of a class": {**EXAMPLES["humaneval"].row, "entry_point": "Solution().f"},
    "JSON that is cut off": '{"inputs": ["1"], "outp',
    "JSON of JSON of JSON": json.dumps(json.dumps(json.dumps({"inputs": ["1"], "outputs": ["1"]}))),
    "half of a row": {"inputs": ["1"]},
    "a row of math": {"verification_info": '{"ground_truth": "4"}', "task_type": "verifiable_math"},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_of_no_form_is_refused(name: str) -> None:
    with pytest.raises(AviatoValidationError):
        problem_of("my/own", UNKNOWN[name])
