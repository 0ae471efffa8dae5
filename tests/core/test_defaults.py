"""SandboxDefaults: what was given, and how it merges."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from aviato import AviatoValidationError, ResourceOptions, SandboxDefaults
from aviato.calls.sandbox_config import config


def test_built_in_values() -> None:
    built_in = SandboxDefaults()
    assert (built_in.container_image, built_in.exec_timeout_seconds, built_in.request_timeout_seconds) == (
        "python:3.11",
        300,
        60,
    )
    assert (built_in.reconnect_timeout_seconds, built_in.temp_dir, built_in.tags) == (60, "/tmp", ())
    assert built_in.max_lifetime_seconds is None
    with pytest.raises(AttributeError):
        built_in.tags = ("a",)  # type: ignore[misc]


@pytest.mark.parametrize(
    "same",
    [
        lambda d: d,
        lambda d: pickle.loads(pickle.dumps(d)),
        lambda d: d.with_overrides(tags=["t"]),
        lambda d: SandboxDefaults.from_dict({"container_image": "python:3.11"} if d.given("container_image") else {}),
    ],
)
def test_it_remembers_what_was_given(same: Any) -> None:
    assert same(SandboxDefaults(container_image="python:3.11")).given("container_image")
    assert not same(SandboxDefaults()).given("container_image")


@pytest.mark.parametrize(
    ("defaults", "call", "image"),
    [
        (None, None, None),
        (SandboxDefaults(), None, None),
        (SandboxDefaults(container_image="python:3.11"), None, "python:3.11"),
        (SandboxDefaults(container_image="host"), "dir:x", "dir:x"),
        (None, "python:3.11", "python:3.11"),
    ],
)
def test_the_built_in_image_leaves_the_choice_to_the_server(
    defaults: SandboxDefaults | None, call: str | None, image: str | None
) -> None:
    made = config({"defaults": defaults, "container_image": call})
    assert made.create is not None
    assert made.create["image"] == image


def test_merging() -> None:
    defaults = SandboxDefaults(tags=["a", "b"], environment_variables={"A": "1", "B": "1"}, command="sh", args=["-c", "x"])
    assert defaults.merge_tags(["b", "c"]) == ("a", "b", "c")
    assert defaults.merge_environment_variables({"B": "2"}) == {"A": "1", "B": "2"}
    made = config({"defaults": defaults, "tags": ["c"], "environment_variables": {"B": "2"}, "exec_timeout_seconds": math.inf})
    assert made.create is not None
    assert made.create["tags"] == ("a", "b", "c")
    assert made.create["environment_variables"] == {"A": "1", "B": "2"}
    assert (made.create["command"], made.create["args"]) == ("sh", ("-c", "x"))
    assert made.exec_timeout_seconds == math.inf
    other = config({"defaults": defaults, "command": "true"})
    assert other.create is not None
    assert (other.create["command"], other.create["args"]) == ("true", ())


def test_resources_of_a_call_win_by_name() -> None:
    defaults = SandboxDefaults(resources={"memory": "1Gi", "disk": "1Gi"})
    call = ResourceOptions(requests={"memory": "2Gi"}, limits={"cpu": "500m"})
    made = config({"defaults": defaults, "resources": call, "strict_limits": True})
    assert made.create is not None
    assert made.create["resources"] == {"requests": {"memory": 2 << 30}, "limits": {"disk": 1 << 30, "cpu": 0.5}}
    assert made.create["strict_limits"] is True
    assert pickle.loads(pickle.dumps(defaults)) == defaults
    assert SandboxDefaults.from_dict({"resources": {"limits": {"memory": "1Gi"}}}).given("resources")


def test_overrides_and_tables() -> None:
    defaults = SandboxDefaults.from_dict({"tags": ["a"], "exec_timeout_seconds": 5})
    assert defaults.with_overrides(tags=["b"]) == SandboxDefaults(tags=["b"], exec_timeout_seconds=5)
    with pytest.raises(AviatoValidationError, match="'nope'"):
        SandboxDefaults.from_dict({"nope": 1})
    with pytest.raises(AviatoValidationError, match="'nope'"):
        defaults.with_overrides(nope=1)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tags": "one"}, TypeError),
        ({"tags": [1]}, TypeError),
        ({"exec_timeout_seconds": 0}, ValueError),
        ({"request_timeout_seconds": -1}, ValueError),
        ({"reconnect_timeout_seconds": math.nan}, ValueError),
        ({"temp_dir": "relative"}, ValueError),
        ({"args": "-c x"}, TypeError),
        ({"environment_variables": ["A"]}, TypeError),
        ({"resources": {"memory": "2GB"}}, AviatoValidationError),
        ({"resources": ["2Gi"]}, TypeError),
        ({"network": "internet"}, TypeError),
        ({"runway_ids": "a"}, TypeError),
    ],
)
def test_bad_values(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        SandboxDefaults(**values)
    assert next(iter(values)).split("_")[0] in str(caught.value)


def test_nearest_image_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_IMAGE_FALLBACK", "nearest")
    made = config({})
    assert made.create is not None
    assert made.create["image_fallback"] == "nearest"
    monkeypatch.setenv("AVIATO_IMAGE_FALLBACK", "any")
    with pytest.raises(AviatoValidationError, match="AVIATO_IMAGE_FALLBACK"):
        config({})
