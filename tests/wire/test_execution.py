"""What is asked of a command has to make sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from aviato.wire.execution import ExecRequest
from aviato.wire.ids import new_exec_id

CASES = {"timeout_seconds": [1.5, None], "token": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        ({"stdin": True}, True),
        ({"input": ""}, True),
        ({}, False),
        ({"stdin": True, "terminal": {"width": 80, "height": 24}}, False),
        ({"input": "", "terminal": {"width": 80, "height": 24}}, False),
    ],
    ids=["a pipe", "all at once", "no input", "a terminal", "a terminal and input"],
)
def test_cases_come_by_standard_input(given: dict[str, Any], is_right: bool) -> None:
    body = {"exec_id": new_exec_id(), "command": ["python3"], **given}
    assert ExecRequest.model_validate(body).cases is None
    if is_right:
        cases = ExecRequest.model_validate({**body, "cases": CASES}).cases
        assert cases is not None and (cases.timeout_seconds, cases.output_bytes, cases.reports) == ([1.5, None], 65536, False)
        return
    with pytest.raises(ValidationError, match="cases come by standard input, and have no terminal"):
        ExecRequest.model_validate({**body, "cases": CASES})


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_seconds": []},
        {"timeout_seconds": [0]},
        {"token": "short"},
        {"token": "Z" * 32},
        {"output_bytes": 0},
        {"output_bytes": (64 << 20) + 1},
    ],
    ids=str,
)
def test_cases_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        body = {"exec_id": new_exec_id(), "command": ["python3"], "stdin": True, "cases": {**CASES, **wrong}}
        ExecRequest.model_validate(body)
