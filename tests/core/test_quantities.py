"""Kubernetes quantities, and what a caller may mean by an amount of a resource."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from typing import Any

import pytest

from aviato import AviatoValidationError, ResourceOptions
from aviato.values.quantities import amount, format_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("500m", "0.5"),
        ("1.5Gi", 1.5 * 2**30),
        (".5k", 500),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1E2", 100),
        ("12Ei", 12 * 2**60),
        ("100n", "0.0000001"),
        ("+7M", 7_000_000),
    ],
)
def test_quantities(text: str, number: Any) -> None:
    assert parse_quantity(text) == Decimal(str(number))


@pytest.mark.parametrize("text", ["", "1 Gi", "Gi", "2GB", "1gi", "0x10", "1_000", "nan", "inf", "1e999", "--1", "1" * 31, "٣"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


def test_bytes_in_words() -> None:
    assert [format_bytes(value) for value in (2**31, 1536 * 2**20, 1000, 5 * 2**40)] == ["2Gi", "1536Mi", "1000", "5Ti"]


def test_amounts() -> None:
    assert amount("memory", "1.0000001Gi") == 1073741932
    assert amount("cpu", 2) == 2.0
    assert isinstance(amount("processes", "1k"), int)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("memory", "128m", "did you mean '128Mi'"),
        ("memory", 512, "did you mean '512Mi'"),
        ("memory", -1, "-1 is less than 4Mi, the least$"),
        ("memory", "2GB", "no quantity"),
        ("memory", math.inf, "more than can be meant"),
        ("memory", math.nan, "nan is no amount"),
        ("disk", "8Ei", "more than can be meant"),
        ("cpu", 0, "0 is less than 0.001, the least"),
        ("processes", 1.5, "no whole number"),
        ("ram", 1, "there are cpu, memory, shm, processes, disk"),
    ],
)
def test_amounts_that_make_no_sense_are_named(name: str, value: Any, why: str) -> None:
    for table in ("requests", "limits"):
        with pytest.raises(AviatoValidationError, match=why) as caught:
            ResourceOptions(**{table: {name: value}})
        assert f"{table}[{name!r}]" in caught.value.field_violations["resources"]


@pytest.mark.parametrize("value", [True, [1], b"1Gi"])
def test_amounts_of_another_type(value: Any) -> None:
    with pytest.raises(TypeError, match=r"limits\['memory'\]"):
        ResourceOptions(limits={"memory": value})


def test_a_request_is_at_most_its_limit() -> None:
    with pytest.raises(AviatoValidationError, match=r"2Gi, is more than limits.*1Gi"):
        ResourceOptions(requests={"memory": "2Gi"}, limits={"memory": "1Gi"})
    made = ResourceOptions(requests={"memory": "1Gi"}, limits={"memory": "1024Mi"})
    assert made.amounts() == ({"memory": 1 << 30}, {"memory": 1 << 30})
    assert made.limits == {"memory": "1024Mi"} and pickle.loads(pickle.dumps(made)) == made
