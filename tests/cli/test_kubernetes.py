"""`aviato kubernetes warm-pool` prints what fits a server with the same variables, or says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

INIT = {"AVIATO_KUBERNETES_INIT_IMAGE": "registry.example.org/aviato/server:0.1.0"}
PRINT = ("kubernetes", "warm-pool", "python")


def test_what_it_prints(aviato_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**INIT, "AVIATO_KUBERNETES_CLAIM": "team", "AVIATO_KUBERNETES_NAMESPACE": "ours"}.items():
        monkeypatch.setenv(name, value)
    done = aviato_cli(*PRINT, "--count", "3", "--limit", "memory=1Gi", "--request", "cpu=500m", "--network", "internet")
    assert done.status == 0, done.err
    template, pool = json.loads(done.out)["items"]
    assert (template["kind"], pool["kind"], pool["spec"]["replicas"]) == ("SandboxTemplate", "SandboxWarmPool", 3)
    assert {one["metadata"]["namespace"] for one in (template, pool)} == {"ours"}
    gives = json.loads(template["metadata"]["annotations"]["aviato.dev/gives"])
    assert gives == {
        "image": "python:3.12-slim",
        "network": "internet",
        "limits": {"memory": 1 << 30},
        "requests": {"cpu": 0.5},
    }
    pod = template["spec"]["podTemplate"]
    assert pod["metadata"]["labels"] == {"aviato.dev/claim": "team", "aviato.dev/network": "internet"}
    assert pod["spec"]["initContainers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"] == "team-pool-key"


@pytest.mark.parametrize(
    ("variables", "flags", "said"),
    [
        ({}, (), "AVIATO_KUBERNETES_INIT_IMAGE is not set"),
        (INIT, ("--limit", "memory"), "'memory' is not NAME=AMOUNT"),
        (INIT, ("--limit", "memory=much"), "memory"),
        (INIT, ("--request", "cpu=2", "--limit", "cpu=1"), "is more than"),
        (INIT, ("--image", "dir:/srv"), "starts no directories"),
        (INIT, ("--count", "0"), "must be at least 1"),
        ({**INIT, "AVIATO_KUBERNETES_WARM_POOL": "p"}, (), "AVIATO_KUBERNETES_WARM_POOL p: pods have no such pools"),
    ],
)
def test_what_is_wrong_is_said(
    aviato_cli: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = aviato_cli(*PRINT, *flags)
    assert done.status != 0 and done.out == "" and said in done.err, done.err
